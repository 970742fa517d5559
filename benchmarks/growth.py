"""Growth of a phase's time and bytes with N, C and S, with linear fits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import log2
from statistics import median

import numpy as np

from benchmarks.feeding import PhaseCost, measure_phase
from benchmarks.peers.measuring import call_apart
from benchmarks.steps import CLIENTS, SERVERS
from hubbub.protocol import signs

Call = Callable[[Callable[[], PhaseCost]], PhaseCost]


TURNS = 5
"""Repeats. A machine's speed changes from minute to minute, so all sizes take turns, and medians are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GrowthPlan:
    """Sizes to measure; what does not grow is C = 5, S = 2 and `parameters`."""

    lengths: tuple[int, ...]
    cohorts: tuple[int, ...]
    servers: tuple[int, ...]
    parameters: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Straight line through the measurements, by least squares."""

    what: str
    over: str
    unit: str
    slope: float
    constant: float
    r_squared: float
    largest_residual: float
    """Largest residual as a fraction of the largest value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """Measurements by the size that grew."""

    by_length: list[PhaseCost]
    by_cohort: list[PhaseCost]
    by_servers: list[PhaseCost]

    @property
    def fits(self) -> list[Fit]:
        return list(_fit_all(self))


def measure_growth(plan: GrowthPlan, say: Callable[[str], None], call: Call = call_apart) -> Growth:
    """Measure every size several times, in turn, each in a fresh process."""

    def measure(what: str, sizes: Sequence[tuple[int, int, int]]) -> list[PhaseCost]:
        found: dict[tuple[int, int, int], list[PhaseCost]] = {size: [] for size in sizes}
        for turn in range(TURNS):
            say(f"Growth with {what}, turn {turn + 1} of {TURNS}")
            for size in sizes:
                found[size].append(call(partial(measure_phase, *size)))
        return [_middle(found[size]) for size in sizes]

    return Growth(
        by_length=measure("N", [(length, CLIENTS, SERVERS) for length in plan.lengths]),
        by_cohort=measure("C", [(plan.parameters, clients, SERVERS) for clients in plan.cohorts]),
        by_servers=measure("S", [(plan.parameters, CLIENTS, servers) for servers in plan.servers]),
    )


def _middle(costs: Sequence[PhaseCost]) -> PhaseCost:
    """Return the medians of the times; the bytes do not vary."""
    return replace(
        costs[0],
        client_s=median(each.client_s for each in costs),
        server_s=median(each.server_s for each in costs),
        wall_s=median(each.wall_s for each in costs),
    )


def _fit_all(growth: Growth) -> Iterator[Fit]:
    if is_line(growth.by_length):
        yield _fit("bytes of everybody", "N", "B", growth.by_length, _length_of, lambda each: each.all_bytes)
        yield _fit("a client's time", "N", "s", growth.by_length, _length_of, lambda each: each.client_s)
        yield _fit("an aggregator's time", "N", "s", growth.by_length, _length_of, lambda each: each.server_s)
    if is_line(growth.by_cohort):
        yield _fit("elements of everybody", "C", "", growth.by_cohort, _cohort_of, _elements_of)
        yield _fit("bytes of everybody", "C", "B", growth.by_cohort, _cohort_of, lambda each: each.all_bytes)
        yield _fit("a client's time", "C", "s", growth.by_cohort, _cohort_of, lambda each: each.client_s)
        yield _fit("an aggregator's time", "C", "s", growth.by_cohort, _cohort_of, lambda each: each.server_s)


def _length_of(cost: PhaseCost) -> float:
    return cost.parameters


def _cohort_of(cost: PhaseCost) -> float:
    return cost.clients


def is_line(points: Sequence[object]) -> bool:
    """Say whether there are enough points for a fit: two always lie on a line."""
    return len(points) > 2


def _elements_of(cost: PhaseCost) -> float:
    """Return bytes over the log2 m bits of an element: a larger cohort needs a larger ring."""
    return 8 * cost.all_bytes / log2(signs.modulus(cost.clients))


def _fit(
    what: str,
    over: str,
    unit: str,
    costs: Sequence[PhaseCost],
    place: Callable[[PhaseCost], float],
    value: Callable[[PhaseCost], float],
) -> Fit:
    return fit_line(what, over, unit, [place(each) for each in costs], [value(each) for each in costs])


def fit_line(what: str, over: str, unit: str, places: Sequence[float], values: Sequence[float]) -> Fit:
    """Fit a line by least squares."""
    x, y = np.array(places, dtype=np.float64), np.array(values, dtype=np.float64)
    slope, constant = np.polyfit(x, y, 1)
    residuals = y - (slope * x + constant)
    spread = float(((y - y.mean()) ** 2).sum())
    return Fit(
        what=what,
        over=over,
        unit=unit,
        slope=float(slope),
        constant=float(constant),
        r_squared=1 - float((residuals**2).sum()) / spread if spread else 1.0,
        largest_residual=float(np.abs(residuals).max() / np.abs(y).max()),
    )
