"""The event feed: the coordinator's steps as sentences, with the latest held in memory.

The runner persists each step under a number of the event store and replays the same steps after a restart, so
that they give the same feed events under the same ids. When steps are archived, their feed events are stored
instead. A feed event holds who did what and when; nothing that was summed, no key and no digest.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from enum import Enum, StrEnum
from functools import cached_property
from itertools import takewhile

from hubbub.ids import PartyId
from hubbub.protocol.metrics import format_value
from hubbub.runtime.runner import Transition
from hubbub.strategies.base import Phase
from hubbub.strategies.scores import SCORES
from hubbub_coordinator.events import (
    Began,
    DeadlinePassed,
    Event,
    OrderDeclined,
    PartyBroke,
    PartyJoined,
    PartyReady,
    PartyRefused,
    PauseRequested,
    ReceiptArrived,
    ResumeRequested,
    SetSpoilt,
    SumReleased,
    UpdateApplied,
    UpdateDropped,
)
from hubbub_coordinator.phases import round as rounds
from hubbub_coordinator.phases import run as runs
from hubbub_coordinator.phases.round import CoordinatorRound, PhaseRecord
from hubbub_coordinator.phases.run import CoordinatorRun
from hubbub_coordinator.progress import find_awaited_in_round, find_combiner
from hubbub_coordinator.reasons import tell_declined, tell_failure, tell_refusal

MOST_OF_A_STEP = 100
"""Upper bound of events from one step: an id is the number of the step's entry, times this, plus an index."""
MAX_TEXT_CHARACTERS = 400
"""Longer texts are cut: a reason may name a whole cohort."""
KEPT = 20_000
"""Events held in memory; a reader that asks for older ones gets a reset."""


class FeedEventKind(StrEnum):
    """Kinds of feed events."""

    RUN_SUBMITTED = "run-submitted"
    PARTY_JOINED = "party-joined"
    PARTY_REFUSED = "party-refused"
    PARTY_READY = "party-ready"
    KEYS_SENT = "keys-sent"
    ROUND_OPENED = "round-opened"
    SHARE_SET_DELIVERED = "share-set-delivered"
    SET_REFUSED = "set-refused"
    PHASE_CLOSED = "phase-closed"
    SUM_RELEASED = "sum-released"
    PHASE_OPENED = "phase-opened"
    UPDATE_APPLIED = "update-applied"
    UPDATE_DROPPED = "update-dropped"
    ROUND_RELEASED = "round-released"
    ROUND_VOID = "round-void"
    ROUND_CONTRADICTED = "round-contradicted"
    PARTY_FAILED = "party-failed"
    PAUSE_REQUESTED = "pause-requested"
    RUN_PAUSED = "run-paused"
    RUN_RESUMED = "run-resumed"
    RUN_STALLED = "run-stalled"
    RUN_COMPLETED = "run-completed"
    RUN_FAILED = "run-failed"
    RUN_CANCELLED = "run-cancelled"
    DEADLINE_PASSED = "deadline-passed"
    ORDER_DECLINED = "order-declined"


@dataclass(frozen=True, kw_only=True)
class FeedEvent:
    """Event of the feed; `party` and `phase` are empty if it is about none."""

    # No slots, because `frame` is cached.

    id: int
    at_s: float
    run: str
    round: int
    phase: str
    kind: FeedEventKind
    party: str
    text: str
    state: str
    """State of the run or the round after the event."""

    @cached_property
    def frame(self) -> bytes:
        """The server-sent event, encoded once for all readers."""
        data = json.dumps(asdict(self), separators=(",", ":"))
        return f"id: {self.id}\nevent: {self.kind}\ndata: {data}\n\n".encode()


@dataclass(frozen=True, slots=True)
class _Line:
    kind: FeedEventKind
    text: str
    party: str = ""
    phase: str = ""


def describe_transition(moment: Transition) -> list[FeedEvent]:
    """Return the feed events of a step; often none, for example if a message came twice."""
    match moment.earlier, moment.data:
        case CoordinatorRun() as earlier, CoordinatorRun() as run:
            lines, number = [*_tell_run(moment, earlier, run)], 0
        case CoordinatorRound() as earlier, CoordinatorRound() as data:
            lines, number = [*_tell_round(moment, earlier, data)], data.number
        case _:
            return []
    # The event's own time, not that of the replay: it must be the same after a restart.
    at_s = moment.event.at_s if isinstance(moment.event, Event) else moment.data.ended_at_s or 0.0
    return [
        FeedEvent(
            id=moment.sequence * MOST_OF_A_STEP + place,
            at_s=at_s,
            run=moment.key.run,
            round=number,
            phase=line.phase,
            kind=line.kind,
            party=line.party,
            text=line.text
            if len(line.text) <= MAX_TEXT_CHARACTERS
            else f"{line.text[: MAX_TEXT_CHARACTERS - 1]}…",
            state=str(moment.after.value),
        )
        for place, line in enumerate(lines)
    ]


# Events of a run ----------------------------------------------------------------------------------------

_STATES_OF_RUN = {
    runs.State.PAUSED: (FeedEventKind.RUN_PAUSED, "the run is paused"),
    runs.State.COMPLETED: (FeedEventKind.RUN_COMPLETED, "the run is complete"),
    runs.State.FAILED: (FeedEventKind.RUN_FAILED, "the run failed"),
    runs.State.CANCELLED: (FeedEventKind.RUN_CANCELLED, "the run was cancelled"),
}


def _tell_run(moment: Transition, earlier: CoordinatorRun, run: CoordinatorRun) -> Iterator[_Line]:
    yield from _tell_of_party(moment, earlier, run)
    yield from _tell_of_operator(moment, earlier, run)
    if run.stalled and not earlier.stalled:
        yield _Line(FeedEventKind.RUN_STALLED, f"the run is stalled: {run.stalled}")
    if moment.after is moment.before:
        return
    if moment.after is runs.State.AGREEING:
        yield _Line(FeedEventKind.KEYS_SENT, f"all {len(run.parties)} parties have joined and were sent all keys")
    for state, (kind, text) in _STATES_OF_RUN.items():
        if moment.after is state:
            yield _Line(kind, f"{text}: {run.reason}", run.failed_party or "")


def _tell_of_party(moment: Transition, earlier: CoordinatorRun, run: CoordinatorRun) -> Iterator[_Line]:
    everybody = len(run.parties)
    match moment.event:
        case PartyJoined(party=party) if party in run.joined - earlier.joined:
            yield _Line(FeedEventKind.PARTY_JOINED, f"{party} joined ({len(run.joined)} of {everybody})", party)
        case PartyReady(party=party) if party in run.ready - earlier.ready:
            text = f"{party} has checked the keys ({len(run.ready)} of {everybody})"
            yield _Line(FeedEventKind.PARTY_READY, text, party)
        case PartyRefused(party=party, code=code):
            yield _Line(FeedEventKind.PARTY_REFUSED, tell_refusal(party, code), party)
        case PartyBroke(party=party, code=code):
            yield _Line(FeedEventKind.PARTY_FAILED, tell_failure(party, code), party)


def _tell_of_operator(moment: Transition, earlier: CoordinatorRun, run: CoordinatorRun) -> Iterator[_Line]:
    match moment.event:
        case Began():
            manifest = run.manifest
            text = (
                f"a run of {manifest.rounds} rounds was submitted: {manifest.strategy} on {manifest.task},"
                f" {len(manifest.cohort)} clients, {len(manifest.aggregators)} aggregators"
            )
            yield _Line(FeedEventKind.RUN_SUBMITTED, text)
        case PauseRequested() if run.pausing and not earlier.pausing:
            when = f"after round {run.round}" if run.round else "before its first round"
            yield _Line(FeedEventKind.PAUSE_REQUESTED, f"the run is to pause {when}")
        case ResumeRequested() if moment.before is runs.State.PAUSED:
            yield _Line(FeedEventKind.RUN_RESUMED, f"the run goes on with round {run.round}")
        case ResumeRequested() if earlier.pausing:
            yield _Line(FeedEventKind.RUN_RESUMED, "the pause was called off")


# Events of a round --------------------------------------------------------------------------------------


def _tell_round(moment: Transition, earlier: CoordinatorRound, data: CoordinatorRound) -> Iterator[_Line]:
    yield from _tell_of_client(moment, earlier, data)
    yield from _tell_of_aggregator(moment, earlier, data)
    yield from _tell_of_time(moment, earlier)
    yield from _tell_phases(earlier, data)
    if moment.after is not moment.before:
        yield from _tell_end(moment.after, data)


def _tell_of_client(moment: Transition, earlier: CoordinatorRound, data: CoordinatorRound) -> Iterator[_Line]:
    match moment.event:
        case ReceiptArrived() as event:
            server = event.receipt.receipt.aggregator
            for client in event.receipt.receipt.set_of:
                if server in _holders(data, event.phase, client) - _holders(earlier, event.phase, client):
                    yield _tell_delivery(data, event.phase, client, server)
        case UpdateApplied(client=client) if client in data.applied.keys() - earlier.applied.keys():
            text = f"{client} applied round {data.number}"
            yield _Line(FeedEventKind.UPDATE_APPLIED, text, client, earlier.current.name)
        case UpdateDropped(client=client):
            text = f"{client} dropped its update of round {data.number}"
            yield _Line(FeedEventKind.UPDATE_DROPPED, text, client, data.current.name)


def _holders(data: CoordinatorRound, phase: str, client: PartyId) -> set[PartyId]:
    """Return the aggregators that hold a client's set, of an open phase or of the one that has yet to open."""
    record = data.find_record(phase)
    return {*(data.early if record is None else record.held).get(client, ())}


def _tell_delivery(data: CoordinatorRound, phase: str, client: PartyId, aggregator: PartyId) -> _Line:
    count = len(_holders(data, phase, client))
    servers = next(each for each in data.phases if each.name == phase).aggregators(data.manifest.aggregators)
    text = f"{client} delivered its shares of {phase} to {aggregator} ({count} of {len(servers)})"
    return _Line(FeedEventKind.SHARE_SET_DELIVERED, text, client, phase)


def _tell_of_aggregator(moment: Transition, earlier: CoordinatorRound, data: CoordinatorRound) -> Iterator[_Line]:
    match moment.event:
        case SetSpoilt(phase=phase, client=client) if data.records != earlier.records:
            yield _Line(FeedEventKind.SET_REFUSED, f"{client}: {data.record.spoilt[client]}", client, phase)
        case SumReleased(phase=phase, aggregator=name):
            before, after = earlier.find_record(phase), data.find_record(phase)
            if before and after and name in after.ended - before.ended:
                what = _say_release(find_combiner(data, phase), name, phase)
                text = f"{name} released {what} ({len(after.ended)} of {len(earlier.aggregators)})"
                yield _Line(FeedEventKind.SUM_RELEASED, text, name, phase)
        case OrderDeclined(phase=phase, aggregator=name, reason=reason):
            yield _Line(FeedEventKind.ORDER_DECLINED, tell_declined(name, phase, reason), name, phase)


def _say_release(combiner: PartyId | None, name: PartyId, phase: str) -> str:
    """Name what was released: on the compact wire sums go to the combiner, which sends the clients the total."""
    if combiner is None:
        return f"its sum of {phase}"
    return f"the combined sum of {phase}" if name == combiner else f"its sum of {phase} to {combiner}"


def _tell_of_time(moment: Transition, earlier: CoordinatorRound) -> Iterator[_Line]:
    match moment.event, moment.before:
        case DeadlinePassed(), rounds.State.COLLECTING:
            what = "deliver"
        case DeadlinePassed(), rounds.State.APPLYING | rounds.State.REPORTING:
            what = "report"
        case _:
            return
    late, phase = find_awaited_in_round(moment.before, earlier).parties, earlier.current.name
    text = f"the time for {phase} is up; {', '.join(late) or 'nobody'} did not {what}"
    yield _Line(FeedEventKind.DEADLINE_PASSED, text, late[0] if len(late) == 1 else "", phase)


def _tell_phases(earlier: CoordinatorRound, data: CoordinatorRound) -> Iterator[_Line]:
    """Yield a line for every phase that this step opened or closed, in order."""
    known: tuple[PhaseRecord | None, ...] = (*earlier.records, *(None for _ in data.phases))
    for place, (phase, before, after) in enumerate(zip(data.phases, known, data.records, strict=False)):
        if before is None and place == 0:
            text = f"round {data.number} was opened: {len(data.manifest.cohort)} clients train"
            yield _Line(FeedEventKind.ROUND_OPENED, text, phase=phase.name)
        elif before is None:
            yield _Line(FeedEventKind.PHASE_OPENED, f"{phase.name} was opened", phase=phase.name)
        if after.closed_at_s is not None and (before is None or before.closed_at_s is None):
            yield _Line(
                FeedEventKind.PHASE_CLOSED, f"{phase.name} was closed {_say_how(data, phase)}", phase=phase.name
            )


def _say_how(data: CoordinatorRound, phase: Phase) -> str:
    if data.reason:
        return f"without a sum: {data.reason}"
    members = data.score_members if phase is SCORES else data.members
    absent = [client for client in data.manifest.clients if client not in members]
    without = f", without {', '.join(absent)}" if absent else ""
    return f"over {len(members)} of {len(data.manifest.cohort)} clients{without}"


def _tell_end(state: Enum, data: CoordinatorRound) -> Iterator[_Line]:
    phase = data.current.name
    match state:
        case rounds.State.RELEASED:
            text = f"round {data.number} was released{_say_scores(data)}"
            yield _Line(FeedEventKind.ROUND_RELEASED, text, phase=phase)
        case rounds.State.VOID:
            yield _Line(FeedEventKind.ROUND_VOID, f"round {data.number} is void: {data.reason}", phase=phase)
        case rounds.State.CONTRADICTED:
            text = f"round {data.number} ended the run: {data.reason}"
            yield _Line(FeedEventKind.ROUND_CONTRADICTED, text, phase=phase)


def _say_scores(data: CoordinatorRound) -> str:
    if not data.is_scored:
        return ""
    told = ", ".join(f"{name} {format_value(name, value)}" for name, value in data.metrics.items())
    return f": {told}" if told else " without scores"


class EventFeed:
    """The latest events, oldest first."""

    def __init__(self, kept: int = KEPT) -> None:
        self.over = False
        """True once the coordinator ends: no more events will come."""
        self._kept = kept
        self._items: list[FeedEvent] = []
        self._by_run: dict[str, list[FeedEvent]] = {}
        """Index of the same events by run."""
        self._forgotten = 0
        self._load: Callable[[], Iterable[FeedEvent]] | None = None
        """Loads the events from before a restart; None once they are loaded."""
        self._listeners: list[Callable[[], None]] = []

    @property
    def newest(self) -> int:
        """Id of the last event; 0 before the first."""
        items = self._items or self._all()
        return items[-1].id if items else self._forgotten

    @property
    def forgotten(self) -> int:
        """Highest id that is no longer held; 0 if all are."""
        self._all()
        return self._forgotten

    def knows(self, after: int) -> bool:
        """Say whether all events after this id are held, and the id can be one of ours."""
        return self.forgotten <= after <= self.newest

    def since(self, after: int) -> list[FeedEvent]:
        """Return the events after this id that are held."""
        items = self._all()
        return items[bisect_right(items, after, key=lambda item: item.id) :]

    def newest_first(self, run: str | None = None) -> Iterator[FeedEvent]:
        """Iterate over the held events, or those of a run, newest first; new events are left out."""
        items = self._all()
        return reversed(items if run is None else self._by_run.get(run, []))

    def restore(self, load: Callable[[], Iterable[FeedEvent]]) -> None:
        """Set the loader of archived events, which are merged with those of the replayed steps.

        They are loaded on first use, so that a start does not wait for them.
        """
        self._load = load

    def _all(self) -> list[FeedEvent]:
        if self._load is not None:
            found = {item.id: item for item in (*self._load(), *self._items)}
            self._load = None
            self._items, self._by_run = [found[number] for number in sorted(found)], {}
            for item in self._items:
                self._by_run.setdefault(item.run, []).append(item)
            if len(self._items) > self._kept:
                self._forget(len(self._items) - self._kept)
        return self._items

    def list_unloaded(self, run: str, after: int) -> list[FeedEvent]:
        """Return a run's events after an id, newest first, without loading archived ones."""
        return list(takewhile(lambda item: item.id > after, reversed(self._by_run.get(run, []))))

    def note(self, moment: Transition) -> None:
        """Add the events of a step, and call the listeners."""
        found = describe_transition(moment)
        if not found:
            return
        self._items += found
        self._by_run.setdefault(moment.key.run, []).extend(found)
        # In batches: dropping events one by one costs more than holding a few too many.
        if len(self._items) > self._kept + self._kept // 10:
            # Archived events that are not loaded yet are older than all of these.
            self._load = None
            self._forget(len(self._items) - self._kept)
        self._call()

    def _forget(self, surplus: int) -> None:
        gone = self._items[:surplus]
        self._forgotten = gone[-1].id
        del self._items[:surplus]
        for run, count in Counter(item.run for item in gone).items():
            del self._by_run[run][:count]
            if not self._by_run[run]:
                del self._by_run[run]

    def listen(self, listener: Callable[[], None]) -> None:
        """Call a function after every change; it must be quick, for the runner waits for it."""
        self._listeners.append(listener)

    def close(self) -> None:
        """Tell the listeners that no more events will come."""
        self.over = True
        self._call()

    def _call(self) -> None:
        for listener in self._listeners:
            listener()
