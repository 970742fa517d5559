"""Brokers that are half there: short of memory, cut off mid-sentence, slow to notice, two nodes of three."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import pytest

from hubbub.errors import TransportError
from hubbub.ids import PartyId, Role
from hubbub.transport.base import ACK, Address, Delivery, Verdict
from hubbub.transport.rabbitmq import RabbitMqTransport, declare_topology
from hubbub.transport.topology import Topology, inbox, route, topology_for
from support.aio import aio, until
from support.broker import declared
from support.cluster import Cluster
from support.fault_proxy import FaultProxy
from support.private_node import PrivateNode, server_scripts
from support.thorough import part_of
from support.twins import PAUSE, Recorder, listening_for, new_party

pytestmark = pytest.mark.broker

HIGH_WATERMARK = "0.4"
"""The share of memory from which RabbitMQ takes no more, unless told otherwise."""


def address_of(party: PartyId) -> Address:
    return route(Role.CLIENT, Role.AGGREGATOR, party)


def open_transport(
    url: str, topology: Topology, *, publish_timeout_s: float = 50, heartbeat_s: int = 1
) -> RabbitMqTransport:
    return RabbitMqTransport(
        url,
        topology,
        heartbeat_s=heartbeat_s,
        connect_timeout_s=10,
        publish_timeout_s=publish_timeout_s,
        confirm_timeout_s=2,
        reconnect_interval_s=0.1,
        retry_pause=PAUSE,
    )


# Short of memory ----------------------------------------------------------------------------------------


@asynccontextmanager
async def memory_alarm(node: PrivateNode) -> AsyncIterator[None]:
    """Let the node believe that it has no memory left."""
    await asyncio.to_thread(node.ctl, "set_vm_memory_high_watermark", "0.0000001")
    try:
        yield
    finally:
        await asyncio.to_thread(node.ctl, "set_vm_memory_high_watermark", HIGH_WATERMARK)


@aio
async def test_blocked_publish_waits_while_consuming_goes_on_and_then_goes_through_once(
    private_node: PrivateNode,
) -> None:
    party, recorder, release = new_party(), Recorder(), asyncio.Event()
    topology, waiting = topology_for(party, Role.AGGREGATOR), [b"%d" % number for number in range(30)]
    await declare_topology(private_node.url, topology)

    async def hold(delivery: Delivery) -> Verdict:
        await release.wait()
        return await recorder(delivery)

    async with open_transport(private_node.url, topology) as transport:
        for body in waiting:
            await transport.publish(address_of(party), body)
        await transport.subscribe(inbox(party), hold, prefetch=2)
        with listening_for("has blocked us") as blocked, listening_for("does not block us") as unblocked:
            async with memory_alarm(private_node):
                publishing = asyncio.create_task(transport.publish(address_of(party), b"late"))
                await blocked.wait()
                release.set()
                # More than the prefetch: acknowledgements are heard.
                await recorder.wait_for(len(waiting))
                # Longer than a confirmation is waited for where nobody is blocked.
                await asyncio.wait({publishing}, timeout=3)
                waited = not publishing.done()
                told = transport.condition.blocked
            await publishing
            await transport.publish(address_of(party), b"marker")
            await unblocked.wait()
            told_again = transport.condition.blocked
        await recorder.wait_for_all({b"marker"})

    assert waited
    assert (told, told_again) == (True, False)
    # Nothing was sent again while the broker did not listen.
    assert recorder.bodies == [*waiting, b"late", b"marker"]


@aio
async def test_blocked_publish_fails_when_its_time_is_up_and_later_works_again(private_node: PrivateNode) -> None:
    party, recorder = new_party(), Recorder()
    topology = topology_for(party, Role.AGGREGATOR)
    await declare_topology(private_node.url, topology)

    async with open_transport(private_node.url, topology, publish_timeout_s=1) as transport:
        await transport.subscribe(inbox(party), recorder)
        async with memory_alarm(private_node):
            with pytest.raises(TransportError, match="short of memory or disk"):
                await transport.publish(address_of(party), b"too early")
        while True:
            try:
                await transport.publish(address_of(party), b"in time")
            except TransportError:
                continue
            break
        await recorder.wait_for_all({b"in time"})


@aio
async def test_the_end_of_an_alarm_is_noticed_while_nothing_is_sent(private_node: PrivateNode) -> None:
    party = new_party()
    topology = topology_for(party, Role.AGGREGATOR)
    await declare_topology(private_node.url, topology)

    async with open_transport(private_node.url, topology, publish_timeout_s=1) as transport:
        before = transport.condition.blocked
        async with memory_alarm(private_node):
            with pytest.raises(TransportError, match="short of memory or disk"):
                await transport.publish(address_of(party), b"too early")
            during = transport.condition.blocked
        await until(lambda: not transport.condition.blocked)

    assert (before, during) == (False, True)


# Cut off mid-sentence -----------------------------------------------------------------------------------


@asynccontextmanager
async def behind_proxy(url: str, topology: Topology) -> AsyncIterator[tuple[FaultProxy, str]]:
    """Have a topology at the broker, and a way there that can be disturbed."""
    parts = urlsplit(url)
    async with declared(url, topology), FaultProxy(parts.hostname or "", parts.port or 5672) as proxy:
        yield proxy, parts._replace(netloc=f"{parts.netloc.rpartition('@')[0]}@127.0.0.1:{proxy.port}").geturl()


@aio
async def test_publish_survives_a_stall_in_the_middle_of_its_message(amqp_url: str) -> None:
    party, recorder, body = new_party(), Recorder(), bytes(range(256)) * 2**14
    topology = topology_for(party, Role.AGGREGATOR)

    async with behind_proxy(amqp_url, topology) as (proxy, url), open_transport(url, topology) as transport:
        # Opens the channel, so that only the message itself remains to be sent.
        await transport.publish(address_of(party), b"before")
        proxy.stall_after(len(body) // 2)
        publishing = asyncio.create_task(transport.publish(address_of(party), body))
        await proxy.wait_for_stall()
        # There were two before.
        await proxy.wait_for_connections(3)
        proxy.flow()
        await publishing
        await transport.subscribe(inbox(party), recorder)
        await recorder.wait_for_all({b"before", body})


@aio
async def test_publish_that_is_cut_before_its_confirmation_is_sent_again(amqp_url: str) -> None:
    party, recorder = new_party(), Recorder()
    topology = topology_for(party, Role.AGGREGATOR)

    async with (
        behind_proxy(amqp_url, topology) as (proxy, url),
        open_transport(url, topology) as sender,
        open_transport(amqp_url, topology) as receiver,
    ):
        await receiver.subscribe(inbox(party), recorder)
        await sender.publish(address_of(party), b"before")
        await recorder.wait_for(1)
        proxy.hold_answers()
        publishing = asyncio.create_task(sender.publish(address_of(party), b"taken, not confirmed"))
        await recorder.wait_for(2)
        unconfirmed = not publishing.done()
        proxy.cut()
        proxy.flow()
        await publishing
        await recorder.wait_for(3)

    assert unconfirmed
    assert recorder.bodies[1:] == [b"taken, not confirmed"] * 2


# Too slow to notice -------------------------------------------------------------------------------------


@aio
async def test_consumer_comes_back_while_the_broker_still_believes_in_its_lost_connection(amqp_url: str) -> None:
    party, recorder = new_party(), Recorder()
    topology = topology_for(party, Role.AGGREGATOR)

    async with behind_proxy(amqp_url, topology) as (proxy, url), open_transport(url, topology) as transport:
        await transport.subscribe(inbox(party), recorder)
        await transport.publish(address_of(party), b"before")
        await recorder.wait_for(1)
        with listening_for("standing by") as standing_by:
            proxy.abandon()
            await standing_by.wait()
            await transport.publish(address_of(party), b"after")
            await recorder.wait_for_all({b"after"})


@aio
async def test_new_instance_is_let_in_when_the_broker_notices_that_the_old_one_is_gone(amqp_url: str) -> None:
    party, holding, recorder = new_party(), asyncio.Event(), Recorder()
    topology = topology_for(party, Role.AGGREGATOR)

    async def never_finishes(_: Delivery) -> Verdict:
        holding.set()
        await asyncio.Event().wait()
        return ACK

    async with behind_proxy(amqp_url, topology) as (proxy, url), open_transport(amqp_url, topology) as new:
        old = open_transport(url, topology)
        await old.__aenter__()
        await old.subscribe(inbox(party), never_finishes)
        await new.publish(address_of(party), b"work")
        await holding.wait()
        with listening_for("is consumed by somebody else") as waiting:
            # A machine that loses its power says nothing.
            proxy.stall()
            await new.subscribe(inbox(party), recorder)
            await recorder.wait_for(1)
            waited = waiting.is_set()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await old.close()

    assert waited
    assert recorder.deliveries == [Delivery(b"work", redelivered=True)]


# Several addresses --------------------------------------------------------------------------------------


@aio
async def test_address_where_nobody_listens_is_passed_over(amqp_url: str, unused_address: str) -> None:
    topology = topology_for(new_party(), Role.AGGREGATOR)

    async with declared(amqp_url, topology), open_transport(f"{unused_address},{amqp_url}", topology):
        pass


@aio
async def test_address_that_refuses_is_passed_over_if_another_takes_us(
    amqp_url: str, private_node: PrivateNode
) -> None:
    party, recorder = new_party(), Recorder()
    topology = topology_for(party, Role.AGGREGATOR)

    # Only one of the two brokers knows this party.
    async with (
        declared(amqp_url, topology),
        open_transport(f"{private_node.url},{amqp_url}", topology) as transport,
    ):
        await transport.subscribe(inbox(party), recorder)
        await transport.publish(address_of(party), b"")
        await recorder.wait_for(1)


@pytest.fixture
def unused_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"amqp://guest:guest@127.0.0.1:{server.getsockname()[1]}/"


# Two of three -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def three_nodes(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    if server_scripts() is None:
        # Installs one, or says what to do.
        request.getfixturevalue("private_node")
    with Cluster() as nodes:
        yield nodes


@pytest.fixture
def cluster(three_nodes: Cluster) -> Cluster:
    """All three nodes, whatever the test before did to them."""
    three_nodes.mend()
    return three_nodes


@pytest.mark.parametrize(
    ("connected", "leader", "killed"),
    part_of(
        [
            pytest.param(0, 1, 0, id="the one that we are connected to"),
            pytest.param(2, 1, 1, id="the leader of the queue"),
            pytest.param(2, 2, 2, id="both"),
        ],
        2,
    ),
)
@aio
async def test_nothing_confirmed_is_lost_with_one_node_of_a_cluster(
    cluster: Cluster, connected: int, leader: int, killed: int
) -> None:
    party, recorder, confirmed, stop = new_party(), Recorder(), set[bytes](), asyncio.Event()
    topology = topology_for(party, Role.AGGREGATOR)
    # A queue is led by the node at which it is declared.
    await declare_topology(cluster.nodes[leader].url, topology)
    led_by = await asyncio.to_thread(cluster.leader_of, inbox(party))
    urls = cluster.urls(connected, (connected + 1) % 3, (connected + 2) % 3)

    async def publish_until_told(sender: RabbitMqTransport, name: int) -> None:
        number = 0
        while not stop.is_set():
            body = b"%d:%d" % (name, number)
            await sender.publish(address_of(party), body)
            confirmed.add(body)
            number += 1

    async with open_transport(urls, topology) as sender, open_transport(urls, topology) as receiver:
        await receiver.subscribe(inbox(party), recorder)
        publishing = [asyncio.create_task(publish_until_told(sender, name)) for name in range(3)]
        await recorder.wait_for(40)
        await asyncio.to_thread(cluster.nodes[killed].kill)
        at_death = len(confirmed)
        # With one node gone, messages that were sent since arrive.
        await recorder.wait_for(len(recorder.deliveries) + at_death + 40)
        stop.set()
        await asyncio.gather(*publishing)
        await recorder.wait_for_all(confirmed)

    assert led_by is cluster.nodes[leader]
    assert len(confirmed) > at_death
