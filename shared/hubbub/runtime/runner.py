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

After a restart the machines are rebuilt from the store by taking the same steps again, from the last snapshot on
where there is one. Effects of entries that are not marked as done are done again, what was told is told once, and
each machine resumes its jobs and timers. The time since the newest event does not count against a timer: the party
was away, or its clock was set.

Nothing is looked at that its sender, as the roster knows it, has not signed. What a peer did wrong (`PeerError`,
an event that no row expects) rejects that one delivery into the dead-letter queue, with its reason, is counted
and recorded in the audit log, and changes nothing else. What is too large, or names no user of the broker, or is
more than one client may send another, is recorded and dropped. This is the only place that catches everything: a
poison message never stops a service.

A disk or database that fails is no fault of a message. While it does, the queues are paused, what could not be
kept is tried again, and nothing counts as a delivery.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from typing import Any, Literal, Protocol, TypeVar

from prometheus_client import CollectorRegistry

from hubbub.errors import (
    Code,
    HubbubError,
    LocalError,
    PeerError,
    RejectReason,
    StorageFailed,
    TransportError,
    UnexpectedEvent,
    Unroutable,
)
from hubbub.ids import PartyId, Role, RunId
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
from hubbub.machine.table import Kind, Step, is_final, step
from hubbub.messages.envelope import Envelope, Message
from hubbub.runtime.clock import Clock
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
from hubbub.runtime.storage_watch import StorageWatch
from hubbub.runtime.telemetry import Counters, Gauges, Reading, context, current_context
from hubbub.store.base import Archive, Draft, Entry, EventStore, Snapshot
from hubbub.store.event_codec import EventCodec
from hubbub.transport.base import ACK, RETRY, Delivery, Transport, Verdict, reject
from hubbub.transport.topology import peers_queue, received_from
from hubbub.trust.audit import AuditLog
from hubbub.trust.identity import Identity
from hubbub.trust.roster import Roster

log = logging.getLogger(__name__)

T = TypeVar("T")

BEGINNING = "beginning"
"""The kind of the entry that sets a machine up; what it holds is the machine's data."""
RESUMED = "resumed"
"""The kind of the entry by which a restart moves a machine's timers: when that was, and by how many seconds."""
NEWEST = Key("newest", RunId(""))
"""The snapshot of no machine, which says when the newest event happened whose entry may be gone."""
PAUSE_S = 1.0
"""Between two attempts at what must succeed."""
STALL_S = 180.0
"""After this long without a sign of life the driver is taken for dead; no attempt at anything takes as long."""


class RunnerStopped(LocalError):
    """The runner takes no more events; a delivery that waits for one goes back to its queue."""


class MachineOver(UnexpectedEvent):
    """The event is for a machine that has reached its end in the meantime, or was never set up."""


@dataclass(slots=True)
class RunningMachine:
    """A machine that is running. Its kind is typed where it is declared; here all machines mix."""

    kind: Kind[Any, Any]
    state: Enum
    data: Any
    kept: bool = False
    """Whether the store knows of it."""
    entries: int = field(default=0, compare=False)
    """How many entries it has there."""
    moved_s: float = field(default=0.0, compare=False)
    """By how much restarts have moved the timers that it set last."""


@dataclass(frozen=True, slots=True)
class Transition:
    """One step, as an observer sees it."""

    sequence: int
    """The number of the event's entry in the store: it goes up, and stays the same across restarts."""
    key: Key
    before: Enum
    event: object
    after: Enum
    data: object
    at_s: float
    earlier: object
    """What the machine knew before the event."""


Observer = Callable[[Transition], None]
KeyedEvent = tuple[Key, object]


async def _nothing() -> None:
    """Do nothing."""


class Shell(Protocol):
    """What a service adds: its intake, its own effects and its jobs."""

    def receive(self, envelope: Envelope, *, size: int, now_s: float) -> Sequence[KeyedEvent]:
        """Check a message and turn it into events, or raise `PeerError`."""

    def persist(self, key: Key, effect: Persist, payload: bytes) -> None:
        """Put on disk what an event relies on, or refuse it; `payload` is that of the delivery that caused it.

        It is called in a thread. What is written to the store's own file is kept with the event, or not at all.
        """

    async def perform(self, key: Key, effect: Effect) -> None:
        """Do an effect of this service that follows from an event."""

    async def work(self, key: Key, job: Job) -> object:
        """Do a job and return the event that it comes back as."""

    def retire(self, key: Key, live: RunningMachine) -> bool:
        """A machine has reached a final state and leaves the runner; say whether the store may forget it."""

    def restore(self, machines: Mapping[Key, RunningMachine]) -> None:
        """The machines were rebuilt after a restart: bring back what belongs to them."""


@dataclass(slots=True)
class _Turn:
    """Something to take in. Its events are found when its turn comes: what is taken before may change them."""

    find: Callable[[], Sequence[KeyedEvent]]
    payload: bytes = field(repr=False)
    done: asyncio.Future[None]
    when_kept: bool = False
    """Whether it is enough for whoever waits that the event is kept."""
    about: dict[str, object] = field(default_factory=current_context)
    """What log lines say that are written while it is taken."""


@dataclass(frozen=True, slots=True)
class _Told:
    """An event that one machine has for another; the cause tells it from any other."""

    key: Key
    event: object
    cause: str


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
        settled: Callable[[], Awaitable[None]] = _nothing,
    ) -> None:
        """`observer` sees a step when all is done that it asks for; `witness` sees it as soon as it is kept.

        A witness sees the steps of all machines that the store has entries of once more when they are rebuilt.
        `settled` is called when all is done that an event asked for, before the next is taken: the time to
        `archive`.
        """
        self.identity = identity
        self.roster = roster
        self.post = Post(transport, identity, counters.sent)
        self.machines: dict[Key, RunningMachine] = {}
        self._transport = transport
        self._shell = shell
        self._clock = clock
        self._counters = counters
        self._audit = audit
        self._refusals = RefusalBook(counters, audit)
        self._peer_limits = PeerLimits()
        self._observer = observer
        self._witness = witness
        self._settled = settled
        self._kinds = kinds
        self._store = store
        self._queues = received_from(identity.name, identity.role)
        self._storage = StorageWatch(transport, self._queues)
        self._shapes = EventCodec(shape for kind in kinds.values() for shape in (kind.data, *kind.events))
        self._unfinished: list[int] = []
        self._begun: list[Key] = []
        self._over: list[Key] = []
        self._queue: asyncio.Queue[_Turn | KeyedEvent] = asyncio.Queue()
        self._told: deque[_Told] = deque()
        self._timers: dict[tuple[Key, str], asyncio.TimerHandle] = {}
        self._jobs: set[asyncio.Task[None]] = set()
        self._driver: asyncio.Task[None] | None = None
        self._now: _Turn | KeyedEvent | None = None
        self._replayed = False
        self._receiving = True
        self._stopped = False
        self._entries = 0
        self._last_event_at_s = clock.now_s()
        self._newest_s = 0.0
        """When the newest event in the store happened, as far as events say."""
        self._sign_of_life_s: float | None = None
        counters.expect(kinds)
        counters.registry.register(Gauges(identity.role.value, kinds, self._read))

    async def start(self, *, prefetch: int = 8, receiving: bool = True) -> None:
        """Rebuild what the store knows, begin to take events, then to take deliveries.

        With `receiving` false, deliveries are left in the queue until `receive` is called.
        """
        # All tasks that are begun here, and those that they begin, write their log lines in our name.
        with context(party=self.identity.name):
            await self._recover()
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
        for timer in self._timers.values():
            timer.cancel()
        tasks = [*self._jobs, *([self._driver] if self._driver else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._refusals.close()
        left = [self._queue.get_nowait() for _ in range(self._queue.qsize())]
        for turn in [*([self._now] if self._now else []), *left]:
            if isinstance(turn, _Turn) and not turn.done.done():
                turn.done.set_exception(RunnerStopped("the service is being stopped"))

    def find_problems(self) -> tuple[str, ...]:
        """What keeps this party from being ready, in words for an operator; nothing when it is ready."""
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
        """Why no more events will ever be taken, though the process is there; empty while they are.

        An outage is no stall: what fails is tried again, and every attempt is a sign of life.
        """
        if self._driver is not None and self._driver.done() and not self._stopped:
            return "no events are taken any more: see the log, and start this party again"
        since_s = self._sign_of_life_s
        silent_s = 0.0 if since_s is None else time.monotonic() - since_s
        if silent_s > STALL_S:
            return f"one event has taken {silent_s:.0f} s: a disk or database may hang; start this party again"
        return ""

    @property
    def counters(self) -> Counters:
        """What this party counts."""
        return self._counters

    @property
    def registry(self) -> CollectorRegistry:
        """This party's metrics."""
        return self._counters.registry

    def _read(self) -> Reading:
        return Reading(
            ready=not self.find_problems(),
            storage_failed=bool(self._storage.trouble),
            condition=self._transport.condition,
            queues=self._queues,
            machines=tuple((key.kind, live.state) for key, live in list(self.machines.items())),
            jobs=len(self._jobs),
            turns=self._queue.qsize(),
            entries=self._entries,
            clock_ahead_s=self._clock.ahead_s(),
            last_event_at_s=self._last_event_at_s,
        )

    def add(self, key: Key, data: object) -> None:
        """Set a machine up in its initial state; it is kept with its first event."""
        if key in self.machines:
            raise LocalError(f"machine {key} is running already")
        kind = self._kinds[key.kind]
        self.machines[key] = RunningMachine(kind, kind.initial, data)

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

    def _beginning(self, key: Key, data: object) -> Draft:
        return Draft(key, BEGINNING, self._shapes.dump(data), done=True)

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
            return await self._drop(delivery)
        message = admit(self.identity, self.roster, delivery.body)
        if isinstance(message, Refusal):
            return await self._refuse(message, delivery)
        with context(run=message.run, round=message.round, phase=message.phase):
            return await self._accept(message, delivery)

    async def _drop(self, delivery: Delivery) -> Verdict:
        """Refuse a message that is not put aside either; what is known of it is recorded."""
        takes_long = len(delivery.body) > LONG_BYTES
        await self._refusals.note(
            await asyncio.to_thread(describe_dropped, delivery) if takes_long else describe_dropped(delivery)
        )
        return ACK

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
            await self._retry_through_outages("event", envelope.kind, take)
        except PeerError as error:
            return await self._refuse(Refusal.of(error.reason, str(error), envelope), delivery)
        except MachineOver as error:
            log.info("%s changes nothing: %s", envelope.kind, error)
            self._counters.late(envelope.kind)
            return ACK
        except UnexpectedEvent as error:
            return await self._refuse(Refusal.of(RejectReason.UNEXPECTED, str(error), envelope), delivery)
        except RunnerStopped:
            return RETRY
        except Exception:
            log.exception("a bug: %r could not be handled; it is kept as a dead letter", envelope)
            self._counters.broken()
            return reject("internal-error")
        self._counters.received(envelope.kind)
        if found:
            self._counters.carried("received", envelope, size)
        return ACK

    async def _refuse(self, refusal: Refusal, delivery: Delivery) -> Verdict:
        """Refuse a message: it is counted and recorded, and put aside with its reason."""
        with context(run=refusal.run, round=refusal.round, phase=refusal.phase):
            await self._refusals.note(replace(refusal, user=delivery.user))
        return reject(refusal.reason.value)

    # After a restart ------------------------------------------------------------------------------------

    async def _recover(self) -> None:
        """Take the kept steps again, then do what was not done, and take up what was under way."""
        snapshots = await asyncio.to_thread(self._store.read_ongoing)
        entries = await asyncio.to_thread(self._store.read)
        try:
            for snapshot in snapshots:
                self._go_on_from(snapshot)
            taken = [(entry, self._take_again(entry)) for entry in entries]
        except LocalError as error:
            raise LocalError(
                f"{self._store.place} cannot be replayed: {error}; it is damaged, or another version wrote it:"
                " start that version, or move it away to begin without it, which ends the runs that were open"
            ) from None
        undone = [(entry, result) for entry, result in taken if result is not None and not entry.done]
        self._clock.go_on_from(self._newest_s)
        self._shell.restore(self.machines)
        told = {entry.cause for entry in entries if entry.cause}
        for entry, result in undone:
            await self._finish_again(entry, result, told)
        away_s, moved = (self._clock.now_s() - self._newest_s if self._newest_s else 0.0), list[Key]()
        for key, live in list(self.machines.items()):
            if key not in self.machines:
                continue  # It went with its run.
            with context(run=key.run, round=key.round, phase=key.phase):
                if self._take_up_again(key, live, away_s):
                    moved.append(key)
        await self._keep_moved(moved, away_s)
        if entries or snapshots:
            log.info("rebuilt %d machines from %d events", len(self.machines), len(entries))

    def _take_up_again(self, key: Key, live: RunningMachine, away_s: float) -> bool:
        """Take up a machine's jobs and timers; say whether timers were moved by the time that we were away."""
        if is_final(live.kind.table, live.state):
            self._retire(key)
            return False
        effects = [_move(effect, live.moved_s + away_s) for effect in live.kind.resume(live.state, live.data)]
        for effect in effects:
            self._launch(key, effect, "")
        return away_s > 0 and any(isinstance(effect, SetTimer) and effect.at_s for effect in effects)

    async def _keep_moved(self, moved: Sequence[Key], away_s: float) -> None:
        """Keep by how much timers were moved, so that the next restart finds them where they are."""
        drafts = [
            Draft(key, RESUMED, json.dumps([self._newest_s + away_s, away_s]), done=True)
            for key in moved
            if key in self.machines
        ]
        if not drafts:
            return
        try:
            await self._append(drafts)
        except StorageFailed as error:
            # Only a second restart in the same phase would miss it.
            log.error("deadlines could not be kept: %s", error)  # noqa: TRY400
        else:
            self._newest_s += away_s
            for draft in drafts:
                live = self.machines[draft.key]
                live.moved_s += away_s
                self._count_entries(live, 1)

    def _kind_of(self, key: Key) -> Kind[Any, Any]:
        kind = self._kinds.get(key.kind)
        if kind is None:
            raise LocalError(f"the store holds a machine {key}, which this service does not have")
        return kind

    def _go_on_from(self, snapshot: Snapshot) -> None:
        """Have a machine again as it was when the snapshot was made."""
        if snapshot.key == NEWEST:
            self._newest_s = json.loads(snapshot.body)
            return
        kind = self._kind_of(snapshot.key)
        state, moved_s, data = json.loads(snapshot.body)
        self.machines[snapshot.key] = RunningMachine(
            kind,
            type(kind.initial)(state),
            self._shapes.load(kind.data.__name__, data),
            kept=True,
            moved_s=moved_s,
        )

    def _take_again(self, entry: Entry) -> Step[Any, Any] | None:
        kind = self._kind_of(entry.key)
        if entry.kind == BEGINNING:
            data = self._shapes.load(kind.data.__name__, entry.body)
            self.machines[entry.key] = RunningMachine(kind, kind.initial, data, kept=True)
            self._count_entries(self.machines[entry.key], 1)
            return None
        live = self.machines.get(entry.key)
        if live is None:
            raise LocalError(f"the store holds a {entry.kind} of {entry.key}, which never began")
        if entry.kind == RESUMED:
            at_s, away_s = json.loads(entry.body)
            self._newest_s = max(self._newest_s, at_s)
            live.moved_s += away_s
            self._count_entries(live, 1)
            return None
        event = self._shapes.load(entry.kind, entry.body)
        result = step(kind.table, live.state, live.data, event)
        self._count_entries(live, 1)
        self._witness(self._enter(entry.sequence, entry.key, live, event, result))
        return result

    async def _finish_again(self, entry: Entry, result: Step[Any, Any], told: set[str]) -> None:
        with context(run=entry.key.run, round=entry.key.round, phase=entry.key.phase):
            bug = await self._perform_until_done(entry.key, result.effects)
            for cause, effect in _causes(entry.sequence, result.effects):
                if isinstance(effect, Tell) and cause not in told:
                    self._told.append(_Told(effect.to, effect.event, cause))
        if bug is None:
            self._unfinished.append(entry.sequence)

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
        while self._told:
            self._give_sign_of_life()
            told = self._told.popleft()
            await self._take_alone(told.key, told.event, told.cause)
        await self._keep_begun()
        for sequence in self._unfinished:
            self._store.mark_done(sequence)
        self._unfinished.clear()
        if self._over:
            over, self._over = self._over, []
            await self._retry_until_done("forget what is over", lambda: asyncio.to_thread(self._store.drop, over))
        await self._settled()

    async def archive(self, draw_up: Callable[[], Archive]) -> bool:
        """Put an archive in the place of entries, as soon as the store takes it; say whether all of it was done.

        It is drawn up in a thread, and again if the store fails. Snapshots in it are those that `snapshot` made.
        """
        newest, dropped, gone = Snapshot(NEWEST, json.dumps(self._newest_s)), None, list[Key]()

        def write() -> None:
            nonlocal dropped, gone
            archive = draw_up()
            dropped = self._store.archive(replace(archive, ongoing=(*archive.ongoing, newest)))
            gone = [record.key for record in archive.ongoing]

        await self._retry_until_done("archive what is over", lambda: asyncio.to_thread(write))
        if dropped is None:
            return False
        self._entries -= dropped
        for key in gone:
            self.machines[key].entries = 0
        return True

    def snapshot(self, key: Key) -> Snapshot:
        """A machine as it is now, for an archive that takes the place of all its entries."""
        live = self.machines[key]
        return Snapshot(key, json.dumps([live.state.value, live.moved_s, self._shapes.dump(live.data)]))

    async def _keep_begun(self) -> None:
        """Keep machines that were set up and that no event has reached yet."""
        begun = [key for key in self._begun if key in self.machines and not self.machines[key].kept]
        if begun:
            drafts = [self._beginning(key, self.machines[key].data) for key in begun]
            await self._retry_until_done("keep what was set up", partial(self._append, drafts))
        for key in begun:
            self.machines[key].kept = True
            self._count_entries(self.machines[key], 1)
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
                self._counters.retried("event")
                await self._put_off(key, event, cause)
                return
            except Exception as error:
                log.exception("%s could not be taken by %s", type(event).__name__, key)
                self._counters.broken()
                if key in self.machines and not isinstance(event, Failed):
                    self.feed_soon(key, _fail_for(error))
        self._storage.recover(id(event))

    async def _put_off(self, key: Key, event: object, cause: str) -> None:
        """Take an event after a pause. What was told still comes before all else, and is not done until then."""
        if cause:
            self._told.appendleft(_Told(key, event, cause))
            await asyncio.sleep(PAUSE_S)
        else:
            asyncio.get_running_loop().call_later(PAUSE_S, self.feed_soon, key, event)

    async def _take(self, key: Key, event: object, turn: _Turn | None, cause: str = "") -> None:
        live = self.machines.get(key)
        if live is None:
            raise MachineOver(f"{type(event).__name__} is for {key}, which is over or never began")
        with context(run=key.run, round=key.round, phase=key.phase):
            result = step(live.kind.table, live.state, live.data, event)
            payload = turn.payload if turn else b""
            sequence, left = await self._keep(key, live, event, cause, result.effects, payload)
            moment = self._enter(sequence, key, live, event, result)
            self._witness(moment)
            if turn and turn.when_kept and not turn.done.done():
                turn.done.set_result(None)
            bug = await self._perform_until_done(key, left)
            for effect_cause, effect in _causes(sequence, result.effects):
                self._launch(key, effect, effect_cause)
            if bug is None:
                self._unfinished.append(sequence)
            log.debug("%s takes %s: %s", key.kind, type(event).__name__, _describe_step(moment))
            final = is_final(live.kind.table, live.state)
            self._counters.stepped(key, event, live.state, final=final)
            self._observer(replace(moment, at_s=self._clock.now_s()))
            if final:
                self._retire(key)
            if bug is not None:
                raise bug

    def _enter(
        self, sequence: int, key: Key, live: RunningMachine, event: object, result: Step[Any, Any]
    ) -> Transition:
        """Take a step that is kept, and say what it was."""
        self._newest_s = max(self._newest_s, getattr(event, "at_s", 0.0))
        if any(isinstance(effect, SetTimer) for effect in result.effects):
            live.moved_s = 0.0
        before, earlier = live.state, live.data
        live.state, live.data = result.state, result.data
        return Transition(sequence, key, before, event, live.state, live.data, self._clock.now_s(), earlier)

    async def _keep(
        self, key: Key, live: RunningMachine, event: object, cause: str, effects: Sequence[Effect], payload: bytes
    ) -> tuple[int, Sequence[Effect]]:
        """Keep an event with what it relies on; gives its number, and the effects that are still to be done."""
        drafts = [] if live.kept else [self._beginning(key, live.data)]
        drafts.append(Draft(key, self._shapes.name_of(event), self._shapes.dump(event), cause))
        relied_on = [
            partial(self._shell.persist, key, each, payload) for each in effects if isinstance(each, Persist)
        ]
        left = deque(effect for effect in effects if not isinstance(effect, Persist))
        began_s = time.monotonic()
        sequence, kept_s = await asyncio.to_thread(self._write_and_record, key, drafts, relied_on, left)
        self._counters.kept(kept_s - began_s)
        live.kept = True
        self._count_entries(live, len(drafts))
        self._last_event_at_s = self._clock.now_s()
        return sequence, left

    def _write_and_record(
        self, key: Key, drafts: Sequence[Draft], relied_on: Sequence[Callable[[], None]], left: deque[Effect]
    ) -> tuple[int, float]:
        """Keep entries and, in the same thread, do the first effects if they are records: to change it takes time.

        What cannot be recorded now is left to be done as all other effects are, again and again.
        """
        sequence, kept_s = self._write(drafts, relied_on), time.monotonic()
        while left and isinstance(record := left[0], Record):
            try:
                self._append_record(key, record)
            except Exception as error:  # noqa: BLE001  (Whatever it is: it is tried again where such is dealt with.)
                log.info("%s could not be recorded at once: %s", record.kind, type(error).__name__)
                break
            left.popleft()
        return sequence, kept_s

    async def _append(self, drafts: Sequence[Draft]) -> None:
        began_s = time.monotonic()
        await asyncio.to_thread(self._write, drafts, ())
        self._counters.kept(time.monotonic() - began_s)

    def _write(self, drafts: Sequence[Draft], relied_on: Sequence[Callable[[], None]]) -> int:
        """Keep entries together with what they rely on; if that refuses, none of it has happened."""
        if not relied_on:
            return self._store.append(drafts)
        with self._store.together():
            for persist in relied_on:
                persist()
            return self._store.append(drafts)

    def _count_entries(self, live: RunningMachine, count: int) -> None:
        live.entries += count
        self._entries += count

    def _retire(self, key: Key) -> None:
        live = self.drop(key)
        if self._shell.retire(key, live):
            self._over.append(key)
            self._entries -= live.entries

    def forget(self, key: Key) -> None:
        """Take a machine out for good, in the store too."""
        self._entries -= self.drop(key).entries
        self._over.append(key)

    def answer(self, key: Key, *, to: PartyId, role: Role, body: Message) -> None:
        """Say something for which there is no machine; it is said again if it is asked for again."""
        self._start(self._say(key, to, role, body))

    async def _say(self, key: Key, to: PartyId, role: Role, body: Message) -> None:
        try:
            await self.post.send(key, to=to, role=role, body=body)
        except TransportError as error:
            log.warning("%s could not be sent: %s", body.kind, error)

    def drop(self, key: Key) -> RunningMachine:
        """Take a machine out, with its timers; events that are still on their way to it are refused."""
        for owner, name in [timer for timer in self._timers if timer[0] == key]:
            self._timers.pop((owner, name)).cancel()
        return self.machines.pop(key)

    # The effects ----------------------------------------------------------------------------------------

    async def _perform_until_done(self, key: Key, effects: Sequence[Effect]) -> Exception | None:
        """Do what follows from an event that has happened, until it is done: there is no way back.

        An effect that a bug keeps from being done holds nothing else up. It is tried again after a restart.
        """
        bug: Exception | None = None
        for effect in effects:
            if isinstance(effect, Persist):
                continue
            try:
                await self._retry_until_done(type(effect).__name__, partial(self._perform, key, effect))
            except Exception as error:
                log.exception("a bug: %s of %s could not be done", type(effect).__name__, key)
                self._counters.broken()
                bug = bug or error
        return bug

    async def _retry_until_done(self, what: str, attempt: Callable[[], Awaitable[object]]) -> None:
        async def attempt_alive() -> object:
            self._give_sign_of_life()
            return await attempt()

        await self._retry_through_outages("effect", what, attempt_alive)

    async def _retry_through_outages(
        self,
        sort: Literal["job", "effect", "event"],
        what: str,
        attempt: Callable[[], Awaitable[T]],
        outages: tuple[type[Exception], ...] = (TransportError, StorageFailed, OSError),
    ) -> T:
        """Attempt something until neither the broker nor a disk keeps it from being done."""
        with self._storage.attempts() as fail:
            while True:
                try:
                    return await attempt()
                except outages as error:
                    if isinstance(error, TransportError):
                        log.error("%s failed and is tried again: %s", what, error)  # noqa: TRY400
                    else:
                        fail(error)
                    self._counters.retried(sort)
                    await asyncio.sleep(PAUSE_S)

    async def _perform(self, key: Key, effect: Effect) -> None:
        match effect:
            case Job() | SetTimer() | CancelTimer() | Tell():
                pass  # Launched once the step is taken.
            case Publish():
                await self._publish(key, effect)
            case Record():
                await asyncio.to_thread(self._append_record, key, effect)
            case CountRefusal(reason=reason, kind=kind, sender=sender, explanation=explanation):
                await self._refusals.note(Refusal(reason, explanation, kind, sender, key.run))
            case TellOwner(sentence=sentence):
                log.warning("%s", sentence)
            case _:
                await self._shell.perform(key, effect)

    def _launch(self, key: Key, effect: Effect, cause: str) -> None:
        match effect:
            case Job():
                self._start(self._work(key, effect))
            case SetTimer():
                self._set_timer(key, effect)
            case CancelTimer():
                self._cancel_timer(key, effect.name)
            case Tell():
                self._told.append(_Told(effect.to, effect.event, cause))

    async def _publish(self, key: Key, effect: Publish) -> None:
        if not isinstance(effect.body, Message):
            raise LocalError(f"{effect.body!r} is not a message")
        try:
            await self.post.send(key, to=effect.to, role=effect.role, body=effect.body, phase=effect.phase)
        except Unroutable:
            # The party has never been there. What must reach it is sent again by the machine's own timer.
            log.warning("%s has no inbox yet: %s was not delivered", effect.to, effect.body.kind)

    def _append_record(self, key: Key, effect: Record) -> None:
        place: dict[str, Any] = {"run": key.run}
        if key.round:
            place["round"] = key.round
        if key.phase:
            place["phase"] = key.phase
        self._audit.append(effect.kind, **{**place, **effect.fields})

    async def _work(self, key: Key, job: Job) -> None:
        began_s = time.monotonic()
        try:
            # A job may be done twice, so what the broker or a disk kept from being done is begun again.
            event = await self._retry_through_outages(
                "job", type(job).__name__, lambda: self._shell.work(key, job), (TransportError, StorageFailed)
            )
        except PeerError as error:
            what = type(job).__name__
            await self._refusals.note(Refusal(error.reason, f"{what}: {error}", what, run=key.run))
            event = Failed(str(error), error.code)
        except Exception as error:
            if key not in self.machines:
                log.info("%s is given up: its %s is over", type(job).__name__, key.kind)
                return
            if isinstance(error, HubbubError):
                log.warning("%s failed: %s", type(job).__name__, error)
            else:
                log.exception("%s failed", type(job).__name__)
                self._counters.broken()
            event = _fail_for(error)
        self._counters.worked(type(job).__name__, time.monotonic() - began_s)
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


def _fail_for(error: Exception) -> Failed:
    """What a machine is told: the text of a bug may hold anything, of a client's data too, and is for our log."""
    if isinstance(error, HubbubError):
        return Failed(str(error), error.code)
    code = Code.DISK_FAILED if isinstance(error, OSError) else Code.INTERNAL
    return Failed(f"an unexpected {type(error).__name__}; the log of this party says more", code)


def _move(effect: Effect, by_s: float) -> Effect:
    """Move a timer to a later time, unless it is set for at once."""
    return replace(effect, at_s=effect.at_s + by_s) if isinstance(effect, SetTimer) and effect.at_s else effect


def _describe_step(moment: Transition) -> str:
    return f"stays {moment.after.name}" if moment.before is moment.after else f"is {moment.after.name}"


def _causes(sequence: int, effects: Sequence[Effect]) -> Iterator[tuple[str, Effect]]:
    """Each effect with what names it for ever: its entry and its place."""
    return ((f"{sequence}.{place}", effect) for place, effect in enumerate(effects))
