"""API models of communication costs: measured, predicted, and under other strategies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pydantic import BaseModel

from hubbub.messages.shares import Direction
from hubbub.rest import CostView
from hubbub.strategies.registry import STRATEGIES
from hubbub_coordinator import accounts
from hubbub_coordinator.archive import SomeRound
from hubbub_coordinator.phases import round as rounds
from hubbub_coordinator.phases.round import CoordinatorRound


class PartyTotalView(BaseModel):
    """Traffic of one category that one party reported in one direction, over all rounds."""

    counts_as: str
    party: str
    direction: Direction
    """`up` from clients to aggregators, `across` among aggregators, `down` to clients."""
    payload_bits: int
    wire_bytes: int


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


def view_costs(sums: accounts.Sums, some_rounds: Sequence[SomeRound], following: int | None = None) -> RunCost:
    """Return the totals of all rounds and the costs of some; `following` is the cursor of the next page."""
    released = [data for state, data in some_rounds if state is rounds.State.RELEASED]
    return RunCost(
        total={name: _view(cost) for name, cost in sums.costs.items()},
        total_by_party=[
            PartyTotalView(
                counts_as=each.counts_as,
                party=each.party,
                direction=each.direction,
                payload_bits=each.payload_bits,
                wire_bytes=each.wire_bytes,
            )
            for each in sums.parties
        ],
        rounds_released=sums.released,
        rounds={data.number: view_cost(data) for _, data in some_rounds},
        by_party=view_parties(some_rounds),
        fedavg_bits=sums.fedavg_bits,
        other_strategies=_view_strategies(
            sums.others, {data.number: accounts.predict_others(data) for data in released}
        ),
        next=following,
    )


def view_cost(data: CoordinatorRound) -> dict[str, CostView]:
    """Return a round's cost so far."""
    return {name: _view(cost) for name, cost in accounts.costs(data).items()}


def _view(cost: accounts.Cost) -> CostView:
    return CostView(payload_bits=cost.payload_bits, predicted_bits=cost.predicted_bits, wire_bytes=cost.wire_bytes)


def view_parties(some_rounds: Sequence[SomeRound]) -> list[PartyCostView]:
    """Return the traffic that each party reported of each round."""
    return [
        PartyCostView(
            round=data.number,
            counts_as=counts_as,
            party=party,
            direction=direction,
            payload_bits=payload_bits,
            wire_bytes=wire_bytes,
        )
        for _, data in some_rounds
        for (counts_as, party, direction), (payload_bits, wire_bytes) in accounts.split_by_party(data).items()
    ]


def _view_strategies(
    totals: Mapping[str, int], predicted: Mapping[int, Mapping[str, int]]
) -> dict[str, StrategyCostView]:
    return {
        name: StrategyCostView(
            total_bits=totals.get(name, 0),
            rounds={number: bits[name] for number, bits in predicted.items() if name in bits},
        )
        for name in STRATEGIES
    }
