"""Parts of a report: each measures something, and none is lost if another fails."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from types import MappingProxyType

from rich.console import Console

from benchmarks.broker import start_broker
from benchmarks.compact import time_compact
from benchmarks.deployed import measure_processes
from benchmarks.disturbed import measure_disturbances
from benchmarks.footprint import measure_footprints
from benchmarks.growth import measure_growth
from benchmarks.interface import measure_load, measure_restarts, time_pages
from benchmarks.learning import make_contests, time_training
from benchmarks.machine import describe_machine
from benchmarks.peers.measuring import Call, call_apart, measure_peers
from benchmarks.peers.report import PeersReport
from benchmarks.plan import Plan
from benchmarks.refusals import time_bare_consumer, time_refusals
from benchmarks.report import Report
from benchmarks.rounds import connect_to_rabbitmq, time_rounds
from benchmarks.sizes import measure_sizes
from benchmarks.steps import time_chunk_sizes, time_factors, time_signs
from benchmarks.threads import time_threads
from benchmarks.trust import measure_trust
from hubbub_local.federation import Connect

TRUST_STRATEGIES = ("no-union", "sec-union")


@dataclass(slots=True)
class Bench:
    """State that all parts share."""

    plan: Plan
    report: Report
    console: Console
    call: Call
    amqp_url: str | None = None

    def say(self, text: str) -> None:
        """Print what is being measured."""
        self.console.print(f"[dim]{datetime.now(UTC):%H:%M:%S} {text}[/dim]", highlight=False)

    def leave_out(self, what: str) -> None:
        self.report.remarks.append(f"{what} was left out.")


def _compact(bench: Bench) -> None:
    for parameters in bench.plan.compact:
        bench.say(f"Steps on the compact wire, N = {parameters:,}")
        bench.report.compact[parameters] = time_compact(parameters, bench.plan.repeats)


def _threads(bench: Bench) -> None:
    bench.say(f"An aggregator with one thread and with two, N = {bench.plan.threads:,}")
    bench.report.threads = time_threads(bench.plan.threads, bench.plan.repeats)


def _sizes(bench: Bench) -> None:
    if bench.plan.sizes is None:
        bench.leave_out("One secure round by size")
        return
    transports: dict[str, str | None] = {"memory": None}
    if bench.amqp_url:
        transports["RabbitMQ"] = bench.amqp_url
    bench.report.sizes = measure_sizes(bench.plan.sizes, transports, bench.say)


def _processes(bench: Bench) -> None:
    if not bench.plan.processes or bench.amqp_url is None:
        bench.leave_out("A round of eight processes")
        return
    for plan in bench.plan.processes:
        bench.say(f"A round of processes over RabbitMQ, N = {plan.parameters:,}")
        bench.report.processes.append(measure_processes(plan, bench.amqp_url))


def _growth(bench: Bench) -> None:
    if bench.plan.growth is None:
        bench.leave_out("Growth")
        return
    bench.report.growth = measure_growth(bench.plan.growth, bench.say)


def _footprint(bench: Bench) -> None:
    if bench.plan.footprint is None or bench.amqp_url is None:
        bench.leave_out("An aggregator's memory")
        return
    # Earlier parts left messages for parties of the same names.
    with start_broker() as amqp_url:
        bench.report.footprints = measure_footprints(bench.plan.footprint, amqp_url, bench.say)


def _peers(bench: Bench) -> None:
    if bench.plan.peers is None:
        bench.leave_out("The comparison with peers")
        return
    found = PeersReport(date=bench.report.date, command=bench.report.command, machine=bench.report.machine)
    bench.report.peers = found
    bench.say("Peers on the same vectors")
    measure_peers(bench.plan.peers, found, bench.console, bench.call)
    bench.report.remarks += found.remarks


def _steps(bench: Bench) -> None:
    plan, report = bench.plan, bench.report
    for parameters in plan.parameters:
        bench.say(f"Steps on the paper's wire, N = {parameters:,}")
        report.signs[parameters] = time_signs(parameters, plan.repeats)
    report.factors = time_factors(plan.repeats)
    if plan.chunk_sizes:
        largest = max(plan.parameters)
        bench.say(f"Chunk sizes, N = {largest:,}")
        report.chunk_sizes[largest] = time_chunk_sizes(largest, plan.chunk_sizes, plan.repeats)


def _find_transports(bench: Bench) -> dict[str, Connect | None]:
    transports: dict[str, Connect | None] = {"memory": None}
    if bench.amqp_url:
        transports["RabbitMQ"] = asyncio.run(connect_to_rabbitmq(bench.amqp_url))
    return transports


def _rounds(bench: Bench) -> None:
    transports = _find_transports(bench)
    for parameters in bench.plan.parameters:
        bench.say(f"Rounds without a union, N = {parameters:,}")
        bench.report.rounds += asyncio.run(time_rounds(parameters, transports, bench.plan.series))


def _trust(bench: Bench) -> None:
    for parameters in bench.plan.parameters:
        for strategy in TRUST_STRATEGIES:
            bench.say(f"Sealing and signing, N = {parameters:,}, {strategy}")
            bench.report.trust.append(measure_trust(parameters, strategy, bench.plan.series.runs))


def _refusals(bench: Bench) -> None:
    bench.say("Refusing")
    bench.report.refusals = asyncio.run(time_refusals(_find_transports(bench)))
    if bench.amqp_url:
        bench.report.refusals.append(asyncio.run(time_bare_consumer(bench.amqp_url)))


def _training(bench: Bench) -> None:
    if bench.plan.training is None:
        bench.leave_out("Local training")
        return
    for contest in make_contests(bench.plan.training):
        bench.say(f"Local training, {contest.network}")
        bench.report.training.append(time_training(contest, bench.plan.training.repeats))


def _audience(bench: Bench) -> None:
    audience = bench.plan.audience
    if audience is None:
        bench.leave_out("The interface with an audience")
        return
    bench.say(f"Rounds with {audience.streams} event streams")
    bench.report.load = measure_load(audience)
    bench.say("Rounds with readers of large views, and with a flood")
    disturbed = measure_disturbances(
        audience.parameters, audience.rounds_per_run, audience.pairs, audience.rounds_read
    )
    bench.report.disturbed = asyncio.run(disturbed)
    bench.say(f"A list of {audience.runs_listed:,} runs")
    bench.report.pages = time_pages(audience.runs_listed, audience.pages)
    bench.say(f"A coordinator that is started again after up to {max(audience.restarted_after):,} rounds")
    bench.report.restarts = measure_restarts(audience.restarted_after, bench.plan.repeats)


PARTS: Mapping[str, Callable[[Bench], None]] = MappingProxyType(
    {
        "compact": _compact,
        "threads": _threads,
        "sizes": _sizes,
        "processes": _processes,
        "growth": _growth,
        "memory": _footprint,
        "peers": _peers,
        "steps": _steps,
        "rounds": _rounds,
        "trust": _trust,
        "refusals": _refusals,
        "training": _training,
        "audience": _audience,
    }
)
"""Parts by name, in the order in which they run."""

ON_BROKER = frozenset({"sizes", "processes", "memory", "rounds", "refusals"})


def measure(
    plan: Plan,
    command: str,
    console: Console,
    names: Collection[str] = tuple(PARTS),
    *,
    keep: Callable[[Report], object] = lambda _: None,
    call: Call = call_apart,
) -> Report:
    """Measure every named part, and save the report after each; a part that fails becomes a remark."""
    today = datetime.now(UTC).date().isoformat()
    report = Report(date=today, command=command, machine=describe_machine(), repeats=plan.repeats)
    bench = Bench(plan, report, console, call)
    with ExitStack() as stack:
        if not ON_BROKER.isdisjoint(names):
            _open_broker(stack, bench)
        for name, part in PARTS.items():
            if name in names:
                _attempt(name, part, bench)
                keep(report)
    return report


def _attempt(name: str, part: Callable[[Bench], None], bench: Bench) -> None:
    try:
        part(bench)
    except Exception as error:  # noqa: BLE001  (After half an hour the other parts are worth having all the same.)
        bench.report.remarks.append(f"The part {name} failed: {type(error).__name__}: {error}")


def _open_broker(stack: ExitStack, bench: Bench) -> None:
    if not bench.plan.rabbitmq:
        bench.leave_out("RabbitMQ")
        return
    bench.say("Starting a private RabbitMQ node")
    try:
        bench.amqp_url = stack.enter_context(start_broker())
    except (FileNotFoundError, RuntimeError) as error:
        # It is not installed or did not start: measure the rest anyway.
        bench.report.remarks.append(f"RabbitMQ was left out: {error}. On Debian: apt-get install rabbitmq-server")
