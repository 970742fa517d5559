"""A broker as an operator sets it up: definitions from the roster, a login for each party, TLS."""

import json
from dataclasses import dataclass
from pathlib import Path

from hubbub.ids import PartyId
from hubbub.transport.definitions import DEFAULT_USER, BrokerUser, make_definitions
from hubbub.trust.roster import Roster
from support.certificates import Authority
from support.private_node import PrivateNode


@dataclass(frozen=True, slots=True)
class GuardedBroker:
    """A broker that lets each party in over TLS, with its own certificate and its identity's password."""

    node: PrivateNode
    authority: Authority
    folder: Path
    host: str = "localhost"

    def prepare(self, roster: Roster) -> None:
        users = [BrokerUser(party.name, party.role, party.broker_password_hash) for party in roster.parties]
        definitions = self.folder / "definitions.json"
        definitions.write_text(json.dumps(make_definitions(users)), encoding="utf-8")
        self.node.ctl("import_definitions", str(definitions))
        self.node.ctl("delete_user", DEFAULT_USER)

    def settings_for(self, name: PartyId) -> dict[str, str]:
        files = self.authority.certify_client(name)
        return {
            "amqp_url": f"amqps://{self.host}:{self.node.tls_port}/",
            "amqp_ca_file": str(self.authority.ca_file),
            "amqp_cert_file": str(files.cert),
            "amqp_key_file": str(files.key),
        }

    def clear(self, roster: Roster) -> None:
        """Nothing: the node goes with the test."""

    def list_connections(self, *fields: str) -> set[tuple[str, ...]]:
        """All who are connected, with what the broker knows about the connection."""
        lines = self.node.ctl("-q", "--no-table-headers", "list_connections", *fields).splitlines()
        return {tuple(line.split("\t")) for line in lines}
