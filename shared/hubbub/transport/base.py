"""Transport interface: carries the messages of a service.

A `Transport` has five methods: `publish`, `subscribe`, `pause`, `resume`, `close`; two more report its condition:
`condition` and `count_waiting`. It carries bytes and knows nothing of what they mean. Two implementations keep the
promises below, each of which is a test in the contract suite: `memory.MemoryTransport` (everything in one process)
and `rabbitmq.RabbitMqTransport`.

Sending
    *Confirmed.* `publish` returns when the broker has taken the message: from then on it survives the
    broker's death (in memory: as long as the process lives). *Unroutable* is raised if no queue takes it.
    *Outages are waited for.* While the broker is away, or short of memory or disk, or a queue that refuses when
    full is full, `publish` waits and tries again until its time is up, then raises `TransportError`. A
    confirmation that is lost on the way makes it send twice. A body above `MAX_BODY_BYTES` is refused with
    `TransportError`. Every message names the *user* that sends it, and the broker lets nobody name another.

Receiving
    *One consumer.* A queue is consumed by one subscription at a time: a second is refused with `BrokerRefused`,
    once it is clear that the first is alive. Receiving does not depend on sending: it goes on while `publish`
    waits.
    *At least once.* A message comes until a handler has said ACK or REJECT and the broker has heard it; so it
    may come twice, also after ACK. Handlers must be idempotent.
    *One at a time.* A subscription calls its handler with one delivery after the other, never two at once.
    *In order per sender*, while connections last: of two messages of which the first was confirmed before the
    second was published, the first is delivered first. A message that is delivered again may be overtaken.
    *ACK* removes the message. *RETRY* delivers it again later, marked `redelivered`, each time after a longer
    pause, and moves it to the dead letters when the queue's delivery limit is passed; others are delivered
    in the meantime. A handler that raises has said RETRY; nothing a handler does ends its subscription.
    *REJECT* removes the message, never delivers it again, and puts it with the reason into the dead letters of
    its queue while others are delivered: what is rejected uses up no prefetch. What cannot be put aside is
    dropped, with a log line: a body above `MAX_BODY_BYTES`, and of a flood what is more than `ASIDE_MAX_LENGTH`
    messages or `ASIDE_MAX_BYTES`, and then `ASIDE_PER_S`. So is what a death in between leaves.
    *Back-pressure.* At most `prefetch` messages per subscription are outside the broker and unsettled. All
    others wait there.
    *No consumer, no loss.* What a consumer held unsettled when it died or closed is delivered again.
    *Pausing.* `pause` gives back what is unsettled and takes nothing more until `resume`. A running handler is not
    disturbed, and its verdict is dropped because the message comes again. A pause costs a message at most one
    delivery, however long it is: whoever cannot work for a while pauses, and does not say RETRY again and again.
    *Reconnection* is automatic: subscriptions go on, and a running handler is not disturbed; its verdict is
    dropped if the connection that the delivery came over is gone, because the message comes again.

Ending
    `close` stops taking messages, lets the running handlers finish and tells the broker their verdicts; what
    was fetched and not yet handled goes back. It must not be called from inside a handler.

Condition
    `condition` is what the transport knows already, without asking the broker: an outage shows in it as soon as
    the connection is known to be lost. Its counts only ever go up. `count_waiting` asks the broker.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import TracebackType
from typing import Self

from hubbub.errors import TransportError

MAX_BODY_BYTES = 16 * 2**20
"""Largest body that every RabbitMQ takes; version 4 takes no more by default."""
ASIDE_MAX_LENGTH = 1_000
"""Burst of rejected messages that are dead-lettered: as many as a queue of dead letters holds."""
ASIDE_MAX_BYTES = 4 * MAX_BODY_BYTES
ASIDE_PER_S = 100
"""Rate of dead letters after the burst: to put one aside takes longer than to refuse ten."""


@dataclass(frozen=True, slots=True)
class Address:
    """Destination of a message: made by `topology.route`, never by hand in a service."""

    exchange: str
    routing_key: str


@dataclass(frozen=True, slots=True)
class Delivery:
    """Delivery of a message; it may not be the first (and may be the second without being marked so)."""

    body: bytes
    redelivered: bool
    user: str = field(default="", compare=False)
    """The user who published it, for which the broker vouches; empty if the message names none."""

    def __repr__(self) -> str:
        # A body may hold a share.
        return f"Delivery(<{len(self.body)} bytes>, redelivered={self.redelivered}, user={self.user!r})"


class Outcome(Enum):
    """Outcome of a delivery."""

    ACK = "ack"
    RETRY = "retry"
    REJECT = "reject"


@dataclass(frozen=True, slots=True)
class Verdict:
    """Verdict of a handler on a delivery; `reason` is for REJECT and is stored with the dead letter."""

    outcome: Outcome
    reason: str = ""


ACK = Verdict(Outcome.ACK)
RETRY = Verdict(Outcome.RETRY)


def reject(reason: str) -> Verdict:
    """Return the verdict that dead-letters a message; the reason must not contain anything secret."""
    return Verdict(Outcome.REJECT, reason)


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """Rejected message, with its queue and the reason."""

    body: bytes
    queue: str
    reason: str

    def __repr__(self) -> str:
        return f"DeadLetter(<{len(self.body)} bytes>, queue={self.queue!r}, reason={self.reason!r})"


DELIVERY_LIMIT_REASON = "delivery_limit"
"""Reason of a dead letter that was delivered too often, in RabbitMQ's own word."""

Handler = Callable[[Delivery], Awaitable[Verdict]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """Condition of a transport."""

    connected: bool
    """True if it can send and receive: every connection that it needs is there, and the queues were found."""
    blocked: bool
    """True if the broker, short of memory or disk, takes no messages; RabbitMQ tells only those who send one."""
    consuming: frozenset[str]
    """The queues whose messages come to their handlers."""
    reconnects: int
    """Number of lost connections that were reopened; there may be several at a time."""
    retries: int
    """Number of messages that were sent again."""
    waiting: Mapping[str, int]
    """Messages in each queue, as the broker last said."""


class Transport(ABC):
    """Transport of messages; see the promises at the top of this module. Enter it to connect."""

    @abstractmethod
    async def publish(self, address: Address, body: bytes) -> None:
        """Send a message; return when the broker has taken it, or raise `Unroutable` or `TransportError`."""

    @abstractmethod
    async def subscribe(self, queue: str, handler: Handler, *, prefetch: int = 8) -> None:
        """Call `handler` with the messages of `queue`, which the transport's topology must name."""

    @abstractmethod
    def pause(self, queue: str) -> None:
        """Return a queue's unsettled messages and take no more; harmless without a subscription."""

    @abstractmethod
    def resume(self, queue: str) -> None:
        """Take a queue's messages again after a pause; harmless without one."""

    @abstractmethod
    async def close(self) -> None:
        """Stop taking messages, let running handlers finish, disconnect. Closing twice is harmless."""

    @property
    @abstractmethod
    def condition(self) -> Condition:
        """Current condition."""

    @abstractmethod
    async def count_waiting(self, queue: str) -> int:
        """Ask the broker for the number of messages in `queue`; raise `TransportError` if it does not answer."""

    @abstractmethod
    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()


def is_oversized(body: bytes) -> bool:
    """Say whether a body is larger than any message of ours."""
    return len(body) > MAX_BODY_BYTES


def check_size(body: bytes) -> None:
    """Raise `TransportError` on a body for which some broker would close the whole channel."""
    if is_oversized(body):
        raise TransportError(
            f"a message of {len(body)} bytes is above the limit of {MAX_BODY_BYTES}: send smaller chunks"
        )


class TokenBucket:
    """Rate limit that lets a burst pass: it holds `burst` tokens, and gets `per_s` of them back each second."""

    def __init__(self, burst: float, per_s: float) -> None:
        self._burst = burst
        self._per_s = per_s
        self._left = burst
        self._filled_at_s = 0.0

    def take(self, amount: float, now_s: float) -> bool:
        """Take so many tokens and return True, or return False if there are too few."""
        self._left = min(self._left + self._per_s * (now_s - self._filled_at_s), self._burst)
        self._filled_at_s = now_s
        if self._left < amount:
            return False
        self._left -= amount
        return True
