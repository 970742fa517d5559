"""Rounds and runs that are over: they lie in the event store, not in memory, and are read when they are asked for.

What stays of a round is who took part and what it cost, without the receipts that its orders needed. What the
rounds of a run come to is added up as they are archived, so that nobody who asks for it has to read all of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any

from hubbub.errors import LocalError
from hubbub.ids import PartyId, RunId
from hubbub.machine.effects import Key
from hubbub.machine.table import is_final
from hubbub.messages.rounds import RoundApplied, ScoreClaim
from hubbub.messages.shares import Traffic
from hubbub.store.base import Archive, EventStore, Note, Snapshot
from hubbub.store.event_codec import EventCodec
from hubbub_coordinator.accounts import Sums, add_up, split_by_party
from hubbub_coordinator.event_feed import FeedEvent, FeedEventKind
from hubbub_coordinator.phases import round as rounds
from hubbub_coordinator.phases import run as runs
from hubbub_coordinator.phases.round import CoordinatorRound, PhaseRecord
from hubbub_coordinator.phases.run import CoordinatorRun

RUNS_HELD = 64
"""Of those that are over, for whoever asks about one again and again."""

SomeRound = tuple[rounds.State, CoordinatorRound]
SUMS = "sums"


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedRound:
    """A round, but for what is the same in all rounds of its run."""

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


@dataclass(frozen=True, slots=True)
class EndedRunSummary:
    """What a list of all runs needs of one that is over."""

    run: RunId
    state: runs.State
    place: int
    idempotency_key: str


_FIELDS = [each.name for each in fields(EndedRound) if each.name != "state"]


def fold(data: CoordinatorRound) -> CoordinatorRound:
    """The same round, as far as anybody will ask about it once it is over."""
    return replace(
        data,
        records=tuple(replace(each, receipts={}, holders=_find_holders(each)) for each in data.records),
        early=(),
        attended={},
        applied={client: report.model_copy(update={"traffic": ()}) for client, report in data.applied.items()},
        traffic=tuple(
            (party, Traffic(counts_as=counts_as, direction=direction, payload_bits=payload, wire_bytes=wire))
            for (counts_as, party, direction), (payload, wire) in split_by_party(data).items()
        ),
    )


def _find_holders(record: PhaseRecord) -> dict[PartyId, tuple[PartyId, ...]]:
    return {client: tuple(servers) for client, servers in record.delivered.items()}


class RunArchive:
    """What an event store has of runs and rounds that are over."""

    def __init__(self, store: EventStore) -> None:
        self._store = store
        self._shapes = EventCodec((EndedRound, EndedRun, Sums))
        self.find_run = lru_cache(RUNS_HELD)(self._find_run)

    # Reading --------------------------------------------------------------------------------------------

    def list_runs(self) -> list[EndedRunSummary]:
        """All runs that are over, in no order."""
        return [
            EndedRunSummary(each.key.run, runs.State(state), place, key)
            for each in self._store.read_summaries("run")
            for state, place, key in [json.loads(each.summary)]
        ]

    def _find_run(self, run: RunId) -> tuple[runs.State, CoordinatorRun]:
        """A run that is over; the last ones that were asked for are held."""
        for found in self._store.find_over("run", run):
            ended: EndedRun = self._shapes.load(EndedRun.__name__, found.body)
            return ended.state, ended.data
        raise LocalError(f"the event store lacks run {run}, which is over")

    def find_rounds(self, run: RunId, data: CoordinatorRun, first: int, last: int) -> list[SomeRound]:
        """Rounds of a run from one to another, as far as they are archived."""
        if first > last:
            return []
        return [self._restore(run, data, each) for each in self._store.find_over("round", run, first, last)]

    def _restore(self, run: RunId, data: CoordinatorRun, found: Snapshot) -> SomeRound:
        ended: EndedRound = self._shapes.load(EndedRound.__name__, found.body)
        values = {name: getattr(ended, name) for name in _FIELDS}
        return ended.state, replace(
            CoordinatorRound(run=Key("run", run), number=0, manifest=data.manifest), **values
        )

    def find_sums(self, run: RunId) -> Sums:
        """What all rounds of a run come to that are archived."""
        for found in self._store.find_over(SUMS, run):
            sums: Sums = self._shapes.load(Sums.__name__, found.body)
            return sums
        return Sums()

    def read_news(self, most: int) -> list[FeedEvent]:
        """What happened in all that is archived, the newest of it, in order."""
        # One text, which is read in a third of the time that many take.
        texts = ",".join(body for _, body in self._store.read_notes(most))
        return [_read_item(said) for said in json.loads(f"[{texts}]")]

    # Writing --------------------------------------------------------------------------------------------

    def draw_up(
        self,
        run: RunId,
        over: Iterable[SomeRound],
        ended: EndedRun | None,
        ongoing: Sequence[Snapshot],
        news: Sequence[FeedEvent],
    ) -> Archive:
        """Write rounds that are over, in their order, and the run itself if it has ended."""
        sums, found = self.find_sums(run), list[Snapshot]()
        for state, data in over:
            if data.number > sums.last:
                sums = add_up(sums, state, data)
            found.append(Snapshot(Key("round", run, data.number), self._dump_round(state, data)))
        found.append(Snapshot(Key(SUMS, run), self._shapes.dump(sums)))
        if ended is not None:
            summary = json.dumps([ended.state.value, ended.data.place, ended.data.idempotency_key])
            found.append(Snapshot(Key("run", run), self._shapes.dump(ended), summary))
        return Archive(run=run, over=tuple(found), ongoing=tuple(ongoing), notes=tuple(map(_write_item, news)))

    def _dump_round(self, state: rounds.State, data: CoordinatorRound) -> str:
        # Of a round that was broken off it is shown who was missing, which only receipts tell.
        folded = fold(data) if is_final(rounds.KIND.table, state) else data
        return self._shapes.dump(EndedRound(state=state, **{name: getattr(folded, name) for name in _FIELDS}))


def _write_item(item: FeedEvent) -> Note:
    said = (item.id, item.at_s, item.run, item.round, item.phase, item.kind, item.party, item.text, item.state)
    return item.id, json.dumps(said, separators=(",", ":"))


def _read_item(said: Sequence[Any]) -> FeedEvent:
    number, at_s, run, of_round, phase, kind, party, text, state = said
    return FeedEvent(
        id=number,
        at_s=at_s,
        run=run,
        round=of_round,
        phase=phase,
        kind=FeedEventKind(kind),
        party=party,
        text=text,
        state=state,
    )


@dataclass(frozen=True, slots=True)
class KnownRun:
    """What is known of a run at one moment: what was in memory then, and where the rest is, which never changes.

    It may be asked in a thread, while the run goes on.
    """

    run: RunId
    state: runs.State
    data: CoordinatorRun
    held: Mapping[int, SomeRound]
    """Its rounds in memory, by number: the last ones."""
    archive: RunArchive

    def find_rounds(self, *, after: int = 0, limit: int | None = None) -> list[SomeRound]:
        """All rounds so far, or some of them; one that is about to begin is not there yet."""
        last = self.data.round if limit is None else min(self.data.round, after + limit)
        gone = min(last, min(self.held, default=last + 1) - 1)
        archived = self.archive.find_rounds(self.run, self.data, after + 1, gone)
        return [*archived, *(each for number, each in sorted(self.held.items()) if after < number <= last)]

    def find_round(self, number: int) -> SomeRound | None:
        """One round, if it has begun."""
        return next(iter(self.find_rounds(after=number - 1, limit=1)), None)

    def add_up(self) -> Sums:
        """What all rounds come to so far."""
        sums = self.archive.find_sums(self.run)
        for number, each in sorted(self.held.items()):
            # One may have been archived a moment ago.
            if number > sums.last:
                sums = add_up(sums, *each)
        return sums
