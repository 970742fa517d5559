"""The runner: delivery -> signature -> message -> event -> step -> effects -> verdict.

It is all the concurrency that a service has. Deliveries, finished jobs and timers all become events in one
queue, and one task takes them in order, so a machine is never stepped twice at once. For each event:

    1. the step is computed: nothing has happened yet
    2. what the event relies on is put on disk (`Persist`); if that refuses, the event has not happened
    3. the event is kept in the store, at once with what lies in the same file, and the step is taken: now it has
       happened, whatever comes
    4. all other effects are done in the order that the handler gave them, again and again until they succeed;
       records that come first, in the thread that kept the event
    5. jobs and timers are started, other machines are told
    6. the entry is marked as done, and the delivery that caused it is acknowledged

`EventLog` has the machines and their entries, `Effects` does steps 4 and 5, and `Recovery` rebuilds the machines
after a restart.

Nothing is looked at that its sender, as the roster knows it, has not signed. What a peer did wrong (`PeerError`,
an event that no row expects) rejects that one delivery into the dead-letter queue, with its reason, is counted
and recorded in the audit log, and changes nothing else. What is too large, or names no user of the broker, or is
more than one client may send another, is recorded and dropped. Only this module and `Effects` catch everything: a
poison message never stops a service.

A disk or database that fails is no fault of a message. While it does, the queues are paused, what could not be
kept is tried again, and nothing counts as a delivery.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

from hubbub.errors import LocalError, PeerError, RejectReason, StorageFailed, TransportError, UnexpectedEvent
from hubbub.ids import PartyId, Role
from hubbub.machine.effects import Effect, Failed, Key, Persist, Record
from hubbub.machine.table import Kind, is_final, step
from hubbub.messages.envelope import Envelope, Message
from hubbub.runtime.clock import Clock
from hubbub.runtime.effects import EffectHandler, Effects, StorageWatch, describe_failure, name_causes
from hubbub.runtime.event_log import BEGINNING, EventLog, Observer, RunningMachine, Transition
from hubbub.runtime.message_checks import (
    PeerLimits,
    Refusal,
    RefusalBook,
    admit,
    describe_dropped,
    describe_flood,
    is_dropped,
)
from hubbub.runtime.publisher import LONG_BYTES, Post
from hubbub.runtime.recovery import Recovery
from hubbub.runtime.telemetry import Counters, Gauges, Reading, context, current_context
from hubbub.store.base import Archive, Draft, EventStore
from hubbub.transport.base import ACK, RETRY, Delivery, Transport, Verdict, reject
from hubbub.transport.topology import peers_queue, received_from
from hubbub.trust.audit import AuditLog
from hubbub.trust.identity import Identity
from hubbub.trust.roster import Roster

log = logging.getLogger(__name__)

__all__ = [
    "BEGINNING",
    "KeyedEvent",
    "MachineOver",
    "Observer",
    "Runner",
    "RunnerStopped",
    "RunningMachine",
    "Shell",
    "Transition",
]

STALL_S = 180.0
"""The time without a sign of life after which the driver is taken for dead; no attempt takes as long."""


class RunnerStopped(LocalError):
    """The runner takes no more events; a delivery that waits for one goes back to its queue."""


class MachineOver(UnexpectedEvent):
    """The event is for a machine that has reached its end in the meantime, or was never set up."""


KeyedEvent = tuple[Key, object]


class Shell(EffectHandler, Protocol):
    """A service, as its runner sees it: its intake, its own effects and its jobs."""

    def receive(self, envelope: Envelope, *, size: int, now_s: float) -> Sequence[KeyedEvent]:
        """Check a message and turn it into events, or raise `PeerError`."""

    def persist(self, key: Key, effect: Persist, payload: bytes) -> None:
        """Put on disk what an event relies on, or refuse it; `payload` is that of the delivery that caused it.

        It is called in a thread. What is written to the store's own file is kept with the event, or not at all.
        """

    def retire(self, key: Key, live: RunningMachine) -> bool:
        """Let go of a machine that has reached a final state; say whether the store may forget it."""

    def restore(self, machines: Mapping[Key, RunningMachine]) -> None:
        """Bring back what belongs to the machines, which were rebuilt after a restart."""


@dataclass(slots=True)
class _Turn:
    """Something to take in. Its events are found when its turn comes: what is taken before may change them."""

    find: Callable[[], Sequence[KeyedEvent]]
    payload: bytes = field(repr=False)
    done: asyncio.Future[None]
    when_kept: bool = False
    """True if it is enough for whoever waits that the event is kept."""
    about: dict[str, object] = field(default_factory=current_context)
    """The fields of log lines that are written while it is taken."""


class Runner:
    """Runs the machines of one party."""

    def __init__(
        self,
        *,
        identity: Identity,
        roster: Roster,
        transport: Transport,
        shell: Shell,
        kinds: Mapping[str, Kind[Any, Any]],
        store: EventStore,
        clock: Clock,
        counters: Counters,
        audit: AuditLog,
        observer: Observer = lambda _: None,
        witness: Observer = lambda _: None,
        settled: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """`observer` sees a step when all is done that it asks for; `witness` sees it as soon as it is kept.

        A witness sees the steps of all machines that the store has entries of once more when they are rebuilt.
        `settled` is called when all is done that an event asked for, before the next is taken: the time to
        `archive`.
        """
        self.identity = identity
        self.roster = roster
        self.directory = roster.directory()
        self.post = Post(transport, identity, self.directory, counters.sent)
        self.event_log = EventLog(store, kinds, clock, counters.appends.observe)
        self.machines = self.event_log.machines
        self._transport = transport
        self._shell = shell
        self._clock = clock
        self.counters = counters
        self._refusals = RefusalBook(counters, audit)
        self._peer_limits = PeerLimits()
        self._observer = observer
        self._witness = witness
        self._settled = settled
        self._queues = received_from(identity.name, identity.role)
        self._storage = StorageWatch(transport, self._queues)
        self.effects = Effects(
            handler=shell,
            post=self.post,
            clock=clock,
            counters=counters,
            audit=audit,
            refusals=self._refusals,
            storage=self._storage,
            running=self.machines,
            feed_soon=self.feed_soon,
            give_sign_of_life=self._give_sign_of_life,
        )
        self._begun: list[Key] = []
        self._over: list[Key] = []
        self._queue: asyncio.Queue[_Turn | KeyedEvent] = asyncio.Queue()
        self._driver: asyncio.Task[None] | None = None
        self._now: _Turn | KeyedEvent | None = None
        self._replayed = False
        self._receiving = True
        self._stopped = False
        self._last_event_at_s = clock.now_s()
        self._sign_of_life_s: float | None = None
        counters.expect(kinds)
        counters.registry.register(Gauges(identity.role.value, kinds, self._read))

    async def start(self, *, prefetch: int = 8, receiving: bool = True) -> None:
        """Rebuild what the store knows, begin to take events, then to take deliveries.

        With `receiving` false, deliveries are left in the queue until `receive` is called.
        """
        # All tasks that are begun here, and those that they begin, write their log lines in our name.
        with context(party=self.identity.name):
            recovery = Recovery(
                event_log=self.event_log,
                effects=self.effects,
                clock=self._clock,
                witness=self._witness,
                restore=self._shell.restore,
                retire=self._retire,
            )
            await recovery.run()
            for key in self.machines:
                self.directory.add_run(key.run)
            self._receiving = receiving
            self._replayed = True
            self._driver = asyncio.create_task(self._drive(), name=f"{self.identity.name} runner")
            if receiving:
                await self._subscribe(prefetch)

    async def receive(self, *, prefetch: int = 8) -> None:
        """Take deliveries from now on, if they were left in the queue so far."""
        if self._receiving:
            return
        self._receiving = True
        try:
            with context(party=self.identity.name):
                await self._subscribe(prefetch)
        except BaseException:
            self._receiving = False
            raise

    async def _subscribe(self, prefetch: int) -> None:
        for queue in self._queues:
            handle = self._handle_peer if queue == peers_queue(self.identity.name) else self._handle
            await self._transport.subscribe(queue, handle, prefetch=prefetch)

    async def stop(self) -> None:
        """Stop timers, jobs and the driver; the transport is closed by whoever opened it.

        Whoever waits for an event is told, or the transport would wait for its handler forever.
        """
        self._stopped = True
        self._storage.close()
        tasks = self.effects.stop()
        if self._driver is not None:
            self._driver.cancel()
            tasks.append(self._driver)
        await asyncio.gather(*tasks, return_exceptions=True)
        self._refusals.close()
        left = [self._queue.get_nowait() for _ in range(self._queue.qsize())]
        for turn in [*([self._now] if self._now else []), *left]:
            if isinstance(turn, _Turn) and not turn.done.done():
                turn.done.set_exception(RunnerStopped("the service is being stopped"))

    def find_problems(self) -> tuple[str, ...]:
        """List what keeps this party from being ready, in words for an operator."""
        condition, trouble = self._transport.condition, self._storage.trouble
        listens = self._receiving and not trouble
        silent = [
            (listens and queue not in condition.consuming, f"nothing is received from the queue {queue}")
            for queue in self._queues
        ]
        return tuple(
            problem
            for is_so, problem in (
                (self._stopped, "the service is being stopped"),
                (not self._replayed, "the event log is not replayed yet"),
                (self._driver is not None and self._driver.done(), "no events are taken any more: see the log"),
                (not condition.connected, "there is no connection to the broker"),
                (bool(trouble), f"storage fails, so no messages are taken: {trouble}"),
                *silent,
                (condition.blocked, "the broker takes no messages: it is short of memory or disk"),
            )
            if is_so
        )

    def find_stall(self) -> str:
        """Say why no more events will ever be taken, though the process is there; empty while they are.

        An outage is no stall: what fails is tried again, and every attempt is a sign of life.
        """
        if self._driver is not None and self._driver.done() and not self._stopped:
            return "no events are taken any more: see the log, and start this party again"
        since_s = self._sign_of_life_s
        silent_s = 0.0 if since_s is None else time.monotonic() - since_s
        if silent_s > STALL_S:
            return f"one event has taken {silent_s:.0f} s: a disk or database may hang; start this party again"
        return ""

    def _read(self) -> Reading:
        return Reading(
            ready=not self.find_problems(),
            storage_failed=bool(self._storage.trouble),
            condition=self._transport.condition,
            queues=self._queues,
            machines=tuple((key.kind, live.state) for key, live in list(self.machines.items())),
            jobs=len(self.effects.jobs),
            turns=self._queue.qsize(),
            entries=self.event_log.entries,
            clock_ahead_s=self._clock.ahead_s(),
            last_event_at_s=self._last_event_at_s,
        )

    def add(self, key: Key, data: object) -> None:
        """Set a machine up in its initial state; it is kept with its first event."""
        self.directory.add_run(key.run)
        self.event_log.add(key, data)

    async def set_up(self, key: Key, data: object) -> None:
        """Set a machine up that may wait for its first event; one that is there stays.

        What an event's effect sets up is kept before the event counts as done: with the first event that it is
        told at once, or alone. Whoever else sets something up finds it kept when this returns.
        """
        if key in self.machines:
            return
        self.add(key, data)
        self._begun.append(key)
        if self._now is None:
            await self._keep_begun()

    def feed_soon(self, key: Key, event: object) -> None:
        """Queue an event; nobody waits for it."""
        self._queue.put_nowait((key, event))

    async def feed(self, key: Key, event: object) -> None:
        """Queue an event and wait until its effects are done; raises what its step raised."""
        await self._wait_for_turn(lambda: [(key, event)], b"")

    async def feed_until_kept(self, key: Key, event: object) -> None:
        """Queue an event and wait until it is kept: from then on it will take effect, whatever comes."""
        await self._wait_for_turn(lambda: [(key, event)], b"", when_kept=True)

    async def _wait_for_turn(
        self, find: Callable[[], Sequence[KeyedEvent]], payload: bytes, *, when_kept: bool = False
    ) -> None:
        if self._stopped:
            raise RunnerStopped("the service is being stopped")
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.put_nowait(_Turn(find, payload, done, when_kept))
        await done

    # From the transport ---------------------------------------------------------------------------------

    async def _handle_peer(self, delivery: Delivery) -> Verdict:
        """Handle what another client sent; if it has sent too much, drop it without a look."""
        if self._peer_limits.admit(delivery, time.monotonic()):
            return await self._handle(delivery)
        await self._refusals.note(describe_flood(delivery))
        return ACK

    async def _handle(self, delivery: Delivery) -> Verdict:
        if self._stopped:
            # The shell may be closed already; the message waits at the broker for the next start.
            return RETRY
        if is_dropped(delivery):
            describe = partial(describe_dropped, delivery)
            is_long = len(delivery.body) > LONG_BYTES
            await self._refusals.note(await asyncio.to_thread(describe) if is_long else describe())
            return ACK
        message = admit(self.identity, self.roster, self.directory, delivery.body)
        if isinstance(message, Refusal):
            return await self._refuse(message, delivery)
        with context(run=message.run, round=message.round, phase=message.phase):
            return await self._accept(message, delivery)

    async def _accept(self, envelope: Envelope, delivery: Delivery) -> Verdict:
        """Act on a message that was admitted at the edge."""
        size, found = len(delivery.body), tuple[KeyedEvent, ...]()

        def find() -> Sequence[KeyedEvent]:
            nonlocal found
            found = tuple(self._shell.receive(envelope, size=size, now_s=self._clock.now_s()))
            return found

        try:
            # The broker counts deliveries, and gives a message up that was delivered too often.
            take = partial(self._wait_for_turn, find, envelope.payload)
            await self.effects.retry_through_outages("event", envelope.kind, take)
        except PeerError as error:
            return await self._refuse(Refusal.of(error.reason, str(error), envelope), delivery)
        except MachineOver as error:
            log.info("%s changes nothing: %s", envelope.kind, error)
            self.counters.late.labels(envelope.kind).inc()
            return ACK
        except UnexpectedEvent as error:
            return await self._refuse(Refusal.of(RejectReason.UNEXPECTED, str(error), envelope), delivery)
        except RunnerStopped:
            return RETRY
        except Exception:
            log.exception("a bug: %r could not be handled; it is kept as a dead letter", envelope)
            self.counters.broken.inc()
            return reject("internal-error")
        self.counters.received(envelope.kind).inc()
        if found:
            self.counters.carried("received", envelope, size)
        return ACK

    async def _refuse(self, refusal: Refusal, delivery: Delivery) -> Verdict:
        """Refuse a message: it is counted and recorded, and put aside with its reason."""
        with context(run=refusal.run, round=refusal.round, phase=refusal.phase):
            await self._refusals.note(replace(refusal, user=delivery.user))
        return reject(refusal.reason.value)

    # The machines ---------------------------------------------------------------------------------------

    async def _drive(self) -> None:
        await self._settle()  # What was told before the restart and not taken.
        while True:
            self._sign_of_life_s = None
            self._now = turn = await self._queue.get()
            self._give_sign_of_life()
            if isinstance(turn, _Turn):
                await self._take_turn(turn)
            else:
                await self._take_alone(*turn)
            await self._settle()
            self._now = None

    def _give_sign_of_life(self) -> None:
        self._sign_of_life_s = time.monotonic()

    async def _settle(self) -> None:
        """Take what machines told each other before anything else, so that no message finds one a step behind."""
        while self.effects.told:
            self._give_sign_of_life()
            told = self.effects.told.popleft()
            await self._take_alone(told.key, told.event, told.cause)
        await self._keep_begun()
        self.event_log.mark_done()
        if self._over:
            over, self._over = self._over, []
            forget = partial(asyncio.to_thread, self.event_log.store.drop, over)
            await self.effects.retry_until_done("forget what is over", forget)
        if self._settled is not None:
            await self._settled()

    async def archive(self, draw_up: Callable[[], Archive]) -> bool:
        """Put an archive in the place of entries, as soon as the store takes it; say whether all of it was done.

        It is drawn up in a thread, and again if the store fails. Snapshots in it are those of the event log.
        """
        attempt = partial(self.event_log.archive, draw_up)
        return await self.effects.retry_until_done("archive what is over", attempt)

    async def _keep_begun(self) -> None:
        """Keep machines that were set up and that no event has reached yet."""
        begun = [key for key in self._begun if key in self.machines and not self.machines[key].kept]
        if begun:
            drafts = [self.event_log.draft_beginning(key, self.machines[key]) for key in begun]
            await self.effects.retry_until_done("keep what was set up", partial(self.event_log.append, drafts))
        for key in begun:
            self.event_log.count(self.machines[key], 1)
        self._begun.clear()

    async def _take_turn(self, turn: _Turn) -> None:
        """Take events that somebody waits for, and give them the outcome."""
        try:
            with context(**turn.about):
                for key, event in turn.find():
                    await self._take(key, event, turn)
        except Exception as error:  # noqa: BLE001  (Whatever it is, it is for the one who waits.)
            if not turn.done.done():
                turn.done.set_exception(error)
        else:
            if not turn.done.done():
                turn.done.set_result(None)

    async def _take_alone(self, key: Key, event: object, cause: str = "") -> None:
        """Take an event that nobody waits for; what goes wrong is for the machine itself to deal with."""
        with context(run=key.run, round=key.round, phase=key.phase):
            try:
                await self._take(key, event, None, cause)
            except MachineOver as error:
                log.info("%s", error)
            except StorageFailed as error:
                # Nothing has happened: it is tried again, as a delivery would be.
                self._storage.fail(id(event), error)
                self.counters.retries.labels("event").inc()
                await self.effects.put_off(key, event, cause)
                return
            except Exception as error:
                log.exception("%s could not be taken by %s", type(event).__name__, key)
                self.counters.broken.inc()
                if key in self.machines and not isinstance(event, Failed):
                    self.feed_soon(key, describe_failure(error))
        self._storage.recover(id(event))

    async def _take(self, key: Key, event: object, turn: _Turn | None, cause: str = "") -> None:
        live = self.machines.get(key)
        if live is None:
            raise MachineOver(f"{type(event).__name__} is for {key}, which is over or never began")
        with context(run=key.run, round=key.round, phase=key.phase):
            result = step(live.kind.table, live.state, live.data, event)
            payload = turn.payload if turn else b""
            sequence, left = await self._keep(key, live, event, cause, result.effects, payload)
            moment = self.event_log.enter(sequence, key, live, event, result)
            self._witness(moment)
            if turn and turn.when_kept and not turn.done.done():
                turn.done.set_result(None)
            bug = await self.effects.perform_until_done(key, left)
            for effect_cause, effect in name_causes(sequence, result.effects):
                self.effects.launch(key, effect, effect_cause)
            if bug is None:
                self.event_log.finish(sequence)
            what = "stays" if moment.before is moment.after else "is"
            log.debug("%s takes %s: %s %s", key.kind, type(event).__name__, what, moment.after.name)
            final = is_final(live.kind.table, live.state)
            self.counters.stepped(key, event, live.state, final=final)
            self._observer(replace(moment, at_s=self._clock.now_s()))
            if final:
                self._retire(key)
            if bug is not None:
                raise bug

    async def _keep(
        self, key: Key, live: RunningMachine, event: object, cause: str, effects: Sequence[Effect], payload: bytes
    ) -> tuple[int, Sequence[Effect]]:
        """Keep an event with what it relies on; gives its number, and the effects that are still to be done."""
        drafts = self.event_log.draft(key, live, event, cause)
        relied_on = [
            partial(self._shell.persist, key, each, payload) for each in effects if isinstance(each, Persist)
        ]
        left = deque(effect for effect in effects if not isinstance(effect, Persist))
        began_s = time.monotonic()
        sequence, kept_s = await asyncio.to_thread(self._write_and_record, key, drafts, relied_on, left)
        self.counters.appends.observe(kept_s - began_s)
        self.event_log.count(live, len(drafts))
        self._last_event_at_s = self._clock.now_s()
        return sequence, left

    def _write_and_record(
        self, key: Key, drafts: Sequence[Draft], relied_on: Sequence[Callable[[], None]], left: deque[Effect]
    ) -> tuple[int, float]:
        """Keep entries and, in the same thread, do the first effects if they are records: to change it takes time.

        What cannot be recorded now is left to be done as all other effects are, again and again.
        """
        sequence, kept_s = self.event_log.write(drafts, relied_on), time.monotonic()
        while left and isinstance(record := left[0], Record):
            try:
                self.effects.append_record(key, record)
            except Exception as error:  # noqa: BLE001  (Whatever it is: it is tried again where such is dealt with.)
                log.info("%s could not be recorded at once: %s", record.kind, type(error).__name__)
                break
            left.popleft()
        return sequence, kept_s

    def _retire(self, key: Key) -> None:
        live = self.drop(key)
        if self._shell.retire(key, live):
            self._over.append(key)
            self.event_log.entries -= live.entries

    def forget(self, key: Key) -> None:
        """Take a machine out for good, in the store too."""
        self.event_log.entries -= self.drop(key).entries
        self._over.append(key)

    def answer(self, key: Key, *, to: PartyId, role: Role, body: Message) -> None:
        """Say something for which there is no machine; it is said again if it is asked for again."""

        async def say() -> None:
            try:
                await self.post.send(key, to=to, role=role, body=body)
            except TransportError as error:
                log.warning("%s could not be sent: %s", body.kind, error)

        self.effects.start(say())

    def drop(self, key: Key) -> RunningMachine:
        """Take a machine out, with its timers; events that are still on their way to it are refused."""
        self.effects.cancel_timers(key)
        return self.machines.pop(key)
