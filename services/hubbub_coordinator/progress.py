"""Progress of a run's parties, as far as the coordinator can tell: what each does, and who is waited for."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum

from hubbub.ids import PartyId
from hubbub.strategies.phase_plan import plan_phase
from hubbub.strategies.scores import SCORES
from hubbub_coordinator.phases import round as rounds
from hubbub_coordinator.phases import run as runs
from hubbub_coordinator.phases.round import CoordinatorRound, PhaseRecord
from hubbub_coordinator.phases.run import CoordinatorRun


@dataclass(frozen=True, slots=True)
class Waiting:
    """Parties that a run waits for, what they have yet to do, and since when."""

    parties: tuple[PartyId, ...]
    what: str
    since_s: float


NOBODY = Waiting((), "", 0.0)


Last = tuple[rounds.State, rounds.CoordinatorRound] | None
"""The round that a run is in, if there is one."""


def find_awaited(state: runs.State, run: runs.CoordinatorRun, last: Last) -> Waiting:
    """Return the parties that a run waits for now; none if it is over or paused."""
    match state:
        case runs.State.ENROLLING:
            return Waiting(_without(run, run.joined), "to join", run.began_at_s)
        case runs.State.AGREEING:
            return Waiting(_without(run, run.ready), "to check the keys", run.agreeing_since_s)
        case runs.State.RUNNING if last is not None:
            return find_awaited_in_round(*last)
    return NOBODY


def _without(run: runs.CoordinatorRun, there: Collection[PartyId]) -> tuple[PartyId, ...]:
    return tuple(party for party in run.parties if party not in there)


def find_awaited_in_round(state: rounds.State, data: rounds.CoordinatorRound) -> Waiting:
    """Return the parties that a round waits for now."""
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
            unreported = data.applied.keys() - data.reported.keys()
            late = tuple(client for client in data.manifest.clients if client in unreported)
            return Waiting(late, "to report the scores", record.released_at_s or record.opened_at_s)
    return NOBODY


def _find_unreleased(data: rounds.CoordinatorRound) -> tuple[PartyId, ...]:
    """Return the aggregators whose sum is not out; the combiner only if it is the last: it needs the others'."""
    late = tuple(server for server in data.aggregators if server not in data.record.ended)
    others = tuple(server for server in late if server != find_combiner(data, data.current.name))
    return others or late


def find_combiner(data: rounds.CoordinatorRound, phase: str) -> PartyId | None:
    """Return the aggregator that adds up the others' sums in a phase; None if each sends its own to clients."""
    wire = plan_phase(data.manifest, phase)
    return wire.combiner(data.number) if wire.compact else None


class PartyState(StrEnum):
    """Stage of a party in its run."""

    ASKED = "asked"
    JOINED = "joined"
    TRAINING = "training"
    SENDING = "sending"
    DELIVERED = "delivered"
    ADDING = "adding"
    RELEASED = "released"
    APPLIED = "applied"
    LEFT_OUT = "left-out"
    """Its shares are not in the sum of this round: it keeps its update for the next."""
    MISSING = "missing"
    """It did not deliver in time, or has been waited for longer than half of the phase's timeout."""
    FAILED = "failed"
    IDLE = "idle"


@dataclass(frozen=True, slots=True)
class PartyStage:
    """Stage of a party, as a state and as a short text."""

    state: PartyState
    status: str


def find_place(state: runs.State, run: CoordinatorRun, last: Last, party: PartyId, now_s: float) -> PartyStage:
    """Return the stage of a party in its run and in the open round."""
    status = _describe(state, run, last, party)
    if party == run.failed_party:
        return PartyStage(PartyState.FAILED, run.reason.removeprefix(f"{party} "))
    if party not in run.joined:
        return PartyStage(PartyState.ASKED, status)
    if state in {runs.State.ENROLLING, runs.State.AGREEING}:
        return PartyStage(PartyState.JOINED, status)
    if state is not runs.State.RUNNING or last is None or not last[1].records:
        return PartyStage(PartyState.IDLE, status)
    waiting = find_awaited(state, run, last)
    if party in waiting.parties and now_s - waiting.since_s > run.manifest.phase_timeout_s / 2:
        return PartyStage(PartyState.MISSING, status)
    find = _place_aggregator if party in run.manifest.aggregators else _place_client
    return PartyStage(find(*last, party), status)


def _place_aggregator(state: rounds.State, data: CoordinatorRound, party: PartyId) -> PartyState:
    if state is rounds.State.COLLECTING or (party not in data.aggregators and state is not rounds.State.VOIDING):
        return PartyState.IDLE
    if party not in data.record.ended:
        return PartyState.ADDING
    return PartyState.IDLE if state is rounds.State.VOIDING else PartyState.RELEASED


def _place_client(state: rounds.State, data: CoordinatorRound, party: PartyId) -> PartyState:
    if data.scoring and party in data.awaited and party not in data.reported:
        return _place_scorer(state, data, party)
    if party in data.applied:
        return PartyState.APPLIED
    if data.members and party not in data.members:
        return PartyState.LEFT_OUT
    if party not in data.missing():
        return PartyState.DELIVERED
    if state is not rounds.State.COLLECTING:
        return PartyState.MISSING
    if data.record.held.get(party):
        return PartyState.SENDING
    # After the first phase clients send without an order, as soon as they have decoded its sum.
    return PartyState.SENDING if data.phase else PartyState.TRAINING


def _place_scorer(state: rounds.State, data: CoordinatorRound, party: PartyId) -> PartyState:
    if party not in data.missing():
        return PartyState.DELIVERED
    return PartyState.SENDING if state is rounds.State.COLLECTING else PartyState.MISSING


def _describe(state_of_run: runs.State, run: CoordinatorRun, last: Last, party: PartyId) -> str:
    if party not in run.joined:
        return "asked to join"
    if last is None or not last[1].records:
        return "joined"
    state, data = last
    if party in data.manifest.aggregators:
        held = sum(party in holders for holders in data.record.delivered.values())
        return "released" if party in data.record.ended else f"holds {held} share sets"
    holders = data.record.delivered.get(party, [])
    if party in data.applied and (party in data.reported or not holders):
        return f"applied round {data.number}"
    if holders:
        return f"delivered {data.current.name} to {len(holders)} of {len(data.aggregators)} aggregators"
    if state is not rounds.State.COLLECTING:
        return "was left out"
    return f"had not delivered {data.current.name}" if state_of_run in runs.OUTCOMES else "training or sending"


LATE_S = 5.0
LATE_TIMES = 2.0
"""A client is late that takes more than `LATE_S`, and this many times as long as the first half of the clients."""


class Arrival(StrEnum):
    """Arrival of a client's shares in a round, as a class: times would say something of its data."""

    ON_TIME = "on-time"
    LATE = "late"
    MISSING = "missing"


def classify_arrivals(data: CoordinatorRound) -> dict[PartyId, Arrival]:
    """Return the class of each client whose shares have arrived or been given up, the worst of all phases."""
    worst: dict[PartyId, Arrival] = {}
    ranks = list(Arrival)
    for place, (phase, record) in enumerate(zip(data.phases, data.records, strict=False)):
        if phase is SCORES:
            continue
        servers = set(phase.aggregators(data.manifest.aggregators))
        delivered = {client for client, holders in record.delivered.items() if servers == set(holders)}
        limit_s = _find_limit(record, delivered)
        for client in data.manifest.clients if place == 0 else sorted(data.members):
            if client in delivered:
                is_late = record.arrived.get(client, record.opened_at_s) - record.opened_at_s > limit_s
                found = Arrival.LATE if is_late else Arrival.ON_TIME
            elif record.closed_at_s is not None:
                found = Arrival.MISSING
            else:
                continue
            worst[client] = max(worst.get(client, found), found, key=ranks.index)
    return {client: worst[client] for client in data.manifest.clients if client in worst}


def _find_limit(record: PhaseRecord, delivered: Collection[PartyId]) -> float:
    times = sorted(record.arrived.get(client, record.opened_at_s) - record.opened_at_s for client in delivered)
    return max(LATE_S, LATE_TIMES * times[(len(times) - 1) // 2]) if times else LATE_S
