"""`make bench`: measure, show, and keep if asked to."""

from __future__ import annotations

import argparse
import asyncio
import json
import shlex
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from benchmarks.broker import start_broker
from benchmarks.interface import Audience, measure_load, time_pages
from benchmarks.learning import TrainingPlan, make_contests, time_training
from benchmarks.machine import describe_machine
from benchmarks.report import Report
from benchmarks.rounds import Series, connect_to_rabbitmq, time_rounds
from benchmarks.sheets import draw, lay_out, write_markdown
from benchmarks.steps import time_chunk_sizes, time_factors, time_signs
from benchmarks.trust import measure_trust
from hubbub.messages.manifest import CHUNK_BYTES
from hubbub_local.federation import Connect

LENET = 61_706
ALEXNET = 1_756_426
TRUST_STRATEGIES = ("no-union", "sec-union")
RESULTS = Path(__file__).resolve().parent.parent / "docs" / "results"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much to measure."""

    parameters: tuple[int, ...]
    chunk_sizes: tuple[int, ...]
    repeats: int
    series: Series
    training: TrainingPlan | None
    audience: Audience | None
    rabbitmq: bool


FULL = Plan(
    parameters=(LENET, ALEXNET),
    chunk_sizes=(2**15, 2**16, 2**17, 2**18, 2**19, CHUNK_BYTES),
    repeats=9,
    series=Series(runs=3, rounds_per_run=5),
    training=TrainingPlan(repeats=7, lenet_steps=100, alexnet_steps=5),
    audience=Audience(
        streams=500, requests_per_s=200, parameters=LENET, pairs=15, rounds_per_run=7, runs_listed=10_000, pages=21
    ),
    rabbitmq=True,
)
QUICK = Plan(
    parameters=(LENET, ALEXNET),
    chunk_sizes=(),
    repeats=7,
    series=Series(runs=1, rounds_per_run=3),
    training=None,
    audience=None,
    rabbitmq=False,
)


def measure(plan: Plan, command: str, console: Console) -> Report:
    """Measure everything in the plan."""
    today = datetime.now(UTC).date().isoformat()
    report = Report(date=today, command=command, machine=describe_machine(), repeats=plan.repeats)
    for parameters in plan.parameters:
        with console.status(f"Steps, N = {parameters:,}"):
            report.signs[parameters] = time_signs(parameters, plan.repeats)
    report.factors = time_factors(plan.repeats)
    if plan.chunk_sizes:
        largest = max(plan.parameters)
        with console.status(f"Chunk sizes, N = {largest:,}"):
            report.chunk_sizes[largest] = time_chunk_sizes(largest, plan.chunk_sizes, plan.repeats)
    with ExitStack() as stack:
        transports: dict[str, Connect | None] = {"memory": None}
        if plan.rabbitmq:
            with console.status("Starting a private RabbitMQ node"):
                transports |= _open_rabbitmq(stack, report)
        else:
            report.remarks.append("RabbitMQ was left out.")
        for parameters in plan.parameters:
            with console.status(f"Rounds, N = {parameters:,}"):
                report.rounds += asyncio.run(time_rounds(parameters, transports, plan.series))
    for parameters in plan.parameters:
        for strategy in TRUST_STRATEGIES:
            with console.status(f"Sealing and signing, N = {parameters:,}, {strategy}"):
                report.trust.append(measure_trust(parameters, strategy, plan.series.runs))
    _measure_training(plan.training, report, console)
    if plan.audience:
        with console.status(f"Rounds with {plan.audience.streams} event streams"):
            report.load = measure_load(plan.audience)
        with console.status(f"A list of {plan.audience.runs_listed:,} runs"):
            report.pages = time_pages(plan.audience.runs_listed, plan.audience.pages)
    else:
        report.remarks.append("The interface with an audience was left out.")
    return report


def _measure_training(plan: TrainingPlan | None, report: Report, console: Console) -> None:
    if plan is None:
        report.remarks.append("Local training was left out.")
        return
    for contest in make_contests(plan):
        with console.status(f"Local training, {contest.network}"):
            report.training.append(time_training(contest, plan.repeats))


def _open_rabbitmq(stack: ExitStack, report: Report) -> dict[str, Connect]:
    try:
        url = stack.enter_context(start_broker())
    except (FileNotFoundError, RuntimeError) as error:
        # Not there, or it did not start: the other numbers are worth having all the same.
        report.remarks.append(f"RabbitMQ was left out: {error}. On Debian: apt-get install rabbitmq-server")
        return {}
    return {"RabbitMQ": asyncio.run(connect_to_rabbitmq(url))}


def show(report: Report, console: Console) -> None:
    """Put the report on the terminal."""
    machine = report.machine
    console.print(
        f"{machine.cores} cores of {machine.processor}, Python {machine.python}, numpy {machine.numpy}; "
        f"{machine.load:.1f} processes were busy when we began",
        highlight=False,
        style="dim",
    )
    for sheet in lay_out(report):
        console.print()
        console.print(draw(sheet))
    for remark in report.remarks:
        console.print(remark, highlight=False, style="yellow")


def main(arguments: Sequence[str], plan: Plan | None = None, console: Console | None = None) -> None:
    """Run the command; a plan given by the caller replaces the one that the flags choose."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="What the protocol costs.")
    parser.add_argument("--quick", action="store_true", help="under 20 s: fewer rounds, no RabbitMQ")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was measured to FILE")
    parser.add_argument("--save", action="store_true", help="write docs/results/<date>-bench.md")
    wanted = parser.parse_args(arguments)
    if wanted.json and not wanted.json.absolute().parent.is_dir():
        parser.error(f"--json: there is no folder {wanted.json.parent}")
    console = console or Console()
    command = f'make bench ARGS="{shlex.join(arguments)}"' if arguments else "make bench"
    report = measure(plan or (QUICK if wanted.quick else FULL), command, console)
    show(report, console)
    if wanted.json:
        wanted.json.write_text(json.dumps(report.to_json(), indent=2) + "\n", encoding="utf-8")
        console.print(f"Written to {wanted.json}", highlight=False)
    if wanted.save:
        page = RESULTS / f"{report.date}-bench.md"
        page.write_text(write_markdown(report), encoding="utf-8")
        console.print(f"Written to {page}", highlight=False)


if __name__ == "__main__":
    main(sys.argv[1:])
