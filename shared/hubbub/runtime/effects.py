"""Effects: performed until they are done, and the jobs, timers and told events that a step leaves behind.

There is no way back from an event that is kept. So what the broker or a disk keeps from being done is tried again
for as long as it takes. A job runs beside the machines and comes back as an event, as does a timer.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Container, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, Protocol, TypeVar

from hubbub.errors import Code, HubbubError, LocalError, PeerError, StorageFailed, TransportError, Unroutable
from hubbub.machine.effects import (
    CancelTimer,
    CountRefusal,
    Effect,
    Failed,
    Job,
    Key,
    Persist,
    Publish,
    Record,
    SetTimer,
    Tell,
    TellOwner,
)
from hubbub.messages.envelope import Message
from hubbub.runtime.clock import Clock
from hubbub.runtime.message_checks import Refusal, RefusalBook
from hubbub.runtime.publisher import Post
from hubbub.runtime.telemetry import Counters
from hubbub.transport.base import Transport
from hubbub.trust.audit import AuditLog

log = logging.getLogger(__name__)

T = TypeVar("T")

PAUSE_S = 1.0
"""The pause between two attempts at what must succeed."""


class EffectHandler(Protocol):
    """The effects and jobs that a service adds."""

    async def perform(self, key: Key, effect: Effect) -> None:
        """Do an effect of this service that follows from an event."""

    async def work(self, key: Key, job: Job) -> object:
        """Do a job and return the event that it comes back as."""


class StorageWatch:
    """Set of the writes that are failing; pauses a party's queues while there is any.

    Failed writes are retried until they succeed, and these retries are the probe: storage works again when all of
    them have succeeded. A smaller probe could find room where a chunk finds none.
    """

    def __init__(self, transport: Transport, queues: Sequence[str]) -> None:
        self._transport = transport
        self._queues = queues
        self._failing: dict[object, str] = {}
        self._closed = False

    @property
    def trouble(self) -> str:
        """Description of the storage failure for an operator; empty while storage works."""
        return next(iter(self._failing.values()), "")

    def fail(self, attempt: object, error: Exception) -> None:
        """Note that an attempt failed; no messages are taken from now on."""
        if not self._failing:
            log.error("storage fails: no messages are taken, and it is tried again until it works: %s", error)
        self._failing[attempt] = str(error)
        # Each time, because a subscription may have begun since.
        for queue in self._queues:
            self._transport.pause(queue)

    def recover(self, attempt: object) -> None:
        """Note that an attempt is over; messages are taken again if it was the last that had failed."""
        if self._failing.pop(attempt, None) is not None and not self._failing and not self._closed:
            log.warning("storage works again: messages are taken again")
            for queue in self._queues:
                self._transport.resume(queue)

    def close(self) -> None:
        """Resume no queue any more: the party is stopping, and writes that end were given up, not done."""
        self._closed = True


@dataclass(frozen=True, slots=True)
class Told:
    """An event that one machine has for another; the cause tells it from any other."""

    key: Key
    event: object
    cause: str


class Effects:
    """Performs the effects of one party's machines.

    `running` has the keys of its machines, `feed_soon` queues an event for one of them, and `give_sign_of_life` is
    called at every attempt for which the next event waits.
    """

    def __init__(
        self,
        *,
        handler: EffectHandler,
        post: Post,
        clock: Clock,
        counters: Counters,
        audit: AuditLog,
        refusals: RefusalBook,
        storage: StorageWatch,
        running: Container[Key],
        feed_soon: Callable[[Key, object], None],
        give_sign_of_life: Callable[[], None],
    ) -> None:
        self.jobs: set[asyncio.Task[None]] = set()
        self.timers: dict[tuple[Key, str], asyncio.TimerHandle] = {}
        self.told: deque[Told] = deque()
        """Events that are taken before all others."""
        self._handler = handler
        self._post = post
        self._clock = clock
        self._counters = counters
        self._audit = audit
        self._refusals = refusals
        self._storage = storage
        self._running = running
        self._feed_soon = feed_soon
        self._give_sign_of_life = give_sign_of_life

    async def perform_until_done(self, key: Key, effects: Sequence[Effect]) -> Exception | None:
        """Do what follows from an event that has happened, until it is done: there is no way back.

        An effect that a bug keeps from being done holds nothing else up. It is tried again after a restart.
        """
        bug: Exception | None = None
        for effect in effects:
            if isinstance(effect, Persist):
                continue
            try:
                await self.retry_until_done(type(effect).__name__, partial(self._perform, key, effect))
            except Exception as error:
                log.exception("a bug: %s of %s could not be done", type(effect).__name__, key)
                self._counters.broken.inc()
                bug = bug or error
        return bug

    async def retry_until_done(self, what: str, attempt: Callable[[], Awaitable[T]]) -> T:
        """Attempt something for which the next event waits until it is done."""

        async def attempt_alive() -> T:
            self._give_sign_of_life()
            return await attempt()

        return await self.retry_through_outages("effect", what, attempt_alive)

    async def retry_through_outages(
        self,
        sort: Literal["job", "effect", "event"],
        what: str,
        attempt: Callable[[], Awaitable[T]],
        outages: tuple[type[Exception], ...] = (TransportError, StorageFailed, OSError),
    ) -> T:
        """Attempt something until neither the broker nor a disk keeps it from being done."""
        write = object()
        try:
            while True:
                try:
                    return await attempt()
                except outages as error:
                    if isinstance(error, TransportError):
                        log.error("%s failed and is tried again: %s", what, error)  # noqa: TRY400
                    else:
                        self._storage.fail(write, error)
                    self._counters.retries.labels(sort).inc()
                    await asyncio.sleep(PAUSE_S)
        finally:
            self._storage.recover(write)

    def append_record(self, key: Key, effect: Record) -> None:
        """Write a record of a machine to the audit log."""
        place = {"round": key.round, "phase": key.phase}
        named = {name: value for name, value in place.items() if value}
        self._audit.append(effect.kind, **{"run": key.run, **named, **effect.fields})

    def launch(self, key: Key, effect: Effect, cause: str) -> None:
        """Start a job or a timer, or tell another machine an event; nothing is to be launched of other effects."""
        match effect:
            case Job():
                self.start(self._work(key, effect))
            case SetTimer():
                self._set_timer(key, effect)
            case CancelTimer():
                self._cancel_timer(key, effect.name)
            case Tell():
                self.told.append(Told(effect.to, effect.event, cause))

    async def put_off(self, key: Key, event: object, cause: str) -> None:
        """Feed an event after a pause. What was told still comes before all else, and is not done until then."""
        if cause:
            self.told.appendleft(Told(key, event, cause))
            await asyncio.sleep(PAUSE_S)
        else:
            asyncio.get_running_loop().call_later(PAUSE_S, self._feed_soon, key, event)

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something beside the machines until `stop`."""
        task = asyncio.create_task(work)
        self.jobs.add(task)
        task.add_done_callback(self.jobs.discard)

    def cancel_timers(self, key: Key) -> None:
        """Cancel all timers of a machine."""
        for owner, name in [timer for timer in self.timers if timer[0] == key]:
            self._cancel_timer(owner, name)

    def stop(self) -> list[asyncio.Task[None]]:
        """Cancel all timers and jobs; gives the jobs, which end in a moment."""
        for timer in self.timers.values():
            timer.cancel()
        jobs = list(self.jobs)
        for job in jobs:
            job.cancel()
        return jobs

    async def _perform(self, key: Key, effect: Effect) -> None:
        match effect:
            case Job() | SetTimer() | CancelTimer() | Tell():
                pass  # Launched once the step is taken.
            case Publish():
                await self._publish(key, effect)
            case Record():
                await asyncio.to_thread(self.append_record, key, effect)
            case CountRefusal(reason=reason, kind=kind, sender=sender, explanation=explanation):
                await self._refusals.note(Refusal(reason, explanation, kind, sender, key.run))
            case TellOwner(sentence=sentence):
                log.warning("%s", sentence)
            case _:
                await self._handler.perform(key, effect)

    async def _publish(self, key: Key, effect: Publish) -> None:
        if not isinstance(effect.body, Message):
            raise LocalError(f"{effect.body!r} is not a message")
        try:
            await self._post.send(key, to=effect.to, role=effect.role, body=effect.body, phase=effect.phase)
        except Unroutable:
            # The party has never been there. What must reach it is sent again by the machine's own timer.
            log.warning("%s has no inbox yet: %s was not delivered", effect.to, effect.body.kind)

    async def _work(self, key: Key, job: Job) -> None:
        began_s = time.monotonic()
        try:
            # A job may be done twice, so what the broker or a disk kept from being done is begun again.
            event = await self.retry_through_outages(
                "job", type(job).__name__, lambda: self._handler.work(key, job), (TransportError, StorageFailed)
            )
        except PeerError as error:
            what = type(job).__name__
            await self._refusals.note(Refusal(error.reason, f"{what}: {error}", what, run=key.run))
            event = Failed(str(error), error.code)
        except Exception as error:
            if key not in self._running:
                log.info("%s is given up: its %s is over", type(job).__name__, key.kind)
                return
            if isinstance(error, HubbubError):
                log.warning("%s failed: %s", type(job).__name__, error)
            else:
                log.exception("%s failed", type(job).__name__)
                self._counters.broken.inc()
            event = describe_failure(error)
        self._counters.jobs.labels(type(job).__name__).observe(time.monotonic() - began_s)
        self._feed_soon(key, event)

    def _set_timer(self, key: Key, effect: SetTimer) -> None:
        def ring() -> None:
            self.timers.pop((key, effect.name), None)
            self._feed_soon(key, effect.event(at_s=self._clock.now_s()))

        self._cancel_timer(key, effect.name)
        delay_s = max(0.0, effect.at_s - self._clock.now_s())
        self.timers[key, effect.name] = asyncio.get_running_loop().call_later(delay_s, ring)

    def _cancel_timer(self, key: Key, name: str) -> None:
        timer = self.timers.pop((key, name), None)
        if timer is not None:
            timer.cancel()


def name_causes(sequence: int, effects: Sequence[Effect]) -> Iterator[tuple[str, Effect]]:
    """Give each effect with what names it for ever: its entry and its place."""
    return ((f"{sequence}.{place}", effect) for place, effect in enumerate(effects))


def describe_failure(error: Exception) -> Failed:
    """Make the event that a machine is told of an error.

    The text of a bug may hold anything, of a client's data too, and is for our log alone.
    """
    if isinstance(error, HubbubError):
        return Failed(str(error), error.code)
    code = Code.DISK_FAILED if isinstance(error, OSError) else Code.INTERNAL
    return Failed(f"an unexpected {type(error).__name__}; the log of this party says more", code)
