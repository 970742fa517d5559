"""What the interface answers: the machines' data, as JSON."""

from __future__ import annotations

from pydantic import BaseModel

from hubbub.messages.manifest import Manifest
from hubbub_coordinator import accounts
from hubbub_coordinator.phases import round as rounds
from hubbub_coordinator.phases import run as runs
from hubbub_coordinator.phases.round import Round
from hubbub_coordinator.phases.run import Run


class CostView(BaseModel):
    """Communication that counts as one thing."""

    payload_bits: int
    predicted_bits: int
    wire_bytes: int


class PhaseView(BaseModel):
    """A phase of a round."""

    name: str
    opened_at_s: float
    closed_at_s: float | None
    released_at_s: float | None
    delivered: dict[str, list[str]]
    """Client to the aggregators that hold its complete share set."""
    spoilt: dict[str, str]


class RoundView(BaseModel):
    """A round."""

    round: int
    state: str
    phase: str
    reason: str
    began_at_s: float
    ended_at_s: float | None
    members: list[str]
    missing: list[str]
    union_size: int | None
    accuracy: float | None
    phases: list[PhaseView]
    cost: dict[str, CostView]


class ParticipantView(BaseModel):
    """A party of a run and where it is."""

    name: str
    role: str
    joined: bool
    status: str


class RunView(BaseModel):
    """A run."""

    run: str
    state: str
    reason: str
    strategy: str
    task: str
    round: int
    rounds_wanted: int
    rounds_released: int
    rounds_void: int
    began_at_s: float
    ended_at_s: float | None
    accuracy: float | None


class RunDetail(RunView):
    """A run with its manifest and parties."""

    manifest: Manifest
    participants: list[ParticipantView]


class RunCost(BaseModel):
    """What a run has cost so far, and what dense FedAvg would have cost for as many rounds."""

    total: dict[str, CostView]
    fedavg_bits: int
    rounds: dict[int, dict[str, CostView]]


def view_cost(data: Round) -> dict[str, CostView]:
    """A round's cost so far."""
    return {
        name: CostView(
            payload_bits=cost.payload_bits, predicted_bits=cost.predicted_bits, wire_bytes=cost.wire_bytes
        )
        for name, cost in accounts.costs(data).items()
    }


def view_round(state: rounds.State, data: Round) -> RoundView:
    """A round, in full."""
    open_states = (rounds.State.COLLECTING,)
    phases = [
        PhaseView(
            name=phase.name,
            opened_at_s=record.opened_at_s,
            closed_at_s=record.closed_at_s,
            released_at_s=record.released_at_s,
            delivered={client: sorted(receipts) for client, receipts in record.receipts.items()},
            spoilt=dict(record.spoilt),
        )
        for phase, record in zip(data.phases, data.records, strict=False)
    ]
    return RoundView(
        round=data.number,
        state=state.value,
        phase=data.current.name,
        reason=data.reason,
        began_at_s=data.began_at_s,
        ended_at_s=data.ended_at_s,
        members=[client for client in data.manifest.clients if client in data.members],
        missing=list(data.missing()) if state in open_states and data.records else [],
        union_size=accounts.union_size(data),
        accuracy=accounts.accuracy(data),
        phases=phases,
        cost=view_cost(data),
    )


def view_run(state: runs.State, data: Run, all_rounds: list[tuple[rounds.State, Round]]) -> RunView:
    """A run, in a line."""
    measured = [value for _, each in all_rounds if (value := accounts.accuracy(each)) is not None]
    return RunView(
        run=data.manifest.run_id,
        state=state.value,
        reason=data.reason,
        strategy=data.manifest.strategy,
        task=data.manifest.task,
        round=data.round,
        rounds_wanted=data.manifest.rounds,
        rounds_released=data.released,
        rounds_void=data.void,
        began_at_s=data.began_at_s,
        ended_at_s=data.ended_at_s,
        accuracy=measured[-1] if measured else None,
    )


def view_detail(state: runs.State, data: Run, all_rounds: list[tuple[rounds.State, Round]]) -> RunDetail:
    """A run, in full."""
    last = all_rounds[-1] if all_rounds else None
    participants = [
        ParticipantView(
            name=party,
            role=role.value,
            joined=party in data.joined,
            status=_status(party, joined=party in data.joined, last=last),
        )
        for party, role in data.parties.items()
    ]
    summary = view_run(state, data, all_rounds)
    return RunDetail(**summary.model_dump(), manifest=data.manifest, participants=participants)


def _status(party: str, *, joined: bool, last: tuple[rounds.State, Round] | None) -> str:
    if not joined:
        return "asked to join"
    if last is None or not last[1].records:
        return "joined"
    state, data = last
    if party in data.manifest.aggregators:
        return "released" if party in data.record.ended else f"holds {_held(party, data)} share sets"
    if party in data.applied:
        return f"applied round {data.number}"
    receipts = next((found for client, found in data.record.receipts.items() if client == party), {})
    if receipts:
        return f"delivered {data.current.name} to {len(receipts)} of {len(data.aggregators)} aggregators"
    return "training or sending" if state is rounds.State.COLLECTING else "was left out"


def _held(party: str, data: Round) -> int:
    return sum(party in receipts for receipts in data.record.receipts.values())


def view_run_cost(all_rounds: list[tuple[rounds.State, Round]]) -> RunCost:
    """Costs of all rounds, and their totals."""
    by_round = {data.number: view_cost(data) for _, data in all_rounds}
    names = dict.fromkeys(name for costs in by_round.values() for name in costs)
    total = {
        name: CostView(
            **{
                field: sum(getattr(costs[name], field) for costs in by_round.values() if name in costs)
                for field in CostView.model_fields
            }
        )
        for name in names
    }
    fedavg = sum(
        accounts.account(data).fedavg_bits for state, data in all_rounds if state is rounds.State.RELEASED
    )
    return RunCost(total=total, fedavg_bits=fedavg, rounds=by_round)
