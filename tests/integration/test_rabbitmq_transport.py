"""Things that only a real RabbitMQ can show: its death, its silence, its refusals."""

import asyncio
import socket
from contextlib import suppress
from dataclasses import replace
from urllib.parse import urlsplit

import pytest

from hubbub.errors import BrokerRefused, BrokerUnreachable, TransportError
from hubbub.ids import Role
from hubbub.transport.base import ACK, Delivery, Verdict
from hubbub.transport.rabbitmq import RabbitMqTransport, declare_topology, remove_topology
from hubbub.transport.topology import Topology, dead_letter_exchange, dead_letter_queue, inbox, topology_for
from support.private_node import PrivateNode
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


async def test_nothing_confirmed_is_lost_when_the_broker_is_killed_and_restarted(
    private_node: PrivateNode,
) -> None:
    party, recorder = new_party(), Recorder()
    topology = topology_for(party, Role.AGGREGATOR)
    await declare_topology(private_node.url, topology)

    async with (
        open_transport(private_node.url, topology) as sender,
        open_transport(private_node.url, topology) as receiver,
    ):
        await receiver.subscribe(inbox(party), recorder)
        publisher = SteadyPublisher(sender, party, series=4)
        await recorder.wait_for(40)
        # This test is about messages in a queue that exists.
        await asyncio.to_thread(private_node.settle)
        await asyncio.to_thread(private_node.kill)
        at_death = len(publisher.confirmed)
        await asyncio.to_thread(private_node.start)
        # The same consumer goes on, with messages sent after the restart.
        await recorder.wait_for(len(recorder.deliveries) + at_death + 40)
        await publisher.stop()
        await recorder.wait_for_all(publisher.confirmed)

    assert len(publisher.confirmed) > at_death


@pytest.mark.parametrize("missing", ["queue", "exchange"])
async def test_what_is_missing_at_the_broker_is_named_and_nothing_is_declared(amqp_url: str, missing: str) -> None:
    party = new_party()
    topology = topology_for(party, Role.AGGREGATOR)
    name = {"queue": dead_letter_queue(party), "exchange": dead_letter_exchange(party)}[missing]
    exchanges = tuple(each for each in topology.exchanges if each != name)
    await declare_topology(amqp_url, replace(topology, exchanges=exchanges, queues=(), bindings=()))

    try:
        # The second time shows that the first declared nothing.
        for _ in range(2):
            with pytest.raises(BrokerRefused, match=f"no {missing} '{name}'.*hubbub roster broker-config"):
                async with open_transport(amqp_url, topology):
                    pass
    finally:
        await remove_topology(amqp_url, topology)


async def test_publish_and_consumer_survive_a_peer_that_falls_silent(amqp_url: str) -> None:
    party, recorder, holding, release = new_party(), Recorder(), asyncio.Event(), asyncio.Event()
    topology = topology_for(party, Role.AGGREGATOR)

    async def hold_the_first(delivery: Delivery) -> Verdict:
        if not holding.is_set():
            holding.set()
            await release.wait()
            return ACK
        return await recorder(delivery)

    async with behind_proxy(amqp_url, topology) as (proxy, url), open_transport(url, topology) as transport:
        await transport.subscribe(inbox(party), hold_the_first)
        await transport.publish(address_of(party), b"first")
        await holding.wait()
        proxy.stall()
        publishing = asyncio.create_task(transport.publish(address_of(party), b"second"))
        # aiormq gives a peer up after three heartbeats and a bit: 6 s here. There were two before.
        await proxy.wait_for_connections(3)
        still_trying = not publishing.done()
        proxy.flow()
        release.set()
        await publishing
        await recorder.wait_for_all({b"first", b"second"})

    assert still_trying


async def test_consumer_comes_back_when_its_queue_was_deleted_and_declared_again(amqp_url: str) -> None:
    """An operator may have to declare it more than once.

    RabbitMQ 3.10 goes on removing a queue after it has said that the queue is gone, and under load takes one
    that was declared meanwhile, with what was confirmed in it, for its predecessor.
    """
    party, recorder = new_party(), Recorder()
    topology = topology_for(party, Role.AGGREGATOR)
    (queue,) = (replace(spec, dead_letters=None) for spec in topology.queues if spec.name == inbox(party))
    await declare_topology(amqp_url, topology)

    with listening_for("ended") as ended:
        async with open_transport(amqp_url, topology) as transport:
            await transport.subscribe(inbox(party), recorder)
            await remove_topology(amqp_url, Topology(exchanges=(), queues=(queue,), bindings=()))
            await ended.wait()
            while not recorder.bodies:
                await declare_topology(amqp_url, topology)
                with suppress(TimeoutError, TransportError):
                    async with asyncio.timeout(5):
                        await transport.publish(address_of(party), b"back")
                        await recorder.wait_for(1)
    await remove_topology(amqp_url, topology)

    assert set(recorder.bodies) == {b"back"}


@pytest.mark.parametrize("what", ["password", "virtual host"])
async def test_wrong_credentials_or_virtual_host_are_refused_at_once(amqp_url: str, what: str) -> None:
    parts = urlsplit(amqp_url)
    wrong = {
        "password": parts._replace(netloc=f"guest:sesame@{parts.hostname}:{parts.port}").geturl(),
        "virtual host": parts._replace(path="/no-such-host").geturl(),
    }

    with pytest.raises(BrokerRefused, match="password and virtual host") as refusal:
        async with open_transport(wrong[what], topology_for(new_party(), Role.CLIENT)):
            pass

    assert f"{parts.hostname}:{parts.port}" in str(refusal.value)
    assert "sesame" not in str(refusal.value)


@pytest.mark.parametrize("listens", [True, False])
async def test_address_where_nobody_listens_or_that_says_nothing_is_unreachable(*, listens: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        if not listens:
            server.close()

        with pytest.raises(BrokerUnreachable, match=f"127.0.0.1:{port}") as failure:
            async with RabbitMqTransport(
                f"amqp://guest:sesame@127.0.0.1:{port}/",
                topology_for(new_party(), Role.CLIENT),
                connect_timeout_s=0.5,
                reconnect_interval_s=0.1,
            ):
                pass

    assert "sesame" not in str(failure.value)
    assert listens or "firewall" in str(failure.value)
