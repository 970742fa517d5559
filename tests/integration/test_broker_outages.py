"""Brokers that are half there: short of memory, cut off mid-sentence, slow to notice, two nodes of three."""

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager

import pytest

from hubbub.errors import TransportError
from hubbub.ids import Role
from hubbub.transport.base import ACK, Delivery, Verdict
from hubbub.transport.rabbitmq import declare_topology
from hubbub.transport.topology import inbox, topology_for
from support.aio import until
from support.broker import declared
from support.private_node import PrivateNode
from support.thorough import part_of
from support.twins import (
    Recorder,
    SteadyPublisher,
    address_of,
    behind_proxy,
    listening_for,
    new_party,
    open_transport,
)

pytestmark = pytest.mark.broker

HIGH_WATERMARK = "0.4"
"""The share of memory from which RabbitMQ takes no more, unless told otherwise."""


# Short of memory ----------------------------------------------------------------------------------------


@asynccontextmanager
async def memory_alarm(node: PrivateNode) -> AsyncIterator[None]:
    """Let the node believe that it has no memory left."""
    await asyncio.to_thread(node.ctl, "set_vm_memory_high_watermark", "0.0000001")
    try:
        yield
    finally:
        await asyncio.to_thread(node.ctl, "set_vm_memory_high_watermark", HIGH_WATERMARK)


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


async def test_blocked_publish_fails_when_its_time_is_up_and_the_end_of_the_alarm_is_noticed(
    private_node: PrivateNode,
) -> None:
    party, recorder = new_party(), Recorder()
    topology = topology_for(party, Role.AGGREGATOR)
    await declare_topology(private_node.url, topology)

    async with open_transport(private_node.url, topology, publish_timeout_s=1) as transport:
        await transport.subscribe(inbox(party), recorder)
        before = transport.condition.blocked
        async with memory_alarm(private_node):
            with pytest.raises(TransportError, match="short of memory or disk"):
                await transport.publish(address_of(party), b"too early")
            during = transport.condition.blocked
        await until(lambda: not transport.condition.blocked)
        await transport.publish(address_of(party), b"in time")
        await recorder.wait_for_all({b"in time"})

    assert (before, during) == (False, True)


# Cut off mid-sentence -----------------------------------------------------------------------------------


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


async def test_addresses_where_nobody_listens_or_that_refuse_are_passed_over(
    amqp_url: str, private_node: PrivateNode
) -> None:
    party, recorder = new_party(), Recorder()
    topology = topology_for(party, Role.AGGREGATOR)
    with socket.create_server(("127.0.0.1", 0)) as server:
        unused = f"amqp://guest:guest@127.0.0.1:{server.getsockname()[1]}/"

    # Only the last of the brokers knows this party.
    async with (
        declared(amqp_url, topology),
        open_transport(f"{unused},{private_node.url},{amqp_url}", topology) as transport,
    ):
        await transport.subscribe(inbox(party), recorder)
        await transport.publish(address_of(party), b"")
        await recorder.wait_for(1)


# Two of three -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def three_nodes(rabbitmq_server: None) -> Iterator[list[PrivateNode]]:
    """Nodes that are one broker: they find each other when they start, because each is told the names of all."""
    del rabbitmq_server
    with ExitStack() as stack:
        seed = PrivateNode()
        nodes = [seed, *(PrivateNode(seed=seed) for _ in range(2))]
        for number, node in enumerate(nodes, start=1):
            # Closed in reverse, the seed last: the others need its port mapper.
            stack.callback(node.close)
            for each in nodes:
                each.configure(f"cluster_formation.classic_config.nodes.{number} = {node.name}")
            node.configure(
                "cluster_formation.peer_discovery_backend = classic_config",
                "cluster_formation.randomized_startup_delay_range.min = 0",
                "cluster_formation.randomized_startup_delay_range.max = 0",
            )
        for node in nodes:
            node.launch()
        for node in nodes:
            node.wait_until_it_serves()
        seed.ctl("await_online_nodes", str(len(nodes)))
        yield nodes


@pytest.fixture
def cluster(three_nodes: list[PrivateNode]) -> list[PrivateNode]:
    """All three nodes, whatever the test before did to them."""
    for node in three_nodes:
        if not node.is_running:
            node.start()
    return three_nodes


def find_leader(node: PrivateNode, queue: str) -> str:
    """Name the node that leads a replicated queue."""
    lines = node.ctl("-q", "--no-table-headers", "list_queues", "name", "leader").splitlines()
    return dict(line.split() for line in lines)[queue]


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
async def test_nothing_confirmed_is_lost_with_one_node_of_a_cluster(
    cluster: list[PrivateNode], connected: int, leader: int, killed: int
) -> None:
    party, recorder = new_party(), Recorder()
    topology = topology_for(party, Role.AGGREGATOR)
    # A queue is led by the node at which it is declared.
    await declare_topology(cluster[leader].url, topology)
    led_by = await asyncio.to_thread(find_leader, cluster[0], inbox(party))
    urls = ",".join(cluster[(connected + step) % 3].url for step in range(3))

    async with open_transport(urls, topology) as sender, open_transport(urls, topology) as receiver:
        await receiver.subscribe(inbox(party), recorder)
        publisher = SteadyPublisher(sender, party, series=3)
        await recorder.wait_for(40)
        await asyncio.to_thread(cluster[killed].kill)
        at_death = len(publisher.confirmed)
        # With one node gone, messages that were sent since arrive.
        await recorder.wait_for(len(recorder.deliveries) + at_death + 40)
        await publisher.stop()
        await recorder.wait_for_all(publisher.confirmed)

    assert led_by == cluster[leader].name
    assert len(publisher.confirmed) > at_death
