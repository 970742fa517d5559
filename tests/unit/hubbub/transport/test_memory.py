"""The in-memory twin beyond the contract: faults on request, no copies, a fixed order."""

import asyncio
from contextlib import closing
from pathlib import Path

import pytest

from hubbub.errors import StorageFailed
from hubbub.ids import PartyId, Role
from hubbub.store.message_file import MessageFile
from hubbub.transport.base import ACK, Delivery, Verdict, reject
from hubbub.transport.memory import MemoryBroker, MemoryTransport
from hubbub.transport.topology import inbox, route, topology_for
from support.twins import Recorder

ANNA = PartyId("anna")
ADDRESS = route(Role.CLIENT, Role.AGGREGATOR, ANNA)
TOPOLOGY = topology_for(ANNA, Role.AGGREGATOR)


async def test_a_refused_message_is_sent_again_and_a_lost_confirmation_makes_it_come_twice() -> None:
    body, broker, recorder = bytes(2**20), MemoryBroker(), Recorder()
    broker.refuse_next(3)
    broker.lose_next_confirmation()

    async with MemoryTransport(broker, TOPOLOGY, publish_timeout_s=5) as transport:
        await transport.subscribe(inbox(ANNA), recorder)
        await transport.publish(ADDRESS, body)
        await recorder.wait_for(2)

    # Neither is marked: the broker knows of two messages.
    assert recorder.deliveries == [Delivery(body, redelivered=False)] * 2
    assert recorder.bodies[0] is body, "it is handed on without a copy"


async def test_what_waits_in_a_file_is_there_for_the_next_broker_and_what_was_settled_is_not(
    tmp_path: Path,
) -> None:
    file, handled, dead = MessageFile(tmp_path / "messages.sqlite"), asyncio.Event(), asyncio.Event()

    async def judge(delivery: Delivery) -> Verdict:
        if delivery.body == b"third":
            handled.set()
            await dead.wait()
        return reject("bad") if delivery.body == b"second" else ACK

    async with MemoryTransport(MemoryBroker(file), TOPOLOGY) as transport:
        await transport.subscribe(inbox(ANNA), judge)
        for body in (b"first", b"second", b"third", b"fourth"):
            await transport.publish(ADDRESS, body)
        await handled.wait()
        # The process dies here: its broker is never asked again.
        file.close()
        with pytest.raises(StorageFailed):
            await transport.publish(ADDRESS, b"fifth")
        dead.set()

    recorder = Recorder()
    with closing(MessageFile(tmp_path / "messages.sqlite")) as again:
        async with MemoryTransport(MemoryBroker(again), TOPOLOGY) as transport:
            await transport.subscribe(inbox(ANNA), recorder)
            await recorder.wait_for(2)
        waiting = again.read(inbox(ANNA))

    assert recorder.bodies == [b"third", b"fourth"]
    assert waiting == []


async def test_broker_short_of_memory_delivers_and_takes_nothing() -> None:
    broker, recorder = MemoryBroker(), Recorder()

    async with MemoryTransport(broker, TOPOLOGY) as transport:
        await transport.publish(ADDRESS, b"before")
        broker.block()
        blocked = transport.condition.blocked
        publishing = asyncio.create_task(transport.publish(ADDRESS, b"after"))
        await transport.subscribe(inbox(ANNA), recorder)
        await recorder.wait_for(1)
        waited = not publishing.done()
        broker.unblock()
        await publishing
        await recorder.wait_for(2)

        assert (blocked, waited, transport.condition.blocked) == (True, True, False)
    assert recorder.bodies == [b"before", b"after"]


async def test_sender_in_a_loop_lets_others_receive() -> None:
    broker, most_waiting = MemoryBroker(), 0

    async def handle(_: Delivery) -> Verdict:
        return ACK

    async with MemoryTransport(broker, TOPOLOGY) as transport:
        await transport.subscribe(inbox(ANNA), handle, prefetch=1)
        for _ in range(100):
            await transport.publish(ADDRESS, b"")
            most_waiting = max(most_waiting, broker.waiting_in(inbox(ANNA)))

    assert most_waiting < 10
