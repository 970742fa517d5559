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
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

from hubbub.errors import (
    HubbubError,
    LocalError,
    PeerError,
    RejectReason,
    TransportError,
    UnexpectedEvent,
    Unroutable,
)
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


class RunnerStopped(LocalError):
    """The runner takes no more events; a delivery that waits for one goes back to its queue."""


class MachineOver(UnexpectedEvent):
    """The event is for a machine that has reached its end in the meantime, or was never set up."""


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
class _Turn:
    """Something to take in. Its events are found when its turn comes: what is taken before may change them."""

    find: Callable[[], Sequence[Fed]]
    payload: bytes = field(repr=False)
    done: asyncio.Future[None]


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
        self._queue: asyncio.Queue[_Turn | Fed] = asyncio.Queue()
        self._told: deque[Fed] = deque()
        self._timers: dict[tuple[Key, str], asyncio.TimerHandle] = {}
        self._jobs: set[asyncio.Task[None]] = set()
        self._driver: asyncio.Task[None] | None = None
        self._now: _Turn | Fed | None = None
        self._stopped = False

    async def start(self, *, prefetch: int = 8) -> None:
        """Begin to take events, then to take deliveries."""
        self._driver = asyncio.create_task(self._drive(), name=f"{self.identity.name} runner")
        await self._transport.subscribe(inbox(self.identity.name), self._handle, prefetch=prefetch)

    async def stop(self) -> None:
        """Stop timers, jobs and the driver; the transport is closed by whoever opened it.

        Whoever waits for an event is told, or the transport would wait for its handler forever.
        """
        self._stopped = True
        for timer in self._timers.values():
            timer.cancel()
        tasks = [*self._jobs, *([self._driver] if self._driver else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        left = [self._queue.get_nowait() for _ in range(self._queue.qsize())]
        for turn in [*([self._now] if self._now else []), *left]:
            if isinstance(turn, _Turn) and not turn.done.done():
                turn.done.set_exception(RunnerStopped("the service is being stopped"))

    def add(self, key: Key, table: Table[Any, Any], state: Enum, data: object) -> None:
        """Set a machine up in its initial state."""
        if key in self.machines:
            raise LocalError(f"machine {key} is running already")
        self.machines[key] = Live(table, state, data)

    def feed_soon(self, key: Key, event: object) -> None:
        """Queue an event; nobody waits for it."""
        self._queue.put_nowait((key, event))

    async def feed(self, key: Key, event: object) -> None:
        """Queue an event and wait until its effects are done; raises what its step raised."""
        await self._wait_for_turn(lambda: [(key, event)], b"")

    async def _wait_for_turn(self, find: Callable[[], Sequence[Fed]], payload: bytes) -> None:
        if self._stopped:
            raise RunnerStopped("the service is being stopped")
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.put_nowait(_Turn(find, payload, done))
        await done

    # From the transport ---------------------------------------------------------------------------------

    async def _handle(self, delivery: Delivery) -> Verdict:
        if self._stopped:
            # The shell may be closed already; the message waits at the broker for the next start.
            return RETRY
        try:
            envelope = decode(delivery.body)
            with context(run=envelope.run, round=envelope.round, phase=envelope.phase):
                return await self._accept(envelope, len(delivery.body))
        except PeerError as error:
            return self._refuse(error.reason, str(error))

    async def _accept(self, envelope: Envelope, size: int) -> Verdict:
        try:
            self._check_address(envelope)
            await self._wait_for_turn(
                lambda: self._shell.receive(envelope, size=size, now_s=self._clock.now_s()), envelope.payload
            )
        except PeerError as error:
            return self._refuse(error.reason, f"{envelope!r}: {error}")
        except MachineOver as error:
            log.info("%s changes nothing: %s", envelope.kind, error)
            self._counters.late(envelope.kind)
            return ACK
        except UnexpectedEvent as error:
            return self._refuse(RejectReason.UNEXPECTED, f"{envelope!r}: {error}")
        except RunnerStopped:
            return RETRY
        except (TransportError, OSError):
            log.exception("could not act on %r; it will be delivered again", envelope)
            return RETRY
        except Exception:
            log.exception("a bug: %r could not be handled; it is kept as a dead letter", envelope)
            self._counters.broken()
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
            self._now = turn = await self._queue.get()
            if isinstance(turn, _Turn):
                await self._take_turn(turn)
            else:
                await self._take_alone(*turn)
            # What machines told each other comes before anything else does, so that no message finds one of
            # them a step behind the other.
            while self._told:
                await self._take_alone(*self._told.popleft())
            self._now = None

    async def _take_turn(self, turn: _Turn) -> None:
        """Take events that somebody waits for, and give them the outcome."""
        try:
            for key, event in turn.find():
                await self._take(key, event, turn.payload)
        except Exception as error:  # noqa: BLE001  (Whatever it is, it is for the one who waits.)
            if not turn.done.done():
                turn.done.set_exception(error)
        else:
            if not turn.done.done():
                turn.done.set_result(None)

    async def _take_alone(self, key: Key, event: object) -> None:
        """Take an event that nobody waits for; what goes wrong is for the machine itself to deal with."""
        try:
            await self._take(key, event, b"")
        except MachineOver as error:
            log.info("%s", error)
        except Exception as error:
            log.exception("%s could not be taken by %s", type(event).__name__, key)
            if key in self.machines and not isinstance(event, Failed):
                self.feed_soon(key, Failed(f"{type(event).__name__}: {error}"))

    async def _take(self, key: Key, event: object, payload: bytes) -> None:
        live = self.machines.get(key)
        if live is None:
            raise MachineOver(f"{type(event).__name__} is for {key}, which is over or never began")
        before = live.state
        with context(run=key.run, round=key.round, phase=key.phase):
            result = step(live.table, live.state, live.data, event)
            # What must be on disk or at the broker is done first: if it fails, the event has not happened.
            for effect in result.effects:
                await self._perform(key, effect, payload)
            live.state, live.data = result.state, result.data
            for effect in result.effects:
                self._launch(key, effect)
            self._observer(Moment(key, before, event, live.state, live.data, self._clock.now_s()))
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
                self._told.append((effect.to, effect.event))

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
        except HubbubError as error:
            log.warning("%s failed: %s", type(job).__name__, error)
            event = Failed(str(error))
        except Exception as error:
            log.exception("%s failed", type(job).__name__)
            event = Failed(f"{type(error).__name__}: {error}")
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
