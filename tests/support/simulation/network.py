"""The memory transport with the faults of a history."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from contextvars import Context
from dataclasses import replace
from typing import Self

from hubbub.errors import TransportError
from hubbub.transport.base import RETRY, Address, Condition, Delivery, Handler, Transport, Verdict
from hubbub.transport.memory import MemoryBroker, MemoryTransport, _Taken
from hubbub.transport.topology import QueueSpec, Topology
from support.simulation.disk import Visit
from support.simulation.operations import Delay, Duplicate, LoseAck, LoseConfirmation, Operation, Postpone, Refuse

PUBLISH_TIMEOUT_S = 60.0


class WatchedBroker(MemoryBroker):
    """Shows every message that it takes; its queues can be made shorter."""

    def __init__(self, watch: Callable[[bytes], None]) -> None:
        super().__init__()
        self._watch = watch
        self._long: dict[str, QueueSpec] = {}

    def limit(self, name: str, length: int) -> None:
        """Let a queue that drops its oldest messages hold this many and no more, until the limit is lifted."""
        queue = self._queues[name]
        self._long.setdefault(name, queue.spec)
        queue.spec = replace(queue.spec, max_length=length)

    def lift_limit(self, name: str) -> None:
        if name in self._long:
            self._queues[name].spec = self._long.pop(name)

    def accept(self, address: Address, body: bytes, user: str = "") -> bool:
        taken = super().accept(address, body, user)
        if taken:
            self._watch(body)
        return taken


class Link:
    """A party's way to the broker, whichever of its processes uses it."""

    def __init__(self, party: str, operations: tuple[Operation, ...]) -> None:
        self.up = asyncio.Event()
        self.up.set()
        mine = [each for each in operations if getattr(each, "party", None) == party]
        self._refused = {
            number
            for each in mine
            if isinstance(each, Refuse)
            for number in range(each.nth, each.nth + each.times)
        }
        self._postponed = {each.nth: each.times for each in mine if isinstance(each, Postpone)}
        self._resting: Counter[bytes] = Counter()
        self._unconfirmed = {each.nth for each in mine if isinstance(each, LoseConfirmation)}
        self._unheard = {each.nth for each in mine if isinstance(each, LoseAck)}
        self._delays = {each.nth: each.for_s for each in mine if isinstance(each, Delay)}
        self._duplicates = [each for each in mine if isinstance(each, Duplicate)]
        self._sent = self._received = self._settled = 0

    async def send(
        self, broker: MemoryBroker, inner: MemoryTransport, address: Address, body: bytes, visit: Visit
    ) -> None:
        self._sent += 1
        number = self._sent
        await asyncio.sleep(self._delays.get(number, 0.0))
        visit("before", "publish")
        if number in self._refused:
            raise TransportError("the broker refuses")
        await inner.publish(address, body)
        for each in self._duplicates:
            if each.nth == number:
                asyncio.get_running_loop().call_later(each.after_s, broker.accept, address, body, inner.user)
        visit("after", "publish")
        if number in self._unconfirmed:
            raise TransportError("the confirmation was lost")

    def delay_next(self, for_s: float) -> None:
        """Let the message that is sent next take long."""
        self._delays[self._sent + 1] = for_s

    def postpones(self, body: bytes) -> bool:
        """Whether the message that comes now is put off, for the first time or again."""
        self._received += 1
        self._resting[body] += self._postponed.get(self._received, 0)
        if self._resting[body] <= 0:
            return False
        self._resting[body] -= 1
        return True

    def settle(self, taken: _Taken, verdict: Verdict, visit: Visit) -> None:
        self._settled += 1
        visit("before", "ack")
        if self._settled in self._unheard:
            taken.consumer.lose()
            taken.consumer.queue.deliver()
        else:
            taken.consumer.settle(taken, verdict)
        visit("after", "ack")


class FaultyTransport(Transport):
    """One process's connection."""

    def __init__(
        self, broker: MemoryBroker, topology: Topology, *, link: Link, pace: Callable[[], float], visit: Visit
    ) -> None:
        self._broker = broker
        self._inner = MemoryTransport(broker, topology, publish_timeout_s=PUBLISH_TIMEOUT_S)
        self._link = link
        self._pace = pace
        self._visit = visit
        self._one_at_a_time = asyncio.Lock()
        self._subscriptions: list[tuple[str, Handler, int]] = []

    async def __aenter__(self) -> Self:
        await self._inner.__aenter__()
        return self

    async def publish(self, address: Address, body: bytes) -> None:
        try:
            async with asyncio.timeout(PUBLISH_TIMEOUT_S):
                await self._link.up.wait()
        except TimeoutError:
            raise TransportError("the broker is away") from None
        await asyncio.sleep(self._pace())
        await self._link.send(self._broker, self._inner, address, body, self._visit)

    async def subscribe(self, queue: str, handler: Handler, *, prefetch: int = 8) -> None:
        async def handle(delivery: Delivery) -> Verdict:
            # A handler that was running when the connection was lost is not disturbed, and stays the only one.
            async with self._one_at_a_time:
                if self._link.postpones(delivery.body):
                    return RETRY
                await asyncio.sleep(self._pace())
                return await handler(delivery)

        self._subscriptions.append((queue, handle, prefetch))
        if self._link.up.is_set():
            await self._inner.subscribe(queue, handle, prefetch=prefetch)

    def settle(self, taken: _Taken, verdict: Verdict) -> None:
        self._link.settle(taken, verdict, self._visit)

    def disconnect(self) -> None:
        """Lose the connection: all that is unsettled goes back."""
        consumers, self._inner._consumers = self._inner._consumers, []
        for consumer in consumers:
            self._broker.detach(consumer)

    def reconnect(self, context: Context) -> None:
        """Receive again, as the process to which the context belongs."""
        if not self._inner._consumers:
            self._inner._consumers = [
                context.run(self._broker.attach, queue, handle, prefetch, self._inner._retry_pause)
                for queue, handle, prefetch in self._subscriptions
            ]

    def pause(self, queue: str) -> None:
        self._inner.pause(queue)

    def resume(self, queue: str) -> None:
        self._inner.resume(queue)

    @property
    def condition(self) -> Condition:
        return self._inner.condition

    async def count_waiting(self, queue: str) -> int:
        return await self._inner.count_waiting(queue)

    async def close(self) -> None:
        self.disconnect()
