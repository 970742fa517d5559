"""The interface between a service and whatever carries its messages.

A `Transport` has five methods: `publish`, `subscribe`, `pause`, `resume`, `close`; two more say how it fares:
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
    may come twice, also after ACK. Handlers must not mind.
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
    *Reconnection* needs nobody: subscriptions go on, and a running handler is not disturbed; its verdict is
    dropped if the connection that the delivery came over is gone, because the message comes again.

Ending
    `close` stops taking messages, lets the running handlers finish and tells the broker their verdicts; what
    was fetched and not yet handled goes back. It must not be called from inside a handler.

Saying how it fares
    `condition` asks nobody: it is what the transport knows already, and an outage shows in it as soon as the
    connection is known to be lost. Its counts only ever go up. `count_waiting` asks the broker.
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
"""What every RabbitMQ takes; its version 4 takes no more unless told to."""
ASIDE_MAX_LENGTH = 1_000
"""Rejected messages that are put aside at once: as many as a queue of dead letters holds."""
ASIDE_MAX_BYTES = 4 * MAX_BODY_BYTES
ASIDE_PER_S = 100
"""Those of a flood that goes on: to put one aside takes longer than to refuse ten."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where a message goes: made by `topology.route`, never by hand in a service."""

    exchange: str
    routing_key: str


@dataclass(frozen=True, slots=True)
class Delivery:
    """One arrival of a message; it may not be the first (and may be the second without being marked so)."""

    body: bytes
    redelivered: bool
    user: str = field(default="", compare=False)
    """Who published it, for which the broker vouches; empty if the message names nobody."""

    def __repr__(self) -> str:
        # A body may hold a share.
        return f"Delivery(<{len(self.body)} bytes>, redelivered={self.redelivered}, user={self.user!r})"


class Outcome(Enum):
    """What becomes of a delivery."""

    ACK = "ack"
    RETRY = "retry"
    REJECT = "reject"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a handler says about a delivery; `reason` is for REJECT and is written beside the dead letter."""

    outcome: Outcome
    reason: str = ""


ACK = Verdict(Outcome.ACK)
RETRY = Verdict(Outcome.RETRY)


def reject(reason: str) -> Verdict:
    """Say that the message is to be put aside for good; the reason must not contain anything secret."""
    return Verdict(Outcome.REJECT, reason)


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that was put aside: where it was rejected and why."""

    body: bytes
    queue: str
    reason: str

    def __repr__(self) -> str:
        return f"DeadLetter(<{len(self.body)} bytes>, queue={self.queue!r}, reason={self.reason!r})"


DELIVERY_LIMIT_REASON = "delivery_limit"
"""A dead letter's reason if it was delivered too often; it is RabbitMQ's own word for that."""

Handler = Callable[[Delivery], Awaitable[Verdict]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """How a transport fares."""

    connected: bool
    """Whether it can send and receive: every connection that it needs is there, and the queues were found."""
    blocked: bool
    """Whether the broker, short of memory or disk, takes no messages; RabbitMQ tells whoever tries to send one."""
    consuming: frozenset[str]
    """The queues whose messages come to their handlers."""
    reconnects: int
    """How often a lost connection was made again; there may be several at a time."""
    retries: int
    """How often a message had to be sent once more."""
    waiting: Mapping[str, int]
    """How many messages waited in a queue when the broker last said so."""


class Transport(ABC):
    """Carries messages; see the promises at the top of this module. Enter it to connect."""

    @abstractmethod
    async def publish(self, address: Address, body: bytes) -> None:
        """Return when the broker has taken the message; raise `Unroutable` or `TransportError` otherwise."""

    @abstractmethod
    async def subscribe(self, queue: str, handler: Handler, *, prefetch: int = 8) -> None:
        """Call `handler` with the messages of `queue`, which the transport's topology must name."""

    @abstractmethod
    def pause(self, queue: str) -> None:
        """Give back what is unsettled of a queue and take no more of it; harmless where nothing is taken."""

    @abstractmethod
    def resume(self, queue: str) -> None:
        """Take a queue's messages again after a pause; harmless without one."""

    @abstractmethod
    async def close(self) -> None:
        """Stop taking, let running handlers finish, disconnect. Closing twice is harmless."""

    @property
    @abstractmethod
    def condition(self) -> Condition:
        """How it fares just now."""

    @abstractmethod
    async def count_waiting(self, queue: str) -> int:
        """Ask the broker how many messages of `queue` wait there; `TransportError` if it does not say."""

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
    """Refuse a body that some broker would refuse by closing the channel under everybody else."""
    if is_oversized(body):
        raise TransportError(
            f"a message of {len(body)} bytes is above the limit of {MAX_BODY_BYTES}: send smaller chunks"
        )
