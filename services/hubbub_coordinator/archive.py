"""Archive of ended rounds and runs: kept in the event store, not in memory, and read on demand.

An archived round keeps who took part and what it cost, without the receipts that its orders needed. A run's
totals are added up as its rounds are archived, so that reading them does not read every round.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, fields, replace
from functools import lru_cache
from typing import Any, NamedTuple

from hubbub.errors import LocalError
from hubbub.ids import PartyId, RunId
from hubbub.machine.effects import Key
from hubbub.machine.table import is_final
from hubbub.messages.rounds import RoundApplied, ScoreClaim
from hubbub.messages.shares import Traffic
from hubbub.store.base import Archive, EventStore, Snapshot
from hubbub.store.event_codec import EventCodec
from hubbub_coordinator.accounts import Sums, add_up, split_by_party
from hubbub_coordinator.event_feed import FeedEvent, FeedEventKind
from hubbub_coordinator.labels import Label
from hubbub_coordinator.phases import round as rounds
from hubbub_coordinator.phases import run as runs
from hubbub_coordinator.phases.round import CoordinatorRound, PhaseRecord
from hubbub_coordinator.phases.run import CoordinatorRun

RUNS_HELD = 64
"""Ended runs in the cache, for repeated requests about one of them."""

SomeRound = tuple[rounds.State, CoordinatorRound]
SUMS = "sums"


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedRound:
    """An ended round, without what is the same in all rounds of its run."""

    state: rounds.State
    number: int
    is_scored: bool
    score_members: frozenset[PartyId]
    phase: int
    records: tuple[PhaseRecord, ...]
    members: frozenset[PartyId]
    applied: Mapping[PartyId, RoundApplied]
    reported: Mapping[PartyId, tuple[ScoreClaim, ...]]
    traffic: tuple[tuple[PartyId, Traffic], ...]
    began_at_s: float
    ended_at_s: float | None
    reason: str


@dataclass(frozen=True, slots=True)
class EndedRun:
    """A run, as it ended."""

    state: runs.State
    data: CoordinatorRun


class RunSummary(NamedTuple):
    """Summary of a run, for the list of all runs; sorts by the order of submission."""

    place: int
    run: RunId
    state: str
    idempotency_key: str


_FIELDS = [each.name for each in fields(EndedRound) if each.name != "state"]
_EVENT_FIELDS = [each.name for each in fields(FeedEvent)]


def fold(data: CoordinatorRound) -> CoordinatorRound:
    """Return a round without what nobody needs once it is over."""
    return replace(
        data,
        records=tuple(
            replace(
                each,
                held={},
                holders={client: tuple(servers) for client, servers in each.delivered.items()},
            )
            for each in data.records
        ),
        early={},
        attended={},
        applied={client: report.model_copy(update={"traffic": ()}) for client, report in data.applied.items()},
        traffic=tuple(
            (PartyId(row.party), Traffic.model_validate(row.model_dump(exclude={"party"})))
            for row in split_by_party(data)
        ),
    )


class RunArchive:
    """Reads and writes ended runs and rounds in an event store."""

    def __init__(self, store: EventStore) -> None:
        self._store = store
        self._shapes = EventCodec((EndedRound, EndedRun, Sums))
        self.find_run = lru_cache(RUNS_HELD)(self._find_run)

    # Reading --------------------------------------------------------------------------------------------

    def list_runs(self) -> list[RunSummary]:
        """Return all ended runs, in no order."""
        return [
            RunSummary(place, each.key.run, state, key)
            for each in self._store.read_summaries("run")
            for state, place, key in [json.loads(each.summary)]
        ]

    def _find_run(self, run: RunId) -> tuple[runs.State, CoordinatorRun]:
        """Return an ended run; `find_run` caches the last ones."""
        for found in self._store.find_over("run", run):
            ended: EndedRun = self._shapes.load(EndedRun.__name__, found.body)
            return ended.state, ended.data
        raise LocalError(f"the event store lacks run {run}, which is over")

    def find_rounds(self, run: RunId, data: CoordinatorRun, first: int, last: int) -> list[SomeRound]:
        """Return the archived rounds of a run from `first` to `last`."""
        if first > last:
            return []
        found: list[SomeRound] = []
        for each in self._store.find_over("round", run, first, last):
            ended: EndedRound = self._shapes.load(EndedRound.__name__, each.body)
            values: dict[str, Any] = {name: getattr(ended, name) for name in _FIELDS}
            found.append((ended.state, CoordinatorRound(run=Key("run", run), manifest=data.manifest, **values)))
        return found

    def find_sums(self, run: RunId) -> Sums:
        """Return the totals over the archived rounds of a run."""
        for found in self._store.find_over(SUMS, run):
            sums: Sums = self._shapes.load(Sums.__name__, found.body)
            return sums
        return Sums()

    def read_news(self, most: int) -> list[FeedEvent]:
        """Return the newest archived feed events, in order."""
        # One JSON document is parsed in a third of the time of many.
        texts = ",".join(body for _, body in self._store.read_notes(most))
        found = (dict(zip(_EVENT_FIELDS, said, strict=True)) for said in json.loads(f"[{texts}]"))
        return [FeedEvent(**{**said, "kind": FeedEventKind(said["kind"])}) for said in found]

    # Writing --------------------------------------------------------------------------------------------

    def draw_up(
        self,
        run: RunId,
        over: Iterable[SomeRound],
        ended: EndedRun | None,
        ongoing: Sequence[Snapshot],
        news: Sequence[FeedEvent],
    ) -> Archive:
        """Draw up the archive of ended rounds, in their order, and of the run itself if it has ended."""
        sums, found = self.find_sums(run), list[Snapshot]()
        for state, data in over:
            if data.number > sums.last:
                sums = add_up(sums, state, data)
            # For a round that was broken off the API shows who was missing, which only receipts tell.
            folded = fold(data) if is_final(rounds.KIND.table, state) else data
            values: dict[str, Any] = {name: getattr(folded, name) for name in _FIELDS}
            body = self._shapes.dump(EndedRound(state=state, **values))
            found.append(Snapshot(Key("round", run, data.number), body))
        found.append(Snapshot(Key(SUMS, run), self._shapes.dump(sums)))
        if ended is not None:
            summary = json.dumps([ended.state.value, ended.data.place, ended.data.idempotency_key])
            found.append(Snapshot(Key("run", run), self._shapes.dump(ended), summary))
        notes = ((item.id, json.dumps(astuple(item), separators=(",", ":"))) for item in news)
        return Archive(run=run, over=tuple(found), ongoing=tuple(ongoing), notes=tuple(notes))


@dataclass(frozen=True, slots=True)
class KnownRun:
    """Snapshot of a run: the part that was in memory, and the archive, which never changes.

    It can be read in a thread while the run goes on.
    """

    run: RunId
    state: runs.State
    data: CoordinatorRun
    held: Mapping[int, SomeRound]
    """The last rounds, which are in memory, by number."""
    archive: RunArchive
    label: Label

    def find_rounds(self, *, after: int = 0, limit: int | None = None) -> list[SomeRound]:
        """Return all rounds so far, or some of them; a round that is about to begin is not among them."""
        last = self.data.round if limit is None else min(self.data.round, after + limit)
        gone = min(last, min(self.held, default=last + 1) - 1)
        archived = self.archive.find_rounds(self.run, self.data, after + 1, gone)
        return [*archived, *(each for number, each in sorted(self.held.items()) if after < number <= last)]

    def find_round(self, number: int) -> SomeRound | None:
        """Return one round; None if it has not begun."""
        return next(iter(self.find_rounds(after=number - 1, limit=1)), None)

    def add_up(self) -> Sums:
        """Return the totals over all rounds so far."""
        sums = self.archive.find_sums(self.run)
        for number, each in sorted(self.held.items()):
            # A held round may have been archived a moment ago.
            if number > sums.last:
                sums = add_up(sums, *each)
        return sums
