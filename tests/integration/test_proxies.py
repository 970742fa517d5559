"""Parties behind a firewall: AMQPS through the proxies that hospitals have, to a real RabbitMQ."""

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from hubbub.errors import BrokerRefused, BrokerUnreachable, ProxyRefused, ProxyUnreachable
from hubbub.ids import PartyId, Role
from hubbub.transport.access import Tls
from hubbub.transport.rabbitmq import RabbitMqTransport, declare_topology
from hubbub.transport.topology import Topology, inbox, topology_for
from hubbub_cli.rabbitmq_node import find_free_ports
from support.broker import declared
from support.certificates import Authority
from support.debian import UnavailableError
from support.namespaces import Exchange, require_namespaces
from support.private_node import NodeTls, PrivateNode
from support.proxies import PASSWORD, PROXIES, MakeProxy, PrivateProxy, TinyProxy
from support.twins import PAUSE, Recorder, address_of, new_party

pytestmark = pytest.mark.broker


class Hospital:
    """A broker that speaks TLS alone to us, and how to reach it."""

    def __init__(self, node: PrivateNode, authority: Authority) -> None:
        files = authority.certify_client("hospital")
        self.node = node
        self.tls = Tls(ca_file=authority.ca_file, cert_file=files.cert, key_file=files.key)
        self.url = f"amqps://guest:guest@localhost:{node.tls_port}/"

    def connect(self, proxy: str, topology: Topology, url: str = "", timeout_s: float = 20) -> RabbitMqTransport:
        return RabbitMqTransport(
            url or self.url,
            topology,
            tls=self.tls,
            proxy=proxy,
            connect_timeout_s=timeout_s,
            reconnect_interval_s=0.1,
            retry_pause=PAUSE,
        )


@pytest.fixture(scope="module")
def hospital(rabbitmq_server: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hospital]:
    del rabbitmq_server
    authority = Authority(tmp_path_factory.mktemp("authority"))
    with PrivateNode(NodeTls(authority.ca_file, authority.certify_server("localhost"))) as node:
        yield Hospital(node, authority)


@pytest.fixture(params=PROXIES, ids=lambda make: make.__name__)
def proxy(request: pytest.FixtureRequest, hospital: Hospital) -> Iterator[PrivateProxy]:
    make: MakeProxy = request.param
    with make(hospital.node.tls_port) as proxy:
        yield proxy


async def test_messages_go_through_the_proxy_and_go_on_when_it_comes_back(
    hospital: Hospital, proxy: PrivateProxy
) -> None:
    party, recorder = new_party(), Recorder()
    topology = topology_for(party, Role.AGGREGATOR)

    async with declared(hospital.node.url, topology), hospital.connect(proxy.url, topology) as transport:
        await transport.subscribe(inbox(party), recorder)
        await transport.publish(address_of(party), bytes(2**20))
        await recorder.wait_for(1)
        await asyncio.to_thread(proxy.kill)
        publishing = asyncio.create_task(transport.publish(address_of(party), b"second"))
        await asyncio.to_thread(proxy.start)
        await publishing
        await recorder.wait_for_all({b"second"})
        listing = ("-q", "--no-table-headers", "list_connections", "user", "ssl")
        connections = await asyncio.to_thread(hospital.node.ctl, *listing)

    assert set(connections.split()) == {"guest", "true"}
    # One connection is to send over and one to receive over, and each was made twice.
    assert proxy.count_requests("localhost", hospital.node.tls_port) >= 4
    assert PASSWORD not in f"{transport!r}"


def test_a_network_that_lets_out_the_proxy_alone_is_enough(rabbitmq_server: None, tmp_path: Path) -> None:
    """The hospital has no DNS and no way to the broker; its localhost is not the proxy's."""
    del rabbitmq_server
    try:
        require_namespaces()
    except UnavailableError as reason:
        pytest.skip(str(reason))
    party, authority = new_party(), Authority(tmp_path)
    topology = topology_for(party, Role.AGGREGATOR)
    with ExitStack() as stack:
        node = PrivateNode(NodeTls(authority.ca_file, authority.certify_server("localhost")))
        stack.callback(node.close)
        proxy = TinyProxy(node.tls_port, host="192.0.2.10")
        stack.callback(proxy.close)
        internet = Exchange(proxy.host)
        stack.callback(internet.close)
        with internet.entered():
            node.start()
            proxy.start()
            asyncio.run(declare_topology(node.url, topology))
        hospital, outside = internet.join("hospital"), Hospital(node, authority)
        stack.callback(hospital.namespace.close)
        hospital.allow_only(proxy.host, proxy.port)
        with hospital.namespace.entered():
            asyncio.run(send_and_receive(outside.connect(proxy.url, topology), party))
            with pytest.raises(BrokerUnreachable, match=f"no RabbitMQ answers at localhost:{node.tls_port}"):
                asyncio.run(send_and_receive(outside.connect("", topology, timeout_s=0.5), party))


async def send_and_receive(transport: RabbitMqTransport, party: PartyId) -> None:
    recorder = Recorder()
    async with transport:
        await transport.subscribe(inbox(party), recorder)
        await transport.publish(address_of(party), b"hello")
        await recorder.wait_for(1)


async def test_each_of_several_addresses_is_asked_for_through_the_proxy(hospital: Hospital) -> None:
    (dead,) = find_free_ports(1)
    party = new_party()
    topology = topology_for(party, Role.AGGREGATOR)
    urls = f"amqps://guest:guest@localhost:{dead}/,{hospital.url}"

    with TinyProxy(hospital.node.tls_port, dead) as proxy:
        async with declared(hospital.node.url, topology), hospital.connect(proxy.url, topology, urls):
            found = [proxy.count_requests("localhost", port) for port in (dead, hospital.node.tls_port)]

    assert found == [2, 2]


async def test_a_proxy_that_refuses_is_told_from_a_broker_that_refuses_or_is_away(
    hospital: Hospital, proxy: PrivateProxy
) -> None:
    topology = topology_for(new_party(), Role.AGGREGATOR)
    (dead,) = find_free_ports(1)
    nobody = f"amqps://guest:guest@localhost:{dead}/"
    stranger = hospital.url.replace("guest:guest", "guest:sesame")
    # tinyproxy forbids this port; microsocks forbids none.
    at_dead = ProxyRefused if isinstance(proxy, TinyProxy) else BrokerUnreachable
    cases: list[tuple[str, str, type[Exception], str]] = [
        (proxy.url.replace(PASSWORD, "sesame"), hospital.url, ProxyRefused, f"{proxy.where} does not let us in"),
        (proxy.url, nobody, at_dead, f"{proxy.where} .*localhost:{dead}"),
        (proxy.url, stranger, BrokerRefused, "localhost:.* refuses user 'guest'"),
    ]

    for way, url, kind, told in cases:
        with pytest.raises(kind, match=told) as failure:
            await hospital.connect(way, topology, url, timeout_s=1).__aenter__()
        assert type(failure.value) is kind
        assert "sesame" not in str(failure.value)
    await asyncio.to_thread(proxy.kill)
    with pytest.raises(ProxyUnreachable, match=f"no proxy answers at {proxy.where}"):
        await hospital.connect(proxy.url, topology, timeout_s=1).__aenter__()
