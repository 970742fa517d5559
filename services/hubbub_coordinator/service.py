"""The coordinator service: takes manifests and messages, runs the state machines, answers queries."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import dropwhile, islice
from pathlib import Path

from hubbub.errors import ConfigurationError, HubbubError, LocalError, PeerError, RejectReason
from hubbub.ids import RunId
from hubbub.machine.effects import Effect, Job, Key, Persist, RememberRun
from hubbub.messages.envelope import Envelope
from hubbub.messages.manifest import Manifest
from hubbub.runtime.clock import Clock, SystemClock
from hubbub.runtime.message_checks import check_sender, find_disagreements
from hubbub.runtime.runner import KeyedEvent, Observer, Runner, RunningMachine, Transition
from hubbub.runtime.state_folder import AUDIT_FILE, STATE_FILE, TOMBSTONES, Tombstones
from hubbub.runtime.telemetry import Counters, context
from hubbub.store.base import Archive, EventStore
from hubbub.store.sqlite import SqliteStore
from hubbub.strategies import planner
from hubbub.strategies.registry import find_strategy
from hubbub.transport.base import Transport
from hubbub.trust.audit import AuditLog
from hubbub.trust.identity import Identity
from hubbub.trust.roster import Roster
from hubbub_coordinator.archive import EndedRun, KnownRun, RunArchive, RunSummary, SomeRound
from hubbub_coordinator.event_feed import KEPT, EventFeed
from hubbub_coordinator.events import Began, CancelRequested, PauseRequested, ResumeRequested
from hubbub_coordinator.intake import read_round_event, read_run_event
from hubbub_coordinator.labels import Label, Labels
from hubbub_coordinator.metrics import Metering, OpenRuns
from hubbub_coordinator.phases import round as rounds
from hubbub_coordinator.phases import run as runs

log = logging.getLogger(__name__)

ANY_RUN = RunId("")
LABELS_FILE = "labels.json"
SNAPSHOT_AFTER = 64
"""Events of a run after which a snapshot replaces them."""


class RunExists(ConfigurationError):
    """The same manifest was submitted before."""


class RunOver(ConfigurationError):
    """The run has ended already."""


class UnknownRun(ConfigurationError):
    """No run has this id."""


class KeyReused(ConfigurationError):
    """This idempotency key belongs to another manifest."""


@dataclass(frozen=True, slots=True)
class Page:
    """Some of the runs, newest first."""

    runs: tuple[RunId, ...]
    more: bool
    total: int
    """Number of runs in the wanted states, over all pages."""


class Coordinator:
    """Schedules runs. It knows each party's progress and byte counts; nothing that was summed."""

    def __init__(
        self,
        *,
        identity: Identity,
        roster: Roster,
        transport: Transport,
        folder: Path,
        store: EventStore | None = None,
        pause_when_void: bool = False,
        new_state: bool = False,
        clock: Clock | None = None,
        observer: Observer = lambda _: None,
    ) -> None:
        """Give up runs that were begun in this folder and are not in the store, if `new_state` is set."""
        self.counters = Counters()
        self._new_state = new_state
        self._clock = clock or SystemClock()
        self.event_feed = EventFeed()
        self._over: dict[Key, RunningMachine] = {}
        """Ended machines that are not archived yet: a run's last round stays here until the next begins."""
        self._due: set[RunId] = set()
        """Runs that have something to archive."""
        self._archived_news: dict[RunId, int] = {}
        """Id of the last archived feed event, of runs that have not ended."""
        self._pause_when_void = pause_when_void
        self._observer = observer
        self._transport = transport
        self._states: dict[RunId, str] = {}
        """State of each run, in the order of submission; by name, which is quicker to look up."""
        self._next_place = 0
        self._steps: Counter[RunId] = Counter()
        self._submitted: dict[str, RunId] = {}
        """Runs by idempotency key."""
        self._submitting = asyncio.Lock()
        """Held while a run is begun under a key, or a label is written."""
        self._tombstones = Tombstones(folder / TOMBSTONES)
        self._audit = AuditLog(folder / AUDIT_FILE, identity.name)
        self._store = store or SqliteStore(folder / STATE_FILE)
        self._archive = RunArchive(self._store)
        self._labels = Labels(folder / LABELS_FILE)
        self.runner = Runner(
            identity=identity,
            roster=roster,
            transport=transport,
            shell=self,
            kinds={"run": runs.KIND, "round": rounds.KIND},
            store=self._store,
            clock=self._clock,
            counters=self.counters,
            audit=self._audit,
            observer=Metering(self.counters.registry, self._observe),
            witness=self._witness,
            settled=self._archive_due,
        )
        self.counters.registry.register(OpenRuns(self.runner.machines, self._clock))

    async def start(self) -> None:
        """Rebuild all runs and go on with them; without any run, leave messages in the queue.

        They may be for another coordinator of this name, which knows their runs and may come back.
        """
        await self.runner.start(receiving=False)
        if self._states:
            await self.runner.receive()

    def _witness(self, moment: Transition) -> None:
        """Update what is often asked for after a step, so that queries need not look at all machines."""
        self._steps[moment.key.run] += 1
        self._steps[ANY_RUN] += 1
        if isinstance(moment.after, runs.State):
            self._states[moment.key.run] = moment.after.value
            if self.runner.machines[moment.key].entries >= SNAPSHOT_AFTER:
                self._due.add(moment.key.run)
        elif isinstance(moment.event, Began):
            # The round before is asked for less often from now on.
            self._due.add(moment.key.run)
        self.event_feed.note(moment)

    def _observe(self, moment: Transition) -> None:
        """Log a run that begins to be stalled, and pass the step on."""
        match moment.earlier, moment.data:
            case runs.CoordinatorRun(stalled=""), runs.CoordinatorRun(stalled=why) if why:
                log.warning("run %s is stalled: %s", moment.key.run, why)
        self._observer(moment)

    async def _archive_due(self) -> None:
        """Archive what is over, and snapshot long runs, which would make a restart slow."""
        while self._due:
            await self._archive_run(self._due.pop())

    async def _archive_run(self, run: RunId) -> None:
        key, known = Key("run", run), self.look_at(run)
        live, ended = self.runner.machines.get(key), key in self._over
        over = [number for number in sorted(known.held) if ended or number < known.data.round]
        is_long = live is not None and live.entries >= SNAPSHOT_AFTER
        if not (over or ended or is_long):
            return
        news = self.event_feed.list_unloaded(run, self._archived_news.get(run, 0))

        def draw_up() -> Archive:
            return self._archive.draw_up(
                run,
                [known.held[number] for number in over],
                EndedRun(known.state, known.data) if ended else None,
                [self.runner.event_log.snapshot(key)] if is_long else [],
                news,
            )

        if not await self.runner.archive(draw_up):
            return
        for number in over:
            self._over.pop(Key("round", run, number))
        if ended:
            self._over.pop(key)
            self._archived_news.pop(run, None)
        elif news:
            self._archived_news[run] = news[0].id

    async def submit_once(self, manifest: Manifest, key: str) -> tuple[RunId, bool]:
        """Begin a run unless it was begun with this key; return its id and whether it had been begun before."""
        # One at a time: a second request must not get a run that the first one fails to begin.
        async with self._submitting:
            known = self._submitted.get(key)
            if known is None:
                return await self.submit(manifest, key=key), False
        if known != manifest.run_id:
            raise KeyReused(f"the idempotency key {key} was used for run {known}; a new run needs a new key")
        return known, True

    async def submit(self, manifest: Manifest, *, key: str = "") -> RunId:
        """Begin a run; raise `ConfigurationError` if its manifest does not fit or was submitted before.

        So does one whose union is expected to be empty, since nothing could be learnt.
        """
        me = self.runner.identity.name
        if manifest.coordinator != me:
            raise ConfigurationError(f"the manifest names {manifest.coordinator} as its coordinator; this is {me}")
        strategy, parameters = find_strategy(manifest.strategy), manifest.protocol_parameters
        planner.refuse_empty_union(strategy, parameters)
        disagreements = find_disagreements(manifest, self.runner.roster)
        if disagreements:
            raise ConfigurationError("; ".join(disagreements))
        await self.runner.receive()
        run = manifest.run_id
        if run in self._states or run in self._tombstones:
            raise RunExists(f"run {run} was submitted already; a new run needs a new nonce")
        try:
            self.runner.directory.add_run(run)
        except PeerError as error:
            raise ConfigurationError(str(error)) from None
        self._states[run] = runs.State.ENROLLING.value
        machine = Key("run", run)
        data = runs.CoordinatorRun(
            manifest=manifest,
            pause_when_void=self._pause_when_void,
            place=self._next_place,
            idempotency_key=key,
        )
        self._next_place += 1
        self.runner.add(machine, data)
        try:
            # Once it is persisted the parties will be asked, now or when the broker is back.
            await self.runner.feed_until_kept(machine, Began(at_s=self._clock.now_s()))
        except HubbubError:
            # It has not begun: the same manifest may be submitted later.
            self.runner.drop(machine)
            del self._states[run]
            raise
        if key:
            self._submitted[key] = run
        with context(party=me, run=run):
            log.info("run %s was submitted", run)
            losses = planner.describe_risks(strategy, parameters)
            if losses:
                log.warning("run %s: %s", run, losses)
        return run

    async def cancel(self, run: RunId) -> None:
        """End a run that has not ended."""
        await self._steer(run, CancelRequested(at_s=self._clock.now_s()))

    async def pause(self, run: RunId) -> None:
        """Let the open round end, and open no other."""
        await self._steer(run, PauseRequested(at_s=self._clock.now_s()))

    async def resume(self, run: RunId) -> None:
        """Go on with a run that was paused."""
        await self._steer(run, ResumeRequested(at_s=self._clock.now_s()))

    async def _steer(self, run: RunId, event: CancelRequested | PauseRequested | ResumeRequested) -> None:
        self.check_run(run)
        if runs.State(self._states[run]) in runs.OUTCOMES:
            raise RunOver(f"run {run} is {self._states[run]} already")
        await self.runner.feed_until_kept(Key("run", run), event)

    async def put_label(self, run: RunId, label: Label) -> None:
        """Give a run a name and a note."""
        self.check_run(run)
        async with self._submitting:
            await asyncio.to_thread(self._labels.put, run, label)
        # Views of it in a cache are out of date, as after a step.
        self._steps[run] += 1
        self._steps[ANY_RUN] += 1

    # Queries by the API and the terminal ----------------------------------------------------------------

    def now_s(self) -> float:
        """Return the time by this coordinator's clock."""
        return self._clock.now_s()

    @property
    def is_connected(self) -> bool:
        """Say whether the broker is connected."""
        return self._transport.condition.connected

    def list_runs(self) -> list[RunId]:
        """Return all runs, oldest first."""
        return list(self._states)

    def page_runs(self, *, limit: int, after: RunId | None = None, states: Collection[runs.State] = ()) -> Page:
        """Return a page of runs, newest first: those older than `after`, if given, and in some states."""
        if after is not None and after not in self._states:
            raise UnknownRun(f"there is no run {after} to go on after")
        newest: Iterator[RunId] = reversed(self._states)
        if after is not None:
            newest = islice(dropwhile(after.__ne__, newest), 1, None)
        wanted = {state.value for state in states or runs.State}
        found = list(islice((run for run in newest if self._states[run] in wanted), limit + 1))
        total = sum(state in wanted for state in self._states.values())
        return Page(tuple(found[:limit]), len(found) > limit, total)

    def count_steps(self, run: RunId) -> int:
        """Count the steps of a run and its rounds since this coordinator was started; `ANY_RUN` for all."""
        return self._steps[run]

    def check_run(self, run: RunId) -> None:
        """Raise `UnknownRun` if the run was never submitted."""
        if run not in self._states:
            raise UnknownRun(f"there is no run {run}")

    async def look(self, run: RunId) -> KnownRun:
        """Return a snapshot of a run; an archived one is read in a thread."""
        self.check_run(run)
        if self._find(Key("run", run)) is None:
            await asyncio.to_thread(self._archive.find_run, run)
        return self.look_at(run)

    def look_at(self, run: RunId) -> KnownRun:
        """Return a snapshot of a run; blocks while an archived one is read."""
        self.check_run(run)
        live = self._find(Key("run", run))
        state, data = (live.state, live.data) if live else self._archive.find_run(run)
        if not isinstance(state, runs.State) or not isinstance(data, runs.CoordinatorRun):
            raise LocalError(f"{run} is not a run")
        held = dict(self._find_held(run, data.round))
        return KnownRun(run, state, data, held, self._archive, self._labels.find(run))

    def _find_held(self, run: RunId, last: int) -> Iterator[tuple[int, SomeRound]]:
        """Yield the rounds that are in memory, the last first; all earlier ones are archived."""
        for number in range(last, 0, -1):
            live = self._find(Key("round", run, number))
            if live is not None and isinstance(live.state, rounds.State):
                yield number, (live.state, live.data)
            elif number < last:
                return

    def find_run(self, run: RunId) -> tuple[runs.State, runs.CoordinatorRun]:
        """Return a run's state and data."""
        known = self.look_at(run)
        return known.state, known.data

    def find_rounds(self, run: RunId) -> list[SomeRound]:
        """Return all rounds of a run so far; a round that is about to begin is not among them."""
        return self.look_at(run).find_rounds()

    def _find(self, key: Key) -> RunningMachine | None:
        return self.runner.machines.get(key) or self._over.get(key)

    # Callbacks of the runner ----------------------------------------------------------------------------

    def receive(self, envelope: Envelope, *, size: int, now_s: float) -> Sequence[KeyedEvent]:
        """Check a message against its run's manifest and make its event."""
        del size
        if envelope.run not in self._states:
            raise PeerError(RejectReason.UNKNOWN_RUN, f"no run {envelope.run} was submitted here")
        live = self._find(Key("run", envelope.run))
        data = live.data if live else self._archive.find_run(envelope.run)[1]
        check_sender(data.manifest, envelope)
        about_run = read_run_event(self.runner.roster, envelope, now_s)
        key = Key("run", envelope.run) if about_run else Key("round", envelope.run, envelope.round)
        event = about_run or read_round_event(self.runner.roster, data.manifest, envelope, now_s)
        if key.round > data.round:
            raise PeerError(RejectReason.TOO_EARLY, f"round {key.round} was not opened yet")
        if key not in self.runner.machines:
            log.info("%s came after the end and changes nothing", envelope.kind)
            self.counters.late.labels(envelope.kind).inc()
            return []
        return [(key, event)]

    def persist(self, key: Key, effect: Persist, payload: bytes) -> None:
        """Raise `LocalError`: the coordinator's events need nothing persisted beside them."""
        del key, payload
        raise LocalError(f"the coordinator keeps no {effect!r}")

    async def perform(self, key: Key, effect: Effect) -> None:
        """Record a run's tombstone, or open a round."""
        match effect:
            case RememberRun():
                await asyncio.to_thread(self._tombstones.add, key.run)
            case runs.OpenRound():
                run = self.runner.machines[key].data
                data = rounds.CoordinatorRound(
                    run=key,
                    number=effect.number,
                    manifest=run.manifest,
                    is_scored=run.manifest.is_scored_after(run.released + 1),
                    score_members=run.score_members,
                    attended=run.attended,
                )
                await self.runner.set_up(Key("round", key.run, effect.number), data)
            case _:
                raise LocalError(f"the coordinator has no effect {effect!r}")

    def close(self) -> None:
        """Close the event feed and the open files."""
        self.event_feed.close()
        self._audit.close()
        self._store.close()

    async def work(self, key: Key, job: Job) -> object:
        """Raise `LocalError`: the coordinator has no jobs."""
        raise LocalError(f"the coordinator has no job {job!r} for {key}")

    def restore(self, machines: Mapping[Key, RunningMachine]) -> None:
        """Restore the list of runs, in the order of submission, and the event feed."""
        live = {key.run: live for key, live in machines.items() if key.kind == "run"}
        found = self._archive.list_runs()
        for run, it in live.items():
            found.append(RunSummary(it.data.place, run, str(it.state.value), it.data.idempotency_key))
        found.sort()
        self._states = {each.run: each.state for each in found}
        for run in self._states:
            self.runner.directory.add_run(run)
        self._next_place = found[-1].place + 1 if found else 0
        self._submitted = {each.idempotency_key: each.run for each in found if each.idempotency_key}
        # Everything before the first replayed step is archived.
        for run in live:
            self._archived_news[run] = (
                min((item.id for item in self.event_feed.list_unloaded(run, 0)), default=1) - 1
            )
        self.event_feed.restore(partial(self._archive.read_news, KEPT + 1))
        self._check_tombstones()

    def _check_tombstones(self) -> None:
        """Raise `ConfigurationError` if the store lacks runs begun in this folder, unless `new_state` is set."""
        lost = [run for run in self._tombstones.find_open() if run not in self._states]
        if lost and not self._new_state:
            raise ConfigurationError(
                f"the store lacks {len(lost)} of the runs that were submitted here, run {lost[0]} among them: it "
                "is lost, or an old copy. Put the right one in its place. To give these runs up, start once with "
                "--new-state or HUBBUB_COORDINATOR_NEW_STATE=true"
            )
        for run in lost:
            log.warning("run %s is given up: the store does not have it", run)
            self._tombstones.mark_forgotten(run)

    def retire(self, key: Key, live: RunningMachine) -> bool:
        """Keep an ended machine for the API until it is archived. When a run ends, its open round does too."""
        self._over[key] = live
        if key.kind == "run":
            self._due.add(key.run)
            log.info("run %s is %s: %s", key.run, live.state.value, live.data.reason)
            for other in [each for each in self.runner.machines if each.run == key.run]:
                self._over[other] = self.runner.drop(other)
        return False
