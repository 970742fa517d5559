"""In-memory transport: a broker inside the process, with the promises of the real one.

Several `MemoryTransport`s share one `MemoryBroker` and one event loop. Bodies are passed by reference, never
copied. The behaviour depends on the order of calls alone, so a test that passes once passes always; only the
pause before a retry reads the loop's clock. Tests inject faults: see the methods of `MemoryBroker` from `stop` on.

Messages live as long as the broker, or longer if it is given something that keeps them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, Self

from hubbub.errors import BrokerRefused, BrokerUnreachable, ConfigurationError, TransportError, Unroutable
from hubbub.transport.base import (
    DELIVERY_LIMIT_REASON,
    Address,
    Condition,
    DeadLetter,
    Delivery,
    Handler,
    Outcome,
    Transport,
    Verdict,
    check_size,
    is_oversized,
)
from hubbub.transport.subscription import RetryPause, Worker, check_outside, describe_occupied
from hubbub.transport.topology import Overflow, QueueSpec, Topology


class MessageKeeper(Protocol):
    """Keeps the messages that wait, other than dead letters."""

    def add(self, queue: str, user: str, body: bytes) -> int:
        """Keep a message, and return its number."""

    def remove(self, number: int) -> None:
        """Keep a message no longer."""

    def read(self, queue: str) -> Sequence[tuple[int, str, bytes]]:
        """Return number, user and body of a queue's messages, the oldest first."""


@dataclass(frozen=True, slots=True)
class _Message:
    body: bytes
    user: str = ""
    deliveries: int = 0
    # Its number at the keeper; 0 if it is not kept.
    number: int = 0
    # Where and why it was put aside, if it is a dead letter.
    queue: str = ""
    reason: str = ""


# eq=False: instances are dictionary keys and compared by identity.
@dataclass(slots=True, eq=False)
class _Taken:
    message: _Message
    consumer: _Consumer

    @property
    def delivery(self) -> Delivery:
        return Delivery(self.message.body, redelivered=self.message.deliveries > 1, user=self.message.user)

    def is_stale(self) -> bool:
        return self not in self.consumer.unsettled

    async def settle(self, verdict: Verdict) -> None:
        self.consumer.settle(self, verdict)


@dataclass(slots=True, eq=False)
class _Consumer:
    """The broker's view of one subscription."""

    queue: _Queue
    prefetch: int
    retry_pause: RetryPause
    worker: Worker[_Taken]
    closing: bool = False
    paused: bool = False
    # A dictionary for its order, which messages keep when a lost consumer returns them.
    unsettled: dict[_Taken, None] = field(default_factory=dict)

    def may_take(self) -> bool:
        return not (self.closing or self.paused) and len(self.unsettled) < self.prefetch

    def settle(self, taken: _Taken, verdict: Verdict) -> None:
        if taken.is_stale():
            return
        if verdict.outcome is Outcome.RETRY:
            # It stays unsettled during the pause, as with RabbitMQ, and uses up prefetch.
            pause_s = self.retry_pause.after(taken.message.deliveries)
            asyncio.get_running_loop().call_later(pause_s, self._give_back, taken)
            return
        if verdict.outcome is Outcome.REJECT:
            self.queue.bury(taken.message, verdict.reason)
        del self.unsettled[taken]
        self.queue.deliver()
        self.queue.broker.drop(taken.message)

    def lose(self) -> None:
        """Return all unsettled messages to the queue, as the broker does when a connection is lost."""
        lost = list(self.unsettled)
        self.unsettled.clear()
        for taken in reversed(lost):
            self.queue.put_back(taken.message)

    def _give_back(self, taken: _Taken) -> None:
        if not taken.is_stale():
            del self.unsettled[taken]
            self.queue.put_back(taken.message)
            self.queue.deliver()


@dataclass(slots=True, eq=False)
class _Queue:
    spec: QueueSpec
    broker: MemoryBroker
    ready: deque[_Message] = field(default_factory=deque)
    ready_bytes: int = 0
    consumer: _Consumer | None = None

    def is_full(self) -> bool:
        return self._is_over(len(self.ready) + 1, self.ready_bytes + 1)

    def put(self, message: _Message) -> None:
        self.ready.append(message)
        self.ready_bytes += len(message.body)
        self.deliver()
        if self.spec.overflow is Overflow.DROP_HEAD:
            while self._is_over(len(self.ready), self.ready_bytes):
                self.broker.drop(self._take())

    def put_back(self, message: _Message) -> None:
        if message.deliveries > self.spec.delivery_limit:
            self.bury(message, DELIVERY_LIMIT_REASON)
            self.broker.drop(message)
        else:
            self.ready.appendleft(message)
            self.ready_bytes += len(message.body)

    def bury(self, message: _Message, reason: str) -> None:
        if self.spec.dead_letters is not None and not is_oversized(message.body):
            dead = replace(message, deliveries=0, number=0, queue=self.spec.name, reason=reason)
            for queue in self.broker.queues_at(self.spec.dead_letters):
                queue.put(dead)

    def deliver(self) -> None:
        """Deliver ready messages, as far as the consumer may take more."""
        if not self.broker.running:
            return
        while self.ready and self.consumer is not None and self.consumer.may_take():
            message = self._take()
            taken = _Taken(replace(message, deliveries=message.deliveries + 1), self.consumer)
            self.consumer.unsettled[taken] = None
            self.consumer.worker.put(taken)
        if not self.is_full():
            self.broker.wake()

    def _take(self) -> _Message:
        message = self.ready.popleft()
        self.ready_bytes -= len(message.body)
        return message

    def _is_over(self, messages: int, size: int) -> bool:
        limits = self.spec.max_length, self.spec.max_bytes
        return any(
            limit is not None and count > limit for count, limit in zip((messages, size), limits, strict=True)
        )


class MemoryBroker:
    """Exchanges and queues in one process, with fault injection for tests."""

    def __init__(self, keeper: MessageKeeper | None = None) -> None:
        self._keeper = keeper
        self._queues: dict[str, _Queue] = {}
        self._bindings: dict[Address, dict[str, None]] = {}
        self.running = True
        """False during an outage."""
        self.blocked = False
        """True while short of memory or disk."""
        self.outages = 0
        """Number of outages that have ended."""
        self._refusals = 0
        self._lost_confirmations = 0
        self._waiting: list[asyncio.Future[None]] = []

    def stop(self) -> None:
        """Begin an outage: connections are lost, nothing is taken or delivered until `start`."""
        self.running = False
        for queue in self._queues.values():
            if queue.consumer is not None:
                queue.consumer.lose()

    def start(self) -> None:
        """End an outage; transports go on by themselves."""
        self.outages += not self.running
        self.running = True
        for queue in self._queues.values():
            queue.deliver()
        self.wake()

    def block(self) -> None:
        """Simulate a shortage of memory or disk: take no messages until `unblock`, and go on delivering."""
        self.blocked = True

    def unblock(self) -> None:
        """Take messages again."""
        self.blocked = False
        self.wake()

    def refuse_next(self, count: int = 1) -> None:
        """Refuse the next messages as an overloaded broker does; the sender tries again."""
        self._refusals += count

    def lose_next_confirmation(self, count: int = 1) -> None:
        """Take the next messages but let the sender believe they were lost, so that it sends them again."""
        self._lost_confirmations += count

    def dead_letters(self, queue: str) -> list[DeadLetter]:
        """Look at a queue of dead letters without removing any."""
        return [DeadLetter(dead.body, dead.queue, dead.reason) for dead in self._queues[queue].ready]

    def waiting_in(self, queue: str) -> int:
        """Count the messages that wait in a queue and are with no consumer."""
        return len(self._queues[queue].ready)

    def held_from(self, queue: str) -> int:
        """Count the messages of a queue that are with its consumer, unsettled."""
        consumer = self._queues[queue].consumer
        return len(consumer.unsettled) if consumer else 0

    # For transports ---------------------------------------------------------------------------------------

    def declare(self, topology: Topology) -> None:
        """Create what is missing; raise `BrokerRefused` if a queue exists with other properties."""
        for spec in topology.queues:
            if spec.name in self._queues and self._queues[spec.name].spec != spec:
                raise BrokerRefused(f"queue {spec.name!r} exists with other properties")
        for spec in topology.queues:
            if spec.name not in self._queues:
                queue = self._queues[spec.name] = _Queue(spec, self)
                for number, user, body in self._keeper.read(spec.name) if self._keeper else ():
                    queue.put(_Message(body, user, number=number))
        for binding in topology.bindings:
            self._bindings.setdefault(binding.address, {})[binding.queue] = None

    def queues_at(self, address: Address) -> list[_Queue]:
        """Return the queues that are bound to an address."""
        return [self._queues[name] for name in self._bindings.get(address, ())]

    def accept(self, address: Address, body: bytes, user: str = "") -> bool:
        """Take a user's message; return False if it cannot be taken now."""
        if not self.running or self.blocked:
            return False
        if self._refusals:
            self._refusals -= 1
            # The sender is about to wait for a change, and nothing else may change.
            asyncio.get_running_loop().call_soon(self.wake)
            return False
        queues = self.queues_at(address)
        if not queues:
            raise Unroutable(f"no queue takes messages for {address.routing_key!r} at {address.exchange!r}")
        if any(queue.is_full() and queue.spec.overflow is Overflow.REJECT_PUBLISH for queue in queues):
            return False
        for queue in queues:
            number = self._keeper.add(queue.spec.name, user, body) if self._keeper else 0
            queue.put(_Message(body, user, number=number))
        if self._lost_confirmations:
            self._lost_confirmations -= 1
            asyncio.get_running_loop().call_soon(self.wake)
            return False
        return True

    def drop(self, message: _Message) -> None:
        """Keep a message no longer."""
        if self._keeper and message.number:
            self._keeper.remove(message.number)

    async def change(self) -> None:
        """Wait until a message that was refused may be taken."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        await future

    def wake(self) -> None:
        """Wake all that wait in `change`."""
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    def attach(self, name: str, handler: Handler, prefetch: int, retry_pause: RetryPause) -> _Consumer:
        """Deliver a queue's messages to a handler; raise `BrokerRefused` if the queue has one."""
        queue = self._queues[name]
        if queue.consumer is not None:
            raise BrokerRefused(describe_occupied(name))
        consumer = queue.consumer = _Consumer(queue, prefetch, retry_pause, Worker(name, handler))
        queue.deliver()
        return consumer

    def detach(self, consumer: _Consumer) -> None:
        """Remove a consumer and return its unsettled messages to the queue."""
        consumer.lose()
        consumer.queue.consumer = None


class MemoryTransport(Transport):
    """One party's connection to a `MemoryBroker`."""

    def __init__(
        self,
        broker: MemoryBroker,
        topology: Topology,
        *,
        publish_timeout_s: float = 60.0,
        retry_pause: RetryPause | None = None,
    ) -> None:
        self._broker = broker
        self._topology = topology
        # A broker inside the process has no users, so the user is the party that owns the inbox.
        self.user = next((spec.dead_letters.routing_key for spec in topology.queues if spec.dead_letters), "")
        self._publish_timeout_s = publish_timeout_s
        self._retry_pause = retry_pause or RetryPause()
        self._consumers: list[_Consumer] = []
        self._open = False
        self._outages_before = 0
        self._retries = 0

    async def __aenter__(self) -> Self:
        if not self._broker.running:
            raise BrokerUnreachable("the in-memory broker is stopped")
        # A broker inside the process has no operator who would have declared it.
        self._broker.declare(self._topology)
        self._outages_before = self._broker.outages
        self._open = True
        return self

    async def publish(self, address: Address, body: bytes) -> None:
        """Give the message to the broker, waiting while it is away or the queue is full."""
        check_size(body)
        try:
            async with asyncio.timeout(self._publish_timeout_s):
                self._check_open()
                while not self._broker.accept(address, body, self.user):
                    await self._broker.change()
                    self._check_open()
                    self._retries += 1
        except TimeoutError:
            raise TransportError(
                f"the broker did not take a message for {address.routing_key!r} within"
                f" {self._publish_timeout_s} s: it is away, or the recipient's queue is full"
            ) from None
        # Without this a sender in a loop would starve the receivers.
        await asyncio.sleep(0)

    async def subscribe(self, queue: str, handler: Handler, *, prefetch: int = 8) -> None:
        """Deliver a queue's messages to a handler."""
        self._check_open()
        if prefetch < 1:
            raise ConfigurationError(f"prefetch must be at least 1, not {prefetch}")
        name = self._topology.queue(queue).name
        self._consumers.append(self._broker.attach(name, handler, prefetch, self._retry_pause))

    def pause(self, queue: str) -> None:
        """Return unsettled messages and take no more."""
        for consumer in self._consumers_of(queue):
            consumer.paused = True
            consumer.lose()

    def resume(self, queue: str) -> None:
        """Take messages again."""
        for consumer in self._consumers_of(queue):
            consumer.paused = False
            consumer.queue.deliver()

    def _consumers_of(self, queue: str) -> list[_Consumer]:
        return [consumer for consumer in self._consumers if consumer.queue.spec.name == queue]

    async def close(self) -> None:
        """Let running handlers finish and return the other messages."""
        check_outside(consumer.worker for consumer in self._consumers)
        self._open = False
        consumers, self._consumers = self._consumers, []
        for consumer in consumers:
            consumer.closing = True
        try:
            await asyncio.gather(*(consumer.worker.stop() for consumer in consumers))
        finally:
            for consumer in consumers:
                self._broker.detach(consumer)
            # Pending calls of `publish` must find the transport closed.
            self._broker.wake()

    @property
    def condition(self) -> Condition:
        """Current condition, which follows from the broker's."""
        connected = self._open and self._broker.running
        return Condition(
            connected=connected,
            blocked=connected and self._broker.blocked,
            consuming=frozenset(each.queue.spec.name for each in self._consumers if connected and not each.paused),
            reconnects=self._broker.outages - self._outages_before,
            retries=self._retries,
            waiting={spec.name: self._broker.waiting_in(spec.name) for spec in self._topology.queues if connected},
        )

    async def count_waiting(self, queue: str) -> int:
        """Return the number of messages in a queue."""
        name = self._topology.queue(queue).name
        self._check_open()
        if not self._broker.running:
            raise BrokerUnreachable("the in-memory broker is stopped")
        return self._broker.waiting_in(name)

    def _check_open(self) -> None:
        if not self._open:
            raise TransportError("this transport is not open: enter it with `async with` before use")
