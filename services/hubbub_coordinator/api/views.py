"""Views of runs, rounds and costs: the machines' data as the interface answers it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import BaseModel

from hubbub.ids import RunId
from hubbub.messages.manifest import Manifest
from hubbub.rest import CostView, HeadlineView, ParticipantView, PhaseView, RoundView, RunView, RunWithParties
from hubbub.strategies.planner import describe_risks, explain_no_gain
from hubbub.strategies.registry import STRATEGIES
from hubbub.trust.roster import Roster
from hubbub_coordinator import accounts
from hubbub_coordinator.accounts import PartyTotalView
from hubbub_coordinator.archive import KnownRun, SomeRound
from hubbub_coordinator.labels import NO_LABEL, Label
from hubbub_coordinator.phases import round as rounds
from hubbub_coordinator.phases import run as runs
from hubbub_coordinator.phases.round import CoordinatorRound, PhaseRecord
from hubbub_coordinator.phases.run import CoordinatorRun
from hubbub_coordinator.progress import Last, classify_arrivals, find_awaited, find_combiner, find_place

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
    no_gain: str
    """The reason, if it takes no fewer bytes than uncompressed FedAvg; empty for FedAvg itself."""


class PartyCostView(PartyTotalView):
    """Traffic of one category that one party reported in one direction, in one round."""

    round: int


class StrategyCostView(BaseModel):
    """Payload of the released rounds under a strategy."""

    total_bits: int
    rounds: dict[int, int]


class RunCost(BaseModel):
    """Cost of a run so far, and of its released rounds under other strategies.

    Totals cover all rounds; figures by round cover those on this page.
    """

    total: dict[str, CostView]
    total_by_party: list[PartyTotalView]
    rounds_released: int
    rounds: dict[int, dict[str, CostView]]
    by_party: list[PartyCostView]
    fedavg_bits: int
    other_strategies: dict[str, StrategyCostView]
    """By the formulas of the run's own wire mode, with the same |V|, members and recipients; its own strategy is
    among them.

    After a strategy without a union phase |V| is not known, and its upper bound is taken.
    """
    next: int | None
    """Send it as `after` to get the next rounds; null if there are none."""


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
        union_size=data.union_size,
        metrics=data.metrics,
        phases=[
            PhaseView(
                name=phase.name,
                state=_find_phase_state(state, record),
                combiner=find_combiner(data, phase.name),
                opened_at_s=record.opened_at_s,
                closed_at_s=record.closed_at_s,
                released_at_s=record.released_at_s,
                delivered=record.delivered,
                spoilt=dict(record.spoilt),
            )
            for phase, record in zip(data.phases, data.records, strict=False)
        ],
        cost=accounts.costs(data),
        all_wire_bytes=accounts.count_all_bytes(data),
        fedavg_bits=accounts.count_fedavg_bits(data),
        fedavg_wire_bytes=accounts.count_fedavg_bytes(data),
        applied=[client for client in data.manifest.clients if client in data.applied],
        arrivals={client: arrival.value for client, arrival in classify_arrivals(data).items()},
    )


def _find_phase_state(state: rounds.State, record: PhaseRecord) -> PhaseState:
    if record.released_at_s is not None:
        return "released"
    # In a released round it is the scores phase that has no sum.
    if state in {rounds.State.VOIDING, rounds.State.VOID, rounds.State.RELEASED}:
        return "void"
    return "collecting" if record.closed_at_s is None else "releasing"


# Runs ---------------------------------------------------------------------------------------------------


def view_run(run: RunId, state: runs.State, data: CoordinatorRun, last: Last, label: Label = NO_LABEL) -> RunView:
    """Return a run in short; its id is a parameter because computing it costs as much as all the rest."""
    return RunView.model_validate(_summarise(run, state, data, last, label))


def _summarise(run: RunId, state: runs.State, data: CoordinatorRun, last: Last, label: Label) -> dict[str, object]:
    waiting = find_awaited(state, data, last)
    # The open round's figures so far; once it has ended, the run's own totals include them.
    now = last[1] if last and last[1].number > data.ended else None
    manifest, headline = data.manifest, data.manifest.headline
    remaining_s = None
    if state not in runs.OUTCOMES and data.ended:
        remaining_s = data.rounds_s / data.ended * (manifest.rounds - data.released)
    return {
        "run": run,
        "name": label.name,
        "note": label.note,
        "state": state.value,
        "reason": data.reason,
        "warning": describe_risks(STRATEGIES[manifest.strategy], manifest.protocol_parameters),
        "stalled": data.stalled,
        "strategy": manifest.strategy,
        "block": manifest.block,
        "bits": manifest.bits,
        "wire": manifest.wire,
        "task": manifest.task,
        "parameters": manifest.parameters,
        "clients": len(manifest.cohort),
        "aggregators": len(manifest.aggregators),
        "round": data.round,
        "rounds_wanted": manifest.rounds,
        "rounds_released": data.released,
        "rounds_void": data.void,
        "headline": HeadlineView(name=headline.name, higher_is_better=headline.higher_is_better)
        if headline
        else None,
        "target": manifest.target,
        "began_at_s": data.began_at_s,
        "ended_at_s": data.ended_at_s,
        "metrics": (now.metrics if now else {}) or data.metrics,
        "payload_bits": data.payload_bits + (now.payload_bits if now else 0),
        "wire_bytes": data.wire_bytes + (now.wire_bytes if now else 0),
        "remaining_s": remaining_s,
        "pausing": data.pausing,
        "paused_since_s": data.paused_since_s,
        "waiting_for": list(waiting.parties),
        "waiting_to": waiting.what if waiting.parties else "",
        "waiting_since_s": waiting.since_s if waiting.parties else None,
    }


def view_detail(known: KnownRun, roster: Roster, now_s: float) -> RunDetail:
    """Return a run in full."""
    state, data, last = known.state, known.data, known.find_round(known.data.round)
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
    summary = _summarise(known.run, state, data, last, known.label)
    no_gain = explain_no_gain(data.manifest.strategy, data.manifest.parameters)
    own = {"manifest": data.manifest, "no_gain": no_gain, "participants": participants}
    return RunDetail.model_validate({**summary, **own})


# Costs --------------------------------------------------------------------------------------------------


def view_costs(sums: accounts.Sums, some_rounds: Sequence[SomeRound], following: int | None = None) -> RunCost:
    """Return the totals of all rounds and the costs of some; `following` is the cursor of the next page."""
    predicted = {
        data.number: accounts.predict_others(data) for state, data in some_rounds if state is rounds.State.RELEASED
    }
    return RunCost(
        total=dict(sums.costs),
        total_by_party=list(sums.parties),
        rounds_released=sums.released,
        rounds={data.number: accounts.costs(data) for _, data in some_rounds},
        by_party=view_parties(some_rounds),
        fedavg_bits=sums.fedavg_bits,
        other_strategies={
            name: StrategyCostView(
                total_bits=sums.others.get(name, 0),
                rounds={number: bits[name] for number, bits in predicted.items() if name in bits},
            )
            for name in STRATEGIES
        },
        next=following,
    )


def view_parties(some_rounds: Sequence[SomeRound]) -> list[PartyCostView]:
    """Return the traffic that each party reported of each round."""
    return [
        PartyCostView(round=data.number, **dict(row))
        for _, data in some_rounds
        for row in accounts.split_by_party(data)
    ]
