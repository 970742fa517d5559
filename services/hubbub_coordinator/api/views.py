"""Views of runs and rounds: the machines' data as the interface answers it."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel

from hubbub.ids import PartyId, RunId
from hubbub.messages.manifest import Manifest
from hubbub.rest import HeadlineView, ParticipantView, PhaseView, RoundView, RunView, RunWithParties
from hubbub.trust.roster import Roster
from hubbub_coordinator import accounts
from hubbub_coordinator.api.costs import view_cost
from hubbub_coordinator.phases import round as rounds
from hubbub_coordinator.phases import run as runs
from hubbub_coordinator.phases.round import CoordinatorRound, PhaseRecord
from hubbub_coordinator.phases.run import CoordinatorRun
from hubbub_coordinator.progress import Last, find_awaited, find_combiner, find_place

PhaseState = Literal["collecting", "releasing", "released", "void"]


class RoundPage(BaseModel):
    """Rounds of a run, oldest first."""

    items: list[RoundView]
    next: int | None
    """Send it as `after` to get the next rounds; null if there are none."""
    total: int


class RunPage(BaseModel):
    """Runs, newest first."""

    items: list[RunView]
    next: str | None
    """Send it as `after` to get older runs; null if there are none."""
    total: int
    """Number of runs in the requested states, over all pages."""


class RunDetail(RunWithParties):
    """A run with its parties and manifest."""

    manifest: Manifest


# Rounds -------------------------------------------------------------------------------------------------


def view_round(state: rounds.State, data: CoordinatorRound) -> RoundView:
    """Return a round in full."""
    return RoundView(
        round=data.number,
        state=state.value,
        phase=data.current.name,
        reason=data.reason,
        began_at_s=data.began_at_s,
        ended_at_s=data.ended_at_s,
        members=[client for client in data.manifest.clients if client in data.members],
        missing=list(data.missing()) if state is rounds.State.COLLECTING and data.records else [],
        union_size=accounts.union_size(data),
        metrics=data.metrics,
        phases=[
            _view_phase(phase.name, _find_phase_state(state, record), record, find_combiner(data, phase.name))
            for phase, record in zip(data.phases, data.records, strict=False)
        ],
        cost=view_cost(data),
        fedavg_bits=accounts.count_fedavg_bits(data),
        applied=[client for client in data.manifest.clients if client in data.applied],
    )


def _find_phase_state(state: rounds.State, record: PhaseRecord) -> PhaseState:
    if record.released_at_s is not None:
        return "released"
    # In a released round it is the scores phase that has no sum.
    if state in {rounds.State.VOIDING, rounds.State.VOID, rounds.State.RELEASED}:
        return "void"
    return "collecting" if record.closed_at_s is None else "releasing"


def _view_phase(name: str, state: PhaseState, record: PhaseRecord, combiner: PartyId | None) -> PhaseView:
    return PhaseView(
        name=name,
        state=state,
        combiner=combiner,
        opened_at_s=record.opened_at_s,
        closed_at_s=record.closed_at_s,
        released_at_s=record.released_at_s,
        delivered=record.delivered,
        spoilt=dict(record.spoilt),
    )


# Runs ---------------------------------------------------------------------------------------------------


def view_run(run: RunId, state: runs.State, data: CoordinatorRun, last: Last) -> RunView:
    """Return a run in short; its id is a parameter because computing it costs as much as all the rest."""
    return RunView.model_validate(_summarise(run, state, data, last))


def _summarise(run: RunId, state: runs.State, data: CoordinatorRun, last: Last) -> dict[str, object]:
    waiting = find_awaited(state, data, last)
    # The open round's figures so far; once it has ended, the run's own totals include them.
    now = last[1] if last and last[1].number > data.ended else None
    manifest = data.manifest
    return {
        "run": run,
        "state": state.value,
        "reason": data.reason,
        "strategy": manifest.strategy,
        "block": manifest.block,
        "wire": manifest.wire,
        "task": manifest.task,
        "parameters": manifest.parameters,
        "clients": len(manifest.cohort),
        "aggregators": len(manifest.aggregators),
        "round": data.round,
        "rounds_wanted": manifest.rounds,
        "rounds_released": data.released,
        "rounds_void": data.void,
        "headline": _view_headline(manifest),
        "target": manifest.target,
        "began_at_s": data.began_at_s,
        "ended_at_s": data.ended_at_s,
        "metrics": (now.metrics if now else {}) or data.metrics,
        "payload_bits": data.payload_bits + (now.payload_bits if now else 0),
        "wire_bytes": data.wire_bytes + (now.wire_bytes if now else 0),
        "remaining_s": _estimate_rest(state, data),
        "pausing": data.pausing,
        "waiting_for": list(waiting.parties),
        "waiting_to": waiting.what if waiting.parties else "",
        "waiting_since_s": waiting.since_s if waiting.parties else None,
    }


def _view_headline(manifest: Manifest) -> HeadlineView | None:
    headline = manifest.headline
    return HeadlineView(name=headline.name, higher_is_better=headline.higher_is_better) if headline else None


def _estimate_rest(state: runs.State, data: CoordinatorRun) -> float | None:
    if state in runs.OUTCOMES or not data.ended:
        return None
    return data.rounds_s / data.ended * (data.manifest.rounds - data.released)


def view_detail(
    run: RunId, state: runs.State, data: CoordinatorRun, last: Last, *, roster: Roster, now_s: float
) -> RunDetail:
    """Return a run in full."""
    waiting = find_awaited(state, data, last)
    organisations = {party.name: party.organisation for party in roster.parties}
    organisations |= {member.name: member.organisation for member in data.manifest.cohort}
    participants = []
    for party, role in data.parties.items():
        place, waited_for = find_place(state, data, last, party, now_s), party in waiting.parties
        participants.append(
            ParticipantView(
                name=party,
                role=role.value,
                # A run may be older than the roster, and a party may have left it.
                organisation=organisations.get(party, ""),
                joined=party in data.joined,
                status=place.status,
                state=place.state,
                waited_for=waited_for,
                since_s=waiting.since_s if waited_for else None,
            )
        )
    summary = _summarise(run, state, data, last)
    return RunDetail.model_validate({**summary, "manifest": data.manifest, "participants": participants})
