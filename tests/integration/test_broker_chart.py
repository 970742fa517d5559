"""The configuration that the broker's chart mounts is one that a real RabbitMQ takes."""

import asyncio
import json
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from hubbub.errors import TransportError
from hubbub.ids import PartyId, Role
from hubbub.transport.access import Login, Tls
from hubbub.transport.definitions import DEFAULT_USER, BrokerUser, make_definitions
from hubbub.transport.rabbitmq import RabbitMqTransport
from hubbub.transport.topology import inbox, topology_for
from hubbub_cli.rabbitmq_node import answers_amqp
from support.certificates import Authority
from support.chart import BROKERS, of_kind, render
from support.party_files import PartyFiles, write_party_files
from support.private_node import PrivateNode, listens

pytestmark = pytest.mark.broker

ROLES = {
    PartyId("coordinator"): Role.COORDINATOR,
    PartyId("north"): Role.AGGREGATOR,
    PartyId("clinic-a"): Role.CLIENT,
}


class TlsNode(PrivateNode):
    """A node that serves when its TLS port does: it has no other."""

    def serves(self) -> bool:
        return listens("127.0.0.1", self.tls_port)


@dataclass(frozen=True, slots=True)
class ChartedBroker:
    """A node with the chart's files, and the parties that it was told of."""

    node: TlsNode
    files: PartyFiles
    authority: Authority

    def connect(self, name: PartyId, password: str) -> RabbitMqTransport:
        return RabbitMqTransport(
            f"amqps://localhost:{self.node.tls_port}/",
            topology_for(name, ROLES.get(name, Role.CLIENT)),
            connection_name=name,
            login=Login(name, password),
            tls=Tls(ca_file=self.authority.ca_file, cert_file=None, key_file=None),
        )


@pytest.fixture(scope="module")
def broker(rabbitmq_server: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChartedBroker]:
    """One node of the three: with one, there are no others to wait for."""
    del rabbitmq_server
    folder = tmp_path_factory.mktemp("broker")
    files, authority = write_party_files(folder, ROLES), Authority(folder / "authority")
    lay_out(folder, files, authority)
    node = TlsNode()
    try:
        configure(node, folder)
        node.start()
        yield ChartedBroker(node, files, authority)
    finally:
        node.close()


def lay_out(folder: Path, files: PartyFiles, authority: Authority) -> None:
    """Write the files that the chart mounts from Secrets."""
    users = [BrokerUser(each.name, each.role, each.broker_password_hash) for each in files.parties.roster.parties]
    (folder / "definitions.json").write_text(json.dumps(make_definitions(users)), encoding="utf-8")
    server = authority.certify_server("localhost", "127.0.0.1")
    server.cert.rename(folder / "tls.crt")
    server.key.rename(folder / "tls.key")


def configure(node: TlsNode, folder: Path) -> None:
    """Give it the chart's own files, with the folders and the ports of this machine in the place of a pod's."""
    [mounted] = of_kind(render(BROKERS[1], "--set", "replicas=1"), "ConfigMap")
    lines = mounted["data"]["rabbitmq.conf"]
    with socket.create_server(("127.0.0.1", 0)) as free:
        metrics_port = free.getsockname()[1]
    places = {
        "/etc/hubbub-broker": str(folder),
        "/run/hubbub-tls": str(folder),
        "default = 5671": f"default = {node.tls_port}",
        "port = 15692": f"port = {metrics_port}",
    }
    for place, here in places.items():
        assert place in lines
        lines = lines.replace(place, here)
    node.configure(lines)
    (node.folder / "enabled_plugins").write_text(mounted["data"]["enabled_plugins"], encoding="utf-8")


def count_waiting(broker: ChartedBroker, name: PartyId, password: str) -> int:
    """Connect as a party does, which finds its queues and exchanges or fails."""

    async def count() -> int:
        async with broker.connect(name, password) as transport:
            return await transport.count_waiting(inbox(name))

    return asyncio.run(count())


def test_every_party_gets_in_over_tls_and_finds_its_queue(broker: ChartedBroker) -> None:
    waiting = {
        name: count_waiting(broker, name, identity.broker_password)
        for name, identity in broker.files.parties.identities.items()
    }

    assert waiting == dict.fromkeys(ROLES, 0)


@pytest.mark.parametrize(("name", "password"), [("clinic-a", "guest"), (DEFAULT_USER, "guest")])
def test_nobody_gets_in_without_a_party_s_password(broker: ChartedBroker, name: str, password: str) -> None:
    with pytest.raises(TransportError, match=f"refuses user '{name}'"):
        count_waiting(broker, PartyId(name), password)


def test_nothing_but_tls_is_spoken(broker: ChartedBroker) -> None:
    assert not answers_amqp("127.0.0.1", broker.node.port)
    assert not answers_amqp("127.0.0.1", broker.node.tls_port)
