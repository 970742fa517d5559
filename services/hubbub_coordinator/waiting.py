"""For whom a run waits, and since when."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from hubbub.ids import PartyId
from hubbub.strategies.wire import wire_of
from hubbub_coordinator.phases import round as rounds
from hubbub_coordinator.phases import run as runs


@dataclass(frozen=True, slots=True)
class Waiting:
    """Who has yet to do what, and since when they are waited for."""

    parties: tuple[PartyId, ...]
    what: str
    since_s: float


NOBODY = Waiting((), "", 0.0)


Last = tuple[rounds.State, rounds.Round] | None
"""The round that a run is in, if there is one."""


def find_awaited(state: runs.State, run: runs.Run, last: Last) -> Waiting:
    """For whom a run waits just now; nobody if it is over, or paused."""
    match state:
        case runs.State.ENROLLING:
            return Waiting(_without(run, run.joined), "to join", run.began_at_s)
        case runs.State.AGREEING:
            return Waiting(_without(run, run.ready), "to check the keys", run.agreeing_since_s)
        case runs.State.RUNNING if last is not None:
            return _find_awaited_in_round(*last)
    return NOBODY


def _without(run: runs.Run, there: Collection[PartyId]) -> tuple[PartyId, ...]:
    return tuple(party for party in run.parties if party not in there)


def _find_awaited_in_round(state: rounds.State, data: rounds.Round) -> Waiting:
    if not data.records:
        return NOBODY
    record, phase = data.record, data.current.name
    match state:
        case rounds.State.COLLECTING:
            return Waiting(data.missing(), f"to deliver {phase}", record.opened_at_s)
        case rounds.State.RELEASING:
            return Waiting(_find_unreleased(data), f"to release {phase}", record.closed_at_s or record.opened_at_s)
        case rounds.State.VOIDING:
            late = tuple(server for server in data.manifest.aggregators if server not in record.ended)
            return Waiting(late, f"to void {phase}", record.closed_at_s or record.opened_at_s)
        case rounds.State.APPLYING:
            late = tuple(client for client in data.manifest.clients if client not in data.applied)
            return Waiting(late, "to apply the sum", record.released_at_s or record.opened_at_s)
        case rounds.State.REPORTING:
            return Waiting(
                find_unreported(data), "to report the scores", record.released_at_s or record.opened_at_s
            )
    return NOBODY


def find_unreported(data: rounds.Round) -> tuple[PartyId, ...]:
    """Who has applied a round and has yet to say what its scores come to."""
    late = data.applied.keys() - data.reported.keys()
    return tuple(client for client in data.manifest.clients if client in late)


def _find_unreleased(data: rounds.Round) -> tuple[PartyId, ...]:
    """Whose sum is not out; of a combiner it cannot be before it has the others'."""
    late = tuple(server for server in data.aggregators if server not in data.record.ended)
    others = tuple(server for server in late if server != find_combiner(data, data.current.name))
    return others or late


def find_combiner(data: rounds.Round, phase: str) -> PartyId | None:
    """Who adds up the sums of all aggregators in a phase; nobody where each sends its own to the clients."""
    wire = wire_of(data.manifest, phase)
    return wire.combiner(data.number) if wire.compact else None
