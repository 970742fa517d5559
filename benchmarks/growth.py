"""How a phase's time, bytes and memory grow with N, C and S, and how straight the lines are."""

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


REPEATS = 3
"""Times and memory differ from process to process: medians of so many are taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GrowthPlan:
    """Which sizes to go through; what does not grow is C = 5, S = 2 and `parameters`."""

    lengths: tuple[int, ...]
    cohorts: tuple[int, ...]
    servers: tuple[int, ...]
    parameters: int
    crowd: tuple[int, int] | None
    """N and C of phases whose memory is compared with that of five clients; C is as many as there ever are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """A straight line through what was measured, by least squares."""

    what: str
    over: str
    unit: str
    slope: float
    constant: float
    r_squared: float
    largest_residual: float
    """As a share of the largest value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """What was measured, by what grew."""

    by_length: list[PhaseCost]
    by_cohort: list[PhaseCost]
    by_servers: list[PhaseCost]
    crowd: tuple[PhaseCost, PhaseCost] | None
    """Of few clients and of as many as there ever are."""

    @property
    def fits(self) -> list[Fit]:
        return list(_fit_all(self))

    @property
    def memory(self) -> Fit | None:
        """Of the process with all aggregators in it, over N."""
        told = _is_line(self.by_length) and all(each.memory_bytes is not None for each in self.by_length)
        return _fit("memory", "N", "B", self.by_length, _length_of, _memory_of) if told else None


def measure_growth(plan: GrowthPlan, say: Callable[[str], None], call: Call = call_apart) -> Growth:
    """Every phase several times, each in a process of its own, so that all begin with as little memory."""

    def measure(parameters: int, clients: int = CLIENTS, servers: int = SERVERS) -> PhaseCost:
        say(f"Growth, N = {parameters:,}, C = {clients}, S = {servers}")
        return _middle([call(partial(measure_phase, parameters, clients, servers)) for _ in range(REPEATS)])

    return Growth(
        by_length=[measure(length) for length in plan.lengths],
        by_cohort=[measure(plan.parameters, clients=clients) for clients in plan.cohorts],
        by_servers=[measure(plan.parameters, servers=servers) for servers in plan.servers],
        crowd=(measure(plan.crowd[0]), measure(*plan.crowd)) if plan.crowd else None,
    )


def _middle(costs: Sequence[PhaseCost]) -> PhaseCost:
    """The medians of what differs from time to time; bytes do not."""
    told = [each.memory_bytes for each in costs if each.memory_bytes is not None]
    return replace(
        costs[0],
        client_s=median(each.client_s for each in costs),
        server_s=median(each.server_s for each in costs),
        wall_s=median(each.wall_s for each in costs),
        memory_bytes=int(median(told)) if told else None,
    )


def _fit_all(growth: Growth) -> Iterator[Fit]:
    if _is_line(growth.by_length):
        yield _fit("bytes of everybody", "N", "B", growth.by_length, _length_of, lambda each: each.all_bytes)
        yield _fit("a client's time", "N", "s", growth.by_length, _length_of, lambda each: each.client_s)
        yield _fit("an aggregator's time", "N", "s", growth.by_length, _length_of, lambda each: each.server_s)
    if _is_line(growth.by_cohort):
        yield _fit("elements of everybody", "C", "", growth.by_cohort, _cohort_of, _elements_of)
        yield _fit("bytes of everybody", "C", "B", growth.by_cohort, _cohort_of, lambda each: each.all_bytes)
        yield _fit("a client's time", "C", "s", growth.by_cohort, _cohort_of, lambda each: each.client_s)
        yield _fit("an aggregator's time", "C", "s", growth.by_cohort, _cohort_of, lambda each: each.server_s)
    if growth.memory is not None:
        yield growth.memory


def _length_of(cost: PhaseCost) -> float:
    return cost.parameters


def _cohort_of(cost: PhaseCost) -> float:
    return cost.clients


def _memory_of(cost: PhaseCost) -> float:
    return cost.memory_bytes or 0


def _is_line(costs: Sequence[PhaseCost]) -> bool:
    """Two points always lie on one."""
    return len(costs) > 2


def _elements_of(cost: PhaseCost) -> float:
    """Bytes over the log2 m bits of an element: a larger cohort needs a larger ring."""
    return 8 * cost.all_bytes / log2(signs.modulus(cost.clients))


def _fit(
    what: str,
    over: str,
    unit: str,
    costs: Sequence[PhaseCost],
    place: Callable[[PhaseCost], float],
    value: Callable[[PhaseCost], float],
) -> Fit:
    x, y = (np.array([read(each) for each in costs], dtype=np.float64) for read in (place, value))
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
