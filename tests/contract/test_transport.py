"""What every transport promises (see `hubbub.transport.base`), checked on both twins."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from itertools import pairwise

import pytest

from hubbub.errors import (
    BrokerRefused,
    BrokerUnreachable,
    ConfigurationError,
    LocalError,
    TransportError,
    Unroutable,
)
from hubbub.ids import PartyId, Role
from hubbub.transport import base
from hubbub.transport.base import (
    ACK,
    MAX_BODY_BYTES,
    RETRY,
    Address,
    Delivery,
    Handler,
    Transport,
    Verdict,
    reject,
)
from hubbub.transport.topology import (
    Overflow,
    Topology,
    dead_letter_queue,
    inbox,
    merge,
    orders_queue,
    received_from,
    route,
    topology_for,
)
from support.patience import HANG_S
from support.twins import MemoryTwin, RabbitTwin, Recorder, Twin, limited, new_party


@pytest.fixture(params=["memory", pytest.param("rabbitmq", marks=pytest.mark.broker)])
def twin(request: pytest.FixtureRequest) -> Twin:
    if request.param == "memory":
        return MemoryTwin()
    return RabbitTwin(request.getfixturevalue("amqp_url"))


class Bench:
    """One aggregator's inbox and any number of transports on it."""

    def __init__(self, twin: Twin, stack: AsyncExitStack) -> None:
        self.twin = twin
        self.party: PartyId = new_party()
        self.inbox = inbox(self.party)
        self.address: Address = route(Role.CLIENT, Role.AGGREGATOR, self.party)
        self.topology: Topology = topology_for(self.party, Role.AGGREGATOR)
        self._stack = stack

    async def connect(self, *, connect_timeout_s: float = 10.0, publish_timeout_s: float = 20.0) -> Transport:
        await self.twin.declare(self.topology)
        transport = self.twin.transport(self.topology, connect_timeout_s, publish_timeout_s)
        return await self._stack.enter_async_context(transport)

    async def publish_all(self, transport: Transport, bodies: list[bytes]) -> None:
        for body in bodies:
            await transport.publish(self.address, body)

    async def dead_reasons(self) -> list[tuple[bytes, str, str]]:
        dead = await self.twin.dead_letters(self.topology, dead_letter_queue(self.party))
        return [(letter.body, letter.queue, letter.reason) for letter in dead]


def on_bench(test: Callable[[Bench], Awaitable[None]]) -> Callable[[Twin], Awaitable[None]]:
    async def run(twin: Twin) -> None:
        async with twin, AsyncExitStack() as stack:
            await test(Bench(twin, stack))

    run.__name__ = test.__name__
    return run


def numbered(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    while not await condition():  # noqa: ASYNC110  (the broker raises no event that we could wait for)
        await asyncio.sleep(0.02)


def dying_handler(holding: asyncio.Event) -> Handler:
    """A handler that says when it is called, and then nothing more."""

    async def never_finishes(_: Delivery) -> Verdict:
        holding.set()
        await asyncio.Event().wait()
        return ACK

    return never_finishes


@on_bench
async def test_message_arrives_as_it_was_sent(bench: Bench) -> None:
    transport, recorder = await bench.connect(), Recorder()
    await transport.subscribe(bench.inbox, recorder)
    body = bytes(range(256)) * 4096

    await transport.publish(bench.address, body)
    await transport.publish(bench.address, b"")
    await recorder.wait_for(2)

    assert recorder.deliveries == [Delivery(body, redelivered=False), Delivery(b"", redelivered=False)]


@on_bench
async def test_message_published_before_anybody_subscribes_waits(bench: Bench) -> None:
    sender, recorder = await bench.connect(), Recorder()
    await sender.publish(bench.address, b"early")
    await sender.close()

    receiver = await bench.connect()
    await receiver.subscribe(bench.inbox, recorder)
    await recorder.wait_for(1)

    assert recorder.bodies == [b"early"]


@on_bench
async def test_order_per_sender_is_kept(bench: Bench) -> None:
    receiver, recorder = await bench.connect(), Recorder()
    senders = [await bench.connect() for _ in range(3)]
    await receiver.subscribe(bench.inbox, recorder, prefetch=3)
    sent = [[b"%d:%d" % (sender, number) for number in range(20)] for sender in range(3)]

    await asyncio.gather(
        *(bench.publish_all(*pair) for pair in zip(senders, sent, strict=True)),
    )
    await recorder.wait_for(60)

    for sender in range(3):
        assert [body for body in recorder.bodies if body.startswith(b"%d:" % sender)] == sent[sender]


@on_bench
async def test_handler_is_given_one_delivery_at_a_time(bench: Bench) -> None:
    transport = await bench.connect()
    running, most, done = 0, 0, asyncio.Semaphore(0)

    async def handle(_: Delivery) -> Verdict:
        nonlocal running, most
        running += 1
        most = max(most, running)
        for _turn in range(5):
            await asyncio.sleep(0)
        running -= 1
        done.release()
        return ACK

    await transport.subscribe(bench.inbox, handle, prefetch=8)
    await bench.publish_all(transport, numbered(10))
    for _ in range(10):
        await done.acquire()

    assert most == 1


@on_bench
async def test_acknowledged_message_does_not_come_again(bench: Bench) -> None:
    first, recorder = await bench.connect(), Recorder()
    await first.subscribe(bench.inbox, recorder)
    await bench.publish_all(first, numbered(3))
    await recorder.wait_for(3)
    await first.close()

    second, again = await bench.connect(), Recorder()
    await second.subscribe(bench.inbox, again)
    await second.publish(bench.address, b"marker")
    await again.wait_for(1)

    assert again.bodies == [b"marker"]


@on_bench
async def test_retried_message_comes_again_marked_while_others_pass(bench: Bench) -> None:
    transport, recorder = await bench.connect(), Recorder(RETRY)
    await transport.subscribe(bench.inbox, recorder)

    await bench.publish_all(transport, [b"retried", b"other"])
    await recorder.wait_for(3)

    assert recorder.deliveries == [
        Delivery(b"retried", redelivered=False),
        Delivery(b"other", redelivered=False),
        Delivery(b"retried", redelivered=True),
    ]


@on_bench
async def test_retrying_pauses_longer_each_time(bench: Bench) -> None:
    transport = await bench.connect()
    loop, times, enough = asyncio.get_running_loop(), list[float](), asyncio.Event()

    async def handle(_: Delivery) -> Verdict:
        times.append(loop.time())
        if len(times) < 4:
            return RETRY
        enough.set()
        return ACK

    await transport.subscribe(bench.inbox, handle)
    await transport.publish(bench.address, b"stubborn")
    await enough.wait()

    # The twins' pauses are 0.05, 0.1, 0.2; the loop's clock may round down by a little.
    pauses = [late - early for early, late in pairwise(times)]
    assert [pause >= least for pause, least in zip(pauses, (0.045, 0.095, 0.195), strict=True)] == [True] * 3


@on_bench
async def test_handler_that_raises_is_retried_and_stays_subscribed(bench: Bench) -> None:
    transport = await bench.connect()
    recorder = Recorder(ValueError("a bug"))
    await transport.subscribe(bench.inbox, recorder)

    await bench.publish_all(transport, [b"poison", b"fine"])
    await recorder.wait_for(3)

    assert sorted(recorder.bodies) == [b"fine", b"poison", b"poison"]
    assert await bench.dead_reasons() == []


@on_bench
async def test_cancelled_wait_inside_a_handler_does_not_end_the_subscription(bench: Bench) -> None:
    transport, recorder = await bench.connect(), Recorder()
    cancelled: list[bytes] = []

    async def handle(delivery: Delivery) -> Verdict:
        if not cancelled:
            cancelled.append(delivery.body)
            raise asyncio.CancelledError
        return await recorder(delivery)

    await transport.subscribe(bench.inbox, handle)
    await transport.publish(bench.address, b"again")
    await recorder.wait_for(1)

    assert recorder.deliveries == [Delivery(b"again", redelivered=True)]


@on_bench
async def test_rejected_message_goes_to_the_dead_letters_with_its_reason(bench: Bench) -> None:
    transport, recorder = await bench.connect(), Recorder(reject("wrong-length"))
    await transport.subscribe(bench.inbox, recorder)

    await bench.publish_all(transport, [b"bad", b"good"])
    await recorder.wait_for(2)
    await transport.close()

    assert recorder.bodies == [b"bad", b"good"]
    assert await bench.dead_reasons() == [(b"bad", bench.inbox, "wrong-length")]


@on_bench
async def test_delivery_says_which_user_of_the_broker_published_it(bench: Bench) -> None:
    transport, recorder = await bench.connect(), Recorder()
    await transport.subscribe(bench.inbox, recorder)

    await transport.publish(bench.address, b"signed or not")
    await recorder.wait_for(1)

    assert [delivery.user for delivery in recorder.deliveries] == [bench.twin.user_of(bench.topology)]


@on_bench
async def test_rejected_messages_that_are_too_large_to_be_put_aside_hold_nothing_up(bench: Bench) -> None:
    """Twice as many as the prefetch: before they were dropped they came again and again, and nothing else did."""
    transport, recorder = await bench.connect(), Recorder(*[reject("oversized")] * 16)
    await bench.publish_all(transport, [bytes(1_001)] * 16)
    await transport.publish(bench.address, b"an order")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(base, "MAX_BODY_BYTES", 1_000)
        await transport.subscribe(bench.inbox, recorder, prefetch=8)
        async with asyncio.timeout(HANG_S):
            await recorder.wait_for(17)
        await transport.close()

    assert recorder.bodies == [*[bytes(1_001)] * 16, b"an order"]
    assert await bench.dead_reasons() == []


@on_bench
async def test_many_rejected_messages_are_all_put_aside_in_their_order(bench: Bench) -> None:
    bodies = numbered(90)
    transport, recorder = await bench.connect(), Recorder(*[reject("malformed")] * 90)
    await bench.publish_all(transport, bodies)
    await transport.subscribe(bench.inbox, recorder, prefetch=2)
    await recorder.wait_for(90)
    await transport.close()

    assert await bench.dead_reasons() == [(body, bench.inbox, "malformed") for body in bodies]


@on_bench
async def test_message_over_the_delivery_limit_goes_to_the_dead_letters(bench: Bench) -> None:
    bench.topology = limited(bench.party, delivery_limit=2)
    transport, recorder = await bench.connect(), Recorder(RETRY, RETRY, RETRY, RETRY)
    await transport.subscribe(bench.inbox, recorder)
    await transport.publish(bench.address, b"hopeless")

    async def is_dead() -> bool:
        return await bench.dead_reasons() == [(b"hopeless", bench.inbox, "delivery_limit")]

    await until(is_dead)

    assert len(recorder.bodies) == 3


@on_bench
async def test_message_that_nobody_lives_to_answer_goes_to_the_dead_letters(bench: Bench) -> None:
    bench.topology = limited(bench.party, delivery_limit=1)
    sender = await bench.connect()
    await sender.publish(bench.address, b"deadly")

    for _ in range(2):
        victim, holding = await bench.connect(), asyncio.Event()
        await victim.subscribe(bench.inbox, dying_handler(holding))
        await holding.wait()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await victim.close()
    survivor, recorder = await bench.connect(), Recorder()
    await survivor.subscribe(bench.inbox, recorder)
    await sender.publish(bench.address, b"harmless")
    await recorder.wait_for(1)

    async def is_dead() -> bool:
        return await bench.dead_reasons() == [(b"deadly", bench.inbox, "delivery_limit")]

    await until(is_dead)
    assert recorder.bodies == [b"harmless"]


@on_bench
async def test_unsettled_messages_come_again_in_order_when_a_consumer_closes(bench: Bench) -> None:
    first, second = await bench.connect(), await bench.connect()
    holding, recorder = asyncio.Event(), Recorder()

    await first.subscribe(bench.inbox, dying_handler(holding), prefetch=8)
    await bench.publish_all(first, numbered(3))
    await holding.wait()

    # A closing that is itself given up is as near as an orderly program comes to dying.
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await first.close()
    await second.subscribe(bench.inbox, recorder)
    await recorder.wait_for(3)

    assert recorder.bodies == numbered(3)
    assert recorder.deliveries[0].redelivered


@on_bench
async def test_no_more_than_prefetch_messages_leave_the_broker(bench: Bench) -> None:
    greedy, other, holding, recorder = await bench.connect(), await bench.connect(), asyncio.Event(), Recorder()

    await greedy.subscribe(bench.inbox, dying_handler(holding), prefetch=2)
    await bench.publish_all(greedy, numbered(6))
    await holding.wait()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await greedy.close()
    await other.subscribe(bench.inbox, recorder)
    await recorder.wait_for(6)

    # Those that had left the broker come again, and are marked.
    assert recorder.deliveries == [
        *(Delivery(body, redelivered=True) for body in numbered(6)[:2]),
        *(Delivery(body, redelivered=False) for body in numbered(6)[2:]),
    ]


@on_bench
async def test_second_consumer_of_a_queue_is_refused_while_the_first_is_there(bench: Bench) -> None:
    first, second, recorder = await bench.connect(), await bench.connect(), Recorder()
    await first.subscribe(bench.inbox, recorder)

    with pytest.raises(BrokerRefused, match=f"another instance of this party is running.*{bench.inbox}"):
        await second.subscribe(bench.inbox, Recorder())
    # Neither is harmed by it.
    await second.publish(bench.address, b"for the first")
    await recorder.wait_for(1)
    await first.close()
    await second.subscribe(bench.inbox, recorder)
    await second.publish(bench.address, b"for the second")
    await recorder.wait_for(2)

    assert recorder.bodies == [b"for the first", b"for the second"]


@on_bench
async def test_publish_to_a_full_queue_fails_when_its_time_is_up(bench: Bench) -> None:
    bench.topology = limited(bench.party, max_length=3)
    sender = await bench.connect(publish_timeout_s=0.3)

    # A replicated queue notices that it is full a little late.
    with pytest.raises(TransportError, match="full"):
        await bench.publish_all(sender, numbered(50))


@on_bench
async def test_publish_to_a_full_queue_goes_on_when_there_is_room(bench: Bench) -> None:
    bench.topology = limited(bench.party, max_length=3)
    sender, recorder = await bench.connect(), Recorder()

    publishing = asyncio.create_task(bench.publish_all(sender, numbered(30)))
    await asyncio.wait({publishing}, timeout=0.3)
    waited = not publishing.done()
    receiver = await bench.connect()
    await receiver.subscribe(bench.inbox, recorder)
    await publishing
    await recorder.wait_for(30)

    assert waited
    assert recorder.bodies == numbered(30)


@on_bench
async def test_a_flood_by_a_client_costs_a_peer_that_is_away_no_order_and_no_sum(bench: Bench) -> None:
    topology, queues = topology_for(bench.party, Role.CLIENT), received_from(bench.party, Role.CLIENT)
    short = (replace(spec, max_length=20) if spec.name in queues else spec for spec in topology.queues)
    bench.topology = replace(topology, queues=tuple(short))
    sender, recorder = await bench.connect(), Recorder()
    order, total = (route(role, Role.CLIENT, bench.party) for role in (Role.COORDINATOR, Role.AGGREGATOR))
    messages = [(order, b"order 1"), (total, b"sum 1"), (order, b"order 2"), (total, b"sum 2")]

    for address, body in messages[:2]:
        await sender.publish(address, body)
    for body in numbered(60):
        await sender.publish(route(Role.CLIENT, Role.CLIENT, bench.party), body)
    for address, body in messages[2:]:
        await sender.publish(address, body)
    for queue in queues:
        await sender.subscribe(queue, recorder)
    await recorder.wait_for(24)

    assert [body for body in recorder.bodies if body not in numbered(60)] == [body for _, body in messages]
    assert [body for body in recorder.bodies if body in numbered(60)] == numbered(60)[-20:]


@on_bench
async def test_orders_reach_an_aggregator_whose_inbox_is_full_and_held_up(bench: Bench) -> None:
    bench.topology = limited(bench.party, max_length=3)
    sender, holding, recorder = await bench.connect(publish_timeout_s=0.3), asyncio.Event(), Recorder()
    receiver = await bench.connect()
    await receiver.subscribe(bench.inbox, dying_handler(holding))
    await receiver.subscribe(orders_queue(bench.party), recorder)
    with pytest.raises(TransportError, match="full"):
        await bench.publish_all(sender, numbered(60))

    await receiver.publish(route(Role.COORDINATOR, Role.AGGREGATOR, bench.party), b"close the phase")
    await recorder.wait_for(1)

    assert recorder.bodies == [b"close the phase"]
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await receiver.close()


@on_bench
async def test_queue_that_drops_its_head_never_makes_a_sender_wait(bench: Bench) -> None:
    bench.topology = limited(bench.party, max_length=3, overflow=Overflow.DROP_HEAD)
    sender, recorder = await bench.connect(publish_timeout_s=5.0), Recorder()

    await bench.publish_all(sender, numbered(10))
    await sender.subscribe(bench.inbox, recorder)
    await recorder.wait_for(3)

    assert recorder.bodies == [b"7", b"8", b"9"]
    # What gives way was not rejected by anybody, and must not bury what was.
    assert await bench.dead_reasons() == []


@on_bench
async def test_queue_that_drops_its_head_is_limited_in_bytes_too(bench: Bench) -> None:
    bench.topology = limited(bench.party, max_bytes=2_500, overflow=Overflow.DROP_HEAD)
    sender, recorder = await bench.connect(publish_timeout_s=5.0), Recorder()

    await bench.publish_all(sender, [bytes([number]) * 1_000 for number in range(6)])
    await sender.subscribe(bench.inbox, recorder)
    await sender.publish(bench.address, b"last")
    await recorder.wait_for_all({b"last"})

    assert [body[:1] for body in recorder.bodies] == [b"\4", b"\5", b"l"]


@on_bench
async def test_message_that_no_queue_takes_is_reported(bench: Bench) -> None:
    transport = await bench.connect()

    with pytest.raises(Unroutable, match="nobody"):
        await transport.publish(replace(bench.address, routing_key="nobody"), b"")
    with pytest.raises(Unroutable, match=r"hubbub\.nowhere"):
        await transport.publish(Address("hubbub.nowhere", bench.party), b"")

    # Neither harms what is sent afterwards.
    await transport.publish(bench.address, b"")


@on_bench
async def test_oversized_body_is_refused(bench: Bench) -> None:
    transport = await bench.connect()

    with pytest.raises(TransportError, match="chunks"):
        await transport.publish(bench.address, bytes(MAX_BODY_BYTES + 1))


@on_bench
async def test_subscriptions_and_publishing_go_on_after_the_connection_is_cut(bench: Bench) -> None:
    transport, recorder = await bench.connect(), Recorder()
    await transport.subscribe(bench.inbox, recorder)
    await transport.publish(bench.address, b"before")
    await recorder.wait_for(1)

    for round_ in range(3):
        await bench.twin.cut()
        await transport.publish(bench.address, b"after %d" % round_)

    await recorder.wait_for_all({b"before", b"after 0", b"after 1", b"after 2"})


@on_bench
async def test_cut_does_not_disturb_a_running_handler_and_its_message_comes_again(bench: Bench) -> None:
    transport, recorder = await bench.connect(), Recorder()
    holding, release, finished = asyncio.Event(), asyncio.Event(), list[bytes]()

    async def hold_the_first(delivery: Delivery) -> Verdict:
        if not finished:
            holding.set()
            await release.wait()
            finished.append(delivery.body)
            return ACK
        return await recorder(delivery)

    await transport.subscribe(bench.inbox, hold_the_first)
    await bench.publish_all(transport, numbered(3))
    await holding.wait()
    await bench.twin.cut()
    # Published over the new connection, so that the old one is known to be gone.
    await transport.publish(bench.address, b"3")
    release.set()
    await recorder.wait_for(4)

    assert finished == [b"0"]
    assert recorder.bodies == numbered(4)
    assert recorder.deliveries[0].redelivered


@on_bench
async def test_pause_gives_everything_back_and_nothing_comes_until_it_is_resumed(bench: Bench) -> None:
    bench.topology = limited(bench.party, delivery_limit=1)
    transport, other, recorder = await bench.connect(), await bench.connect(), Recorder()
    holding, release, finished = asyncio.Event(), asyncio.Event(), list[bytes]()

    async def hold_the_first(delivery: Delivery) -> Verdict:
        if not finished:
            holding.set()
            await release.wait()
            finished.append(delivery.body)
            return ACK
        return await recorder(delivery)

    async def are_all_waiting() -> bool:
        return await other.count_waiting(bench.inbox) == 4

    await transport.subscribe(bench.inbox, hold_the_first)
    await bench.publish_all(transport, numbered(3))
    await holding.wait()
    for _ in range(5):
        transport.pause(bench.inbox)
    paused = transport.condition
    await transport.publish(bench.address, b"3")
    await until(are_all_waiting)
    release.set()
    # The handler has finished once another pause could be made; its message is at the broker already.
    await asyncio.sleep(0)
    transport.pause(bench.inbox)
    await until(are_all_waiting)
    unheard = list(recorder.bodies)
    transport.resume(bench.inbox)
    await recorder.wait_for(4)

    assert (paused.connected, paused.consuming, unheard) == (True, frozenset(), [])
    assert finished == [b"0"]
    assert recorder.bodies == numbered(4)
    assert transport.condition.consuming == {bench.inbox}
    assert await bench.dead_reasons() == [], "a pause costs one delivery, however often it is asked for"


@on_bench
async def test_pausing_and_resuming_what_is_not_consumed_is_harmless(bench: Bench) -> None:
    transport, recorder = await bench.connect(), Recorder()
    transport.pause(bench.inbox)
    transport.resume(bench.inbox)
    await transport.subscribe(bench.inbox, recorder)
    transport.resume(bench.inbox)
    await transport.publish(bench.address, b"message")
    await recorder.wait_for(1)

    assert recorder.bodies == [b"message"]


@on_bench
async def test_paused_transport_can_be_closed_and_what_it_held_waits(bench: Bench) -> None:
    transport, other, recorder = await bench.connect(), await bench.connect(), Recorder()
    holding, release = asyncio.Event(), asyncio.Event()

    async def hold(_: Delivery) -> Verdict:
        holding.set()
        await release.wait()
        return ACK

    async def are_both_waiting() -> bool:
        return await other.count_waiting(bench.inbox) == 2

    await transport.subscribe(bench.inbox, hold)
    await bench.publish_all(transport, numbered(2))
    await holding.wait()
    transport.pause(bench.inbox)
    await until(are_both_waiting)
    release.set()
    await transport.close()
    await other.subscribe(bench.inbox, recorder)
    await recorder.wait_for_all(set(numbered(2)))


@on_bench
async def test_publish_during_an_outage_waits_for_its_end(bench: Bench) -> None:
    transport, recorder = await bench.connect(), Recorder()
    await transport.subscribe(bench.inbox, recorder)
    await bench.twin.stop()

    publishing = asyncio.create_task(bench.publish_all(transport, numbered(3)))
    await asyncio.wait({publishing}, timeout=0.3)
    waited = not publishing.done()
    await bench.twin.start()
    await publishing
    await recorder.wait_for(3)

    assert waited
    assert list(dict.fromkeys(recorder.bodies)) == numbered(3)


@on_bench
async def test_publish_during_a_longer_outage_fails_and_later_works_again(bench: Bench) -> None:
    transport = await bench.connect(publish_timeout_s=1.0)
    await bench.twin.stop()

    with pytest.raises(TransportError, match="away"):
        await transport.publish(bench.address, b"")
    await bench.twin.start()

    async def works_again() -> bool:
        try:
            await transport.publish(bench.address, b"")
        except TransportError:
            return False
        return True

    await until(works_again)


@on_bench
async def test_nothing_confirmed_is_lost_while_connections_are_cut(bench: Bench) -> None:
    sender, receiver, recorder = await bench.connect(), await bench.connect(), Recorder()
    await receiver.subscribe(bench.inbox, recorder, prefetch=4)

    for number, body in enumerate(numbered(60)):
        await sender.publish(bench.address, body)
        if number % 20 == 10:
            await bench.twin.cut()

    await recorder.wait_for_all(set(numbered(60)))


@on_bench
async def test_nobody_to_connect_to_is_reported(bench: Bench) -> None:
    await bench.twin.stop()

    with pytest.raises(BrokerUnreachable):
        await bench.connect(connect_timeout_s=0.3)

    await bench.twin.start()


@on_bench
async def test_queue_that_exists_with_other_properties_is_refused(bench: Bench) -> None:
    await bench.connect()

    with pytest.raises(BrokerRefused, match="properties"):
        await bench.twin.declare(limited(bench.party, max_length=7))


@on_bench
async def test_what_others_reject_does_not_get_into_a_partys_dead_letters(bench: Bench) -> None:
    other = topology_for(new_party(), Role.CLIENT)
    bench.topology = merge([bench.topology, other])
    transport, recorder = await bench.connect(), Recorder(reject("malformed"))
    await transport.subscribe(bench.inbox, recorder)

    await transport.publish(bench.address, b"bad")
    await recorder.wait_for(1)
    await transport.close()

    assert await bench.dead_reasons() == [(b"bad", bench.inbox, "malformed")]
    assert await bench.twin.dead_letters(bench.topology, other.queues[0].name) == []


@on_bench
async def test_declaring_the_same_topology_twice_is_harmless(bench: Bench) -> None:
    other = topology_for(new_party(), Role.CLIENT)
    await bench.connect()
    bench.topology = merge([bench.topology, other])

    second = await bench.connect()

    await second.publish(bench.address, b"")


@on_bench
async def test_close_lets_the_running_handler_finish_and_takes_nothing_more(bench: Bench) -> None:
    transport = await bench.connect()
    holding, release, finished = asyncio.Event(), asyncio.Event(), list[bytes]()

    async def hold(delivery: Delivery) -> Verdict:
        holding.set()
        await release.wait()
        finished.append(delivery.body)
        return ACK

    await transport.subscribe(bench.inbox, hold)
    await bench.publish_all(transport, numbered(3))
    await holding.wait()
    closing = asyncio.create_task(transport.close())
    await asyncio.wait({closing}, timeout=0.1)
    still_closing = not closing.done()
    release.set()
    await closing
    recorder, other = Recorder(), await bench.connect()
    await other.subscribe(bench.inbox, recorder)
    await recorder.wait_for(2)

    assert still_closing
    assert finished == [b"0"]
    assert recorder.bodies == [b"1", b"2"]


@on_bench
async def test_closed_transport_refuses_use_and_closes_twice(bench: Bench) -> None:
    transport = await bench.connect()
    await transport.close()
    await transport.close()

    with pytest.raises(TransportError, match="not open"):
        await transport.publish(bench.address, b"")
    with pytest.raises(TransportError, match="not open"):
        await transport.subscribe(bench.inbox, Recorder())


@on_bench
async def test_close_during_an_outage_ends(bench: Bench) -> None:
    transport = await bench.connect()
    await transport.subscribe(bench.inbox, Recorder())
    await bench.twin.stop()

    async with asyncio.timeout(10):
        await transport.close()

    await bench.twin.start()


@on_bench
async def test_publish_that_waits_ends_when_its_transport_is_closed(bench: Bench) -> None:
    transport = await bench.connect()
    await bench.twin.stop()
    publishing = asyncio.create_task(transport.publish(bench.address, b""))
    await asyncio.wait({publishing}, timeout=0.1)

    await transport.close()

    with pytest.raises(TransportError, match="not open"):
        await publishing
    await bench.twin.start()


@on_bench
async def test_cancelled_publish_is_cancelled(bench: Bench) -> None:
    transport = await bench.connect()
    await bench.twin.stop()
    publishing = asyncio.create_task(transport.publish(bench.address, b""))
    await asyncio.wait({publishing}, timeout=0.1)

    publishing.cancel()

    with pytest.raises(asyncio.CancelledError):
        await publishing
    await bench.twin.start()


@on_bench
async def test_closing_from_inside_a_handler_is_refused(bench: Bench) -> None:
    transport, refused = await bench.connect(), asyncio.Event()

    async def close_the_transport(_: Delivery) -> Verdict:
        with pytest.raises(LocalError, match="inside"):
            await transport.close()
        refused.set()
        return ACK

    await transport.subscribe(bench.inbox, close_the_transport)
    await transport.publish(bench.address, b"")

    await refused.wait()


@on_bench
async def test_condition_follows_the_connection(bench: Bench) -> None:
    transport = bench.twin.transport(bench.topology)
    before = transport.condition
    transport = await bench.connect()
    opened = transport.condition
    await transport.subscribe(bench.inbox, Recorder())
    subscribed = transport.condition
    await transport.close()
    closed = transport.condition

    assert [each.connected for each in (before, opened, subscribed, closed)] == [False, True, True, False]
    assert [each.consuming for each in (before, opened, subscribed, closed)] == [
        frozenset(),
        frozenset(),
        frozenset({bench.inbox}),
        frozenset(),
    ]
    assert (subscribed.reconnects, subscribed.retries, subscribed.blocked) == (0, 0, False)


@on_bench
async def test_condition_shows_an_outage_and_its_end(bench: Bench) -> None:
    transport, recorder = await bench.connect(), Recorder()
    await transport.subscribe(bench.inbox, recorder)

    async def is_cut_off() -> bool:
        return not transport.condition.connected and not transport.condition.consuming

    async def is_back() -> bool:
        return transport.condition.connected and bench.inbox in transport.condition.consuming

    await bench.twin.stop()
    await until(is_cut_off)
    await bench.twin.start()
    await until(is_back)
    # It says the truth: what is sent comes.
    await transport.publish(bench.address, b"after")
    await recorder.wait_for_all({b"after"})

    assert transport.condition.reconnects >= 1


@on_bench
async def test_condition_counts_messages_that_are_sent_once_more(bench: Bench) -> None:
    bench.topology = limited(bench.party, max_length=3)
    sender, receiver = await bench.connect(), await bench.connect()

    publishing = asyncio.create_task(bench.publish_all(sender, numbered(30)))
    await asyncio.wait({publishing}, timeout=0.3)
    await receiver.subscribe(bench.inbox, Recorder())
    await publishing

    assert sender.condition.retries >= 1
    assert receiver.condition.retries == 0


@on_bench
async def test_what_waits_in_a_queue_is_counted(bench: Bench) -> None:
    sender, holding = await bench.connect(), asyncio.Event()
    empty = await sender.count_waiting(bench.inbox)
    await bench.publish_all(sender, numbered(5))

    async def are_all_waiting() -> bool:
        # A replicated queue says how long it is a little late.
        return await sender.count_waiting(bench.inbox) == 5

    async def are_three_left() -> bool:
        return await sender.count_waiting(bench.inbox) == 3

    await until(are_all_waiting)
    told = sender.condition.waiting[bench.inbox]
    receiver = await bench.connect()
    await receiver.subscribe(bench.inbox, dying_handler(holding), prefetch=2)
    await until(are_three_left)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await receiver.close()

    assert (empty, told) == (0, 5)


@on_bench
async def test_counting_what_waits_fails_while_nobody_can_say(bench: Bench) -> None:
    transport = await bench.connect()
    await bench.twin.stop()

    with pytest.raises(TransportError):
        await transport.count_waiting(bench.inbox)
    with pytest.raises(ConfigurationError, match="no queue"):
        await transport.count_waiting("hubbub.inbox.somebody-else")
    await bench.twin.start()


@on_bench
async def test_subscribing_to_a_queue_outside_the_topology_is_refused(bench: Bench) -> None:
    transport = await bench.connect()

    with pytest.raises(ConfigurationError, match="no queue"):
        await transport.subscribe("hubbub.inbox.somebody-else", Recorder())
    with pytest.raises(ConfigurationError, match="prefetch"):
        await transport.subscribe(bench.inbox, Recorder(), prefetch=0)
