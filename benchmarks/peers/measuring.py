"""Measures every system in turn, each in a fresh process, so that neither memory nor settings are shared.

A machine's speed changes from one minute to the next. So the quick systems take several turns, one after the
other, and medians are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from statistics import median
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from rich.console import Console

from benchmarks.peers.ckks import measure_ckks
from benchmarks.peers.contest import Contest, PeerCost, PeerMissing, draw_up_contest
from benchmarks.peers.hubbub_rounds import ROUNDS, SLOW, STRATEGIES, WIRE, measure_hubbub
from benchmarks.peers.paillier import SLOTS, measure_paillier
from benchmarks.peers.report import PeersReport
from benchmarks.steps import CLIENTS
from hubbub.ids import WireMode

if TYPE_CHECKING:  # flwr need not be installed.
    from benchmarks.peers.flower_deployed import DeployedRounds

T = TypeVar("T")
Call: TypeAlias = Callable[[Callable[[], PeerCost]], PeerCost]
Systems: TypeAlias = Mapping[str, Callable[[], PeerCost]]

LENET, ALEXNET, LARGE = 61_706, 1_756_426, 25_000_000
_FEWEST_ROUNDS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Sizes and repeats to measure."""

    parameters: tuple[int, ...]
    paillier: int
    """Elements to measure Paillier on; longer models are scaled up from them."""
    paillier_part: int = 100 * SLOTS
    rounds: int = ROUNDS
    turns: int = 1
    """Repeats of Hubbub and Flower."""
    wire: WireMode = WIRE
    deployed: int | None = None
    """Elements of a deployed round of Flower."""


FULL = Plan(parameters=(LENET, ALEXNET), paillier=LENET, turns=5, deployed=ALEXNET)
QUICK = Plan(parameters=(LENET, ALEXNET), paillier=0, paillier_part=10 * SLOTS, rounds=3)


def call_apart(call: Callable[[], T]) -> T:
    """Call a function in a fresh process and return its result."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(call).result()


def measure_peers(plan: Plan, report: PeersReport, console: Console, call: Call = call_apart) -> None:
    """Measure everything in the plan; a peer that is not installed is left out with a remark."""
    for parameters in plan.parameters:
        with draw_up_contest(parameters, CLIENTS) as contest:
            for systems, turns in ((_list_quick(plan, contest), plan.turns), (_list_slow(plan, contest), 1)):
                report.costs += _take_turns(systems, turns, report, console, call)
    if plan.deployed is None:
        report.remarks.append("A deployed round of Flower was left out.")
    else:
        with console.status("Flower as processes"):
            measure_deployed = partial(_measure_deployed, plan.deployed)
            report.deployed += _attempt("Flower as processes", measure_deployed, report)


def _list_quick(plan: Plan, contest: Contest) -> Systems:
    count = plan.rounds if contest.parameters < LARGE else _FEWEST_ROUNDS
    ours = {
        f"Hubbub {strategy}": partial(measure_hubbub, contest, strategy, wire=plan.wire, count=count)
        for strategy in STRATEGIES
    }
    return {**ours, "Flower SecAgg+": partial(_measure_flower, contest)}


def _list_slow(plan: Plan, contest: Contest) -> Systems:
    part = None if contest.parameters <= plan.paillier else plan.paillier_part
    encrypted = partial(measure_hubbub, contest, SLOW, wire=plan.wire, count=_FEWEST_ROUNDS)
    return {
        **({f"Hubbub {SLOW}": encrypted} if part is None else {}),
        "CKKS": partial(measure_ckks, contest),
        "Paillier": partial(measure_paillier, contest, measured=part),
    }


def _take_turns(
    systems: Systems, turns: int, report: PeersReport, console: Console, call: Call
) -> Iterator[PeerCost]:
    """Measure all systems so many times, in turn; one that is not installed is left out."""
    found: dict[str, list[PeerCost]] = {name: [] for name in systems}
    for turn in range(turns):
        for name in list(found):
            with console.status(f"{name}, turn {turn + 1} of {turns}"):
                found[name] += _attempt(name, partial(call, systems[name]), report)
            if not found[name]:
                del found[name]
    for costs in found.values():
        yield _middle(costs)


def _middle(costs: Sequence[PeerCost]) -> PeerCost:
    """Return the medians of what varies between turns; bytes hardly do."""

    def middle(read: Callable[[PeerCost], float]) -> float:
        return median(map(read, costs))

    told = [each.memory_bytes for each in costs if each.memory_bytes is not None]
    return replace(
        costs[0],
        client_s=middle(lambda each: each.client_s),
        server_s=middle(lambda each: each.server_s),
        client_wire_s=middle(lambda each: each.client_wire_s),
        server_wire_s=middle(lambda each: each.server_wire_s),
        others_s=middle(lambda each: each.others_s),
        wall_s=middle(lambda each: each.wall_s),
        memory_bytes=int(median(told)) if told else None,
        largest_error=max(each.largest_error for each in costs),
    )


def _attempt(name: str, measure: Callable[[], T], report: PeersReport) -> list[T]:
    try:
        return [measure()]
    except PeerMissing as error:
        report.remarks.append(f"{name} was left out: {error}")
        return []


def _measure_flower(contest: Contest) -> PeerCost:
    try:
        from benchmarks.peers.flower import measure_flower  # noqa: PLC0415  (flwr need not be installed.)
    except ImportError as error:
        raise PeerMissing(f"flwr does not import ({error}): see docs/flower.md on how to install it") from None
    return measure_flower(contest)


def _measure_deployed(parameters: int) -> DeployedRounds:
    try:
        from benchmarks.peers.flower_deployed import make_environment, measure_deployed  # noqa: PLC0415
    except ImportError as error:
        raise PeerMissing(f"flwr does not import ({error}): see docs/flower.md on how to install it") from None
    with make_environment() as programs, draw_up_contest(parameters, CLIENTS) as contest:
        return measure_deployed(contest, programs)
