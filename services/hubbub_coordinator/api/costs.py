"""What the interface answers about communication: measured, predicted, and under other strategies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pydantic import BaseModel

from hubbub.ids import RunId
from hubbub.machine.table import is_final
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


AllRounds = Sequence[tuple[rounds.State, Round]]

_OVER = frozenset(state for state in rounds.State if is_final(rounds.KIND.table, state))


class Costs:
    """What rounds have cost; of those that are over it is worked out once, because it never changes."""

    def __init__(self) -> None:
        self._costs: dict[tuple[RunId, int], dict[str, CostView]] = {}
        self._others: dict[tuple[RunId, int], dict[str, int]] = {}

    def of(self, state: rounds.State, data: Round) -> dict[str, CostView]:
        """What a round has cost so far."""
        key = (data.run.run, data.number)
        found = self._costs.get(key) or view_cost(data)
        if state in _OVER:
            self._costs[key] = found
        return found

    def _predict_others(self, data: Round) -> dict[str, int]:
        """What a released round would have taken under every strategy."""
        key = (data.run.run, data.number)
        if key not in self._others:
            self._others[key] = accounts.predict_others(data)
        return self._others[key]

    def view(self, all_rounds: AllRounds) -> RunCost:
        """Costs of all rounds, and their totals."""
        by_round = {data.number: self.of(state, data) for state, data in all_rounds}
        released = [data for state, data in all_rounds if state is rounds.State.RELEASED]
        return RunCost(
            total=_add_up(list(by_round.values())),
            rounds=by_round,
            by_party=view_parties(all_rounds),
            fedavg_bits=sum(accounts.count_fedavg_bits(data) for data in released),
            other_strategies=_view_strategies({data.number: self._predict_others(data) for data in released}),
        )


def view_cost(data: Round) -> dict[str, CostView]:
    """A round's cost so far."""
    return {
        name: CostView(
            payload_bits=cost.payload_bits, predicted_bits=cost.predicted_bits, wire_bytes=cost.wire_bytes
        )
        for name, cost in accounts.costs(data).items()
    }


def _add_up(costs: Sequence[dict[str, CostView]]) -> dict[str, CostView]:
    names = dict.fromkeys(name for each in costs for name in each)
    return {name: _add([each[name] for each in costs if name in each]) for name in names}


def _add(costs: Sequence[CostView]) -> CostView:
    return CostView(
        payload_bits=sum(cost.payload_bits for cost in costs),
        predicted_bits=sum(cost.predicted_bits for cost in costs),
        wire_bytes=sum(cost.wire_bytes for cost in costs),
    )


def view_parties(all_rounds: AllRounds) -> list[PartyCostView]:
    """What each party reported of each round."""
    return [
        PartyCostView(
            round=data.number,
            counts_as=counts_as,
            party=party,
            direction=direction,
            payload_bits=payload_bits,
            wire_bytes=wire_bytes,
        )
        for _, data in all_rounds
        for (counts_as, party, direction), (payload_bits, wire_bytes) in accounts.split_by_party(data).items()
    ]


def _view_strategies(predicted: Mapping[int, Mapping[str, int]]) -> dict[str, StrategyCostView]:
    return {
        name: StrategyCostView(
            total_bits=sum(bits.get(name, 0) for bits in predicted.values()),
            rounds={number: bits[name] for number, bits in predicted.items() if name in bits},
        )
        for name in STRATEGIES
    }
