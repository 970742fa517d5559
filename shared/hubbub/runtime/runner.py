"""The runner: delivery -> message -> event -> step -> effects -> verdict.

It is all the concurrency that a service has. Deliveries, finished jobs and timers all become events in one
queue, and one task takes them in order, so a machine is never stepped twice at once. The effects of a step are
done in the order that its handler gave them, then the step is taken, then the delivery that caused it is
acknowledged. An effect that fails leaves the machine as it was, and the delivery comes again.

What a peer did wrong (`PeerError`, an event that no row expects) rejects that one delivery into the dead-letter
queue, with its reason, and changes nothing else. This is the only place that catches everything: a poison
message never stops a service.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from hubbub.errors import LocalError, PeerError, RejectReason, TransportError, UnexpectedEvent, Unroutable
from hubbub.machine.effects import CancelTimer, Effect, Failed, Job, Key, Publish, SetTimer, Tell
from hubbub.machine.table import Table, is_final, step
from hubbub.messages.base import Message
from hubbub.messages.codec import decode
from hubbub.messages.envelope import Envelope
from hubbub.runtime.clock import Clock
from hubbub.runtime.post import Identity, Post
from hubbub.runtime.telemetry import Counters, context
from hubbub.transport.base import ACK, RETRY, Delivery, Transport, Verdict, reject
from hubbub.transport.topology import inbox

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Live:
    """A machine that is running. Its table is typed where it is declared; here all machines mix."""

    table: Table[Any, Any]
    state: Enum
    data: Any


@dataclass(frozen=True, slots=True)
class Moment:
    """One step, as an observer sees it."""

    key: Key
    before: Enum
    event: object
    after: Enum
    data: object
    at_s: float


Observer = Callable[[Moment], None]
Fed = tuple[Key, object]


class Shell(Protocol):
    """What a service adds: its intake, its own effects and its jobs."""

    def receive(self, envelope: Envelope, *, size: int, now_s: float) -> Sequence[Fed]:
        """Check a message and turn it into events, or raise `PeerError`."""

    async def perform(self, key: Key, effect: Effect, payload: bytes) -> None:
        """Do an effect of this service; `payload` is that of the delivery that caused it."""

    async def work(self, key: Key, job: Job) -> object:
        """Do a job and return the event that it comes back as."""

    def retire(self, key: Key, live: Live) -> None:
        """A machine has reached a final state and leaves the runner."""


@dataclass(slots=True)
class _Waiting:
    key: Key
    event: object
    payload: bytes
    done: asyncio.Future[None] | None


class Runner:
    """Runs the machines of one party."""

    def __init__(
        self,
        *,
        identity: Identity,
        transport: Transport,
        shell: Shell,
        clock: Clock,
        counters: Counters,
        observer: Observer = lambda _: None,
    ) -> None:
        self.identity = identity
        self.post = Post(transport, identity)
        self.machines: dict[Key, Live] = {}
        self._transport = transport
        self._shell = shell
        self._clock = clock
        self._counters = counters
        self._observer = observer
        self._queue: asyncio.Queue[_Waiting] = asyncio.Queue()
        self._timers: dict[tuple[Key, str], asyncio.TimerHandle] = {}
        self._jobs: set[asyncio.Task[None]] = set()
        self._driver: asyncio.Task[None] | None = None

    async def start(self, *, prefetch: int = 8) -> None:
        """Begin to take events, then to take deliveries."""
        self._driver = asyncio.create_task(self._drive(), name=f"{self.identity.name} runner")
        await self._transport.subscribe(inbox(self.identity.name), self._handle, prefetch=prefetch)

    async def stop(self) -> None:
        """Stop timers, jobs and the driver; the transport is closed by whoever opened it."""
        for timer in self._timers.values():
            timer.cancel()
        tasks = [*self._jobs, *([self._driver] if self._driver else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def add(self, key: Key, table: Table[Any, Any], state: Enum, data: object) -> None:
        """Set a machine up in its initial state."""
        if key in self.machines:
            raise LocalError(f"machine {key} is running already")
        self.machines[key] = Live(table, state, data)

    def feed_soon(self, key: Key, event: object) -> None:
        """Queue an event; nobody waits for it."""
        self._queue.put_nowait(_Waiting(key, event, b"", None))

    async def feed(self, key: Key, event: object, payload: bytes = b"") -> None:
        """Queue an event and wait until its effects are done; raises what its step raised."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.put_nowait(_Waiting(key, event, payload, done))
        await done

    # From the transport ---------------------------------------------------------------------------------

    async def _handle(self, delivery: Delivery) -> Verdict:
        try:
            envelope = decode(delivery.body)
            with context(run=envelope.run, round=envelope.round, phase=envelope.phase):
                return await self._accept(envelope, len(delivery.body))
        except PeerError as error:
            return self._refuse(error.reason, str(error))

    async def _accept(self, envelope: Envelope, size: int) -> Verdict:
        try:
            self._check_address(envelope)
            for key, event in self._shell.receive(envelope, size=size, now_s=self._clock.now_s()):
                await self.feed(key, event, envelope.payload)
        except PeerError as error:
            return self._refuse(error.reason, f"{envelope!r}: {error}")
        except UnexpectedEvent as error:
            return self._refuse(RejectReason.UNEXPECTED, f"{envelope!r}: {error}")
        except (TransportError, OSError):
            log.exception("could not act on %r; it will be delivered again", envelope)
            return RETRY
        except Exception:
            log.exception("a bug: %r could not be handled; it is kept as a dead letter", envelope)
            return reject("internal-error")
        self._counters.received(envelope.kind)
        return ACK

    def _check_address(self, envelope: Envelope) -> None:
        me = self.identity
        if envelope.recipient != me.name or me.role not in envelope.body.recipients:
            raise PeerError(RejectReason.WRONG_RECIPIENT, f"this is for {envelope.recipient}, not for {me.name}")

    def _refuse(self, reason: RejectReason, explanation: str) -> Verdict:
        log.warning("refused: %s", explanation, extra={"reason": reason.value})
        self._counters.rejected(reason)
        return reject(reason.value)

    # The machines ---------------------------------------------------------------------------------------

    async def _drive(self) -> None:
        while True:
            waiting = await self._queue.get()
            try:
                await self._take(waiting)
            except Exception as error:  # noqa: BLE001  (Whatever it is, the other machines go on.)
                self._report(waiting, error)
            else:
                if waiting.done and not waiting.done.done():
                    waiting.done.set_result(None)

    def _report(self, waiting: _Waiting, error: Exception) -> None:
        """Give the error to whoever waits; with nobody waiting, to the machine itself."""
        if waiting.done and not waiting.done.done():
            waiting.done.set_exception(error)
            return
        log.error("%s could not be taken by %s", type(waiting.event).__name__, waiting.key, exc_info=error)
        if waiting.key in self.machines and not isinstance(waiting.event, Failed):
            self.feed_soon(waiting.key, Failed(f"{type(waiting.event).__name__}: {error}"))

    async def _take(self, waiting: _Waiting) -> None:
        key = waiting.key
        live = self.machines.get(key)
        if live is None:
            raise UnexpectedEvent(f"{type(waiting.event).__name__} is for {key}, which is over or never began")
        before = live.state
        result = step(live.table, live.state, live.data, waiting.event)
        # What must be on disk or at the broker is done first: if it fails, the event has not happened.
        for effect in result.effects:
            await self._perform(key, effect, waiting.payload)
        live.state, live.data = result.state, result.data
        for effect in result.effects:
            self._launch(key, effect)
        self._observer(Moment(key, before, waiting.event, live.state, live.data, self._clock.now_s()))
        if is_final(live.table, live.state):
            self._shell.retire(key, self.drop(key))

    def drop(self, key: Key) -> Live:
        """Take a machine out, with its timers; events that are still on their way to it are refused."""
        for owner, name in [timer for timer in self._timers if timer[0] == key]:
            self._timers.pop((owner, name)).cancel()
        return self.machines.pop(key)

    # The effects ----------------------------------------------------------------------------------------

    async def _perform(self, key: Key, effect: Effect, payload: bytes) -> None:
        match effect:
            case Job() | SetTimer() | CancelTimer() | Tell():
                pass  # Launched once the step is taken.
            case Publish():
                await self._publish(key, effect)
            case _:
                await self._shell.perform(key, effect, payload)

    def _launch(self, key: Key, effect: Effect) -> None:
        match effect:
            case Job():
                self._start(self._work(key, effect))
            case SetTimer():
                self._set_timer(key, effect)
            case CancelTimer():
                self._cancel_timer(key, effect.name)
            case Tell():
                self.feed_soon(effect.to, effect.event)

    async def _publish(self, key: Key, effect: Publish) -> None:
        if not isinstance(effect.body, Message):
            raise LocalError(f"{effect.body!r} is not a message")
        try:
            await self.post.send(key, to=effect.to, role=effect.role, body=effect.body, phase=effect.phase)
        except Unroutable:
            # The party has never been there. What must reach it is sent again by the machine's own timer.
            log.warning("%s has no inbox yet: %s was not delivered", effect.to, effect.body.kind)

    async def _work(self, key: Key, job: Job) -> None:
        try:
            event = await self._shell.work(key, job)
        except Exception as error:
            log.exception("%s failed", type(job).__name__)
            event = Failed(f"{type(job).__name__}: {error}")
        self.feed_soon(key, event)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._jobs.add(task)
        task.add_done_callback(self._jobs.discard)

    def _set_timer(self, key: Key, effect: SetTimer) -> None:
        self._cancel_timer(key, effect.name)
        delay_s = max(0.0, effect.at_s - self._clock.now_s())
        loop = asyncio.get_running_loop()
        self._timers[key, effect.name] = loop.call_later(delay_s, self._ring, key, effect)

    def _ring(self, key: Key, effect: SetTimer) -> None:
        self._timers.pop((key, effect.name), None)
        self.feed_soon(key, effect.event(at_s=self._clock.now_s()))

    def _cancel_timer(self, key: Key, name: str) -> None:
        timer = self._timers.pop((key, name), None)
        if timer is not None:
            timer.cancel()
