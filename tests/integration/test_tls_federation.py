"""A whole federation as an operator sets it up: definitions from the roster, a login for each party, TLS."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from hubbub.ids import PartyId
from hubbub.messages.manifest import Manifest
from hubbub.transport.definitions import DEFAULT_USER, BrokerUser, make_definitions
from hubbub.trust.audit import read_log
from hubbub.trust.comparison import compare, find_common
from hubbub.trust.roster import Roster
from hubbub_trainer.learning.synthetic import SyntheticTask
from hubbub_trainer.planning import draw_up_manifest
from support.certificates import Authority
from support.one_process import run_in_one_process
from support.private_node import NodeTls, PrivateNode, server_scripts
from support.processes import ProcessFederation

pytestmark = pytest.mark.broker

DEMO_SEED = 7
ROUNDS = 3


@dataclass(frozen=True, slots=True)
class GuardedBroker:
    """A broker that lets each party in over TLS, with its own certificate and its identity's password."""

    node: PrivateNode
    authority: Authority
    folder: Path

    def prepare(self, roster: Roster) -> None:
        users = [BrokerUser(party.name, party.role, party.broker_password_hash) for party in roster.parties]
        definitions = self.folder / "definitions.json"
        definitions.write_text(json.dumps(make_definitions(users)), encoding="utf-8")
        self.node.import_definitions(definitions)
        self.node.ctl("delete_user", DEFAULT_USER)

    def settings_for(self, name: PartyId) -> dict[str, str]:
        files = self.authority.certify_client(name)
        return {
            "amqp_url": f"amqps://localhost:{self.node.tls_port}/",
            "amqp_ca_file": str(self.authority.ca_file),
            "amqp_cert_file": str(files.cert),
            "amqp_key_file": str(files.key),
        }

    def clear(self, roster: Roster) -> None:
        """Nothing: the node goes with the test."""

    def list_connections(self) -> set[tuple[str, bool]]:
        """Who is connected, and whether over TLS."""
        lines = self.node.ctl("-q", "--no-table-headers", "list_connections", "user", "ssl").splitlines()
        return {(user, tls == "true") for user, tls in map(str.split, lines)}


def draw_up(roster: Roster) -> Manifest:
    return draw_up_manifest(
        SyntheticTask(),
        roster=roster,
        strategy="sec-union",
        rho=0.1,
        local_steps=5,
        rounds=ROUNDS,
        seed=DEMO_SEED,
    )


def test_eight_parties_with_logins_of_their_own_train_over_tls_what_they_train_in_memory(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    if server_scripts() is None:
        # Fails with what to do if there is no broker at all; may install one.
        request.getfixturevalue("amqp_url")
    if server_scripts() is None:
        pytest.skip("users and certificates take a broker of our own, and no rabbitmq-server is installed")
    authority = Authority(tmp_path / "authority")
    with PrivateNode(NodeTls(authority.ca_file, authority.certify_server("localhost"))) as node:
        broker = GuardedBroker(node, authority, tmp_path)
        with ProcessFederation(broker, tmp_path, trainers=5, demo_seed=DEMO_SEED) as federation:
            manifest = draw_up(federation.roster)

            digests = federation.finish(federation.submit(manifest))

            assert broker.list_connections() == {(name, True) for name in federation.roles}

    assert digests == run_in_one_process(manifest, federation.parties, tmp_path / "alone", demo_seed=DEMO_SEED)
    assert len(set(digests.values())) == 1
    assert manifest.initial_model_sha256 not in digests.values()
    logs = [read_log(service.folder / "audit.jsonl") for service in federation.services.values()]
    assert compare(logs) == ()
    assert find_common(logs).phases == 2 * ROUNDS
