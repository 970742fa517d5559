"""What the interface answers about communication: measured, predicted, and under other strategies."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel

from hubbub.messages.traffic import Direction
from hubbub.strategies.registry import STRATEGIES
from hubbub_coordinator import accounts
from hubbub_coordinator.phases import round as rounds
from hubbub_coordinator.phases.round import Round


class CostView(BaseModel):
    """Communication that counts as one thing."""

    payload_bits: int
    predicted_bits: int
    """By the formula of the run's wire mode."""
    wire_bytes: int


class PartyCostView(BaseModel):
    """What one party reported of one round, in one direction."""

    round: int
    counts_as: str
    party: str
    direction: Direction
    """`up` from clients to aggregators, `across` among aggregators, `down` to clients."""
    payload_bits: int
    wire_bytes: int


class StrategyCostView(BaseModel):
    """What the released rounds would have taken under a strategy."""

    total_bits: int
    rounds: dict[int, int]


class RunCost(BaseModel):
    """What a run has cost so far, and what others would have cost for its released rounds."""

    total: dict[str, CostView]
    rounds: dict[int, dict[str, CostView]]
    by_party: list[PartyCostView]
    fedavg_bits: int
    other_strategies: dict[str, StrategyCostView]
    """By the formulas of the run's own wire mode, with the same |V|, members and recipients; its own strategy is
    among them.

    After a strategy without a union phase, |V| is not known: the most that it can have been is taken.
    """


def view_cost(data: Round) -> dict[str, CostView]:
    """A round's cost so far."""
    return {
        name: CostView(
            payload_bits=cost.payload_bits, predicted_bits=cost.predicted_bits, wire_bytes=cost.wire_bytes
        )
        for name, cost in accounts.costs(data).items()
    }


def view_run_cost(all_rounds: Sequence[tuple[rounds.State, Round]]) -> RunCost:
    """Costs of all rounds, and their totals."""
    by_round = {data.number: view_cost(data) for _, data in all_rounds}
    released = [data for state, data in all_rounds if state is rounds.State.RELEASED]
    return RunCost(
        total=_add_up(list(by_round.values())),
        rounds=by_round,
        by_party=[row for _, data in all_rounds for row in _view_parties(data)],
        fedavg_bits=sum(accounts.count_fedavg_bits(data) for data in released),
        other_strategies=_view_strategies(released),
    )


def _add_up(costs: Sequence[dict[str, CostView]]) -> dict[str, CostView]:
    names = dict.fromkeys(name for each in costs for name in each)
    return {name: _add([each[name] for each in costs if name in each]) for name in names}


def _add(costs: Sequence[CostView]) -> CostView:
    return CostView(
        payload_bits=sum(cost.payload_bits for cost in costs),
        predicted_bits=sum(cost.predicted_bits for cost in costs),
        wire_bytes=sum(cost.wire_bytes for cost in costs),
    )


def _view_parties(data: Round) -> list[PartyCostView]:
    return [
        PartyCostView(
            round=data.number,
            counts_as=counts_as,
            party=party,
            direction=direction,
            payload_bits=payload_bits,
            wire_bytes=wire_bytes,
        )
        for (counts_as, party, direction), (payload_bits, wire_bytes) in accounts.split_by_party(data).items()
    ]


def _view_strategies(released: Sequence[Round]) -> dict[str, StrategyCostView]:
    predicted = {data.number: accounts.predict_others(data) for data in released}
    return {
        name: StrategyCostView(
            total_bits=sum(bits.get(name, 0) for bits in predicted.values()),
            rounds={number: bits[name] for number, bits in predicted.items() if name in bits},
        )
        for name in STRATEGIES
    }
