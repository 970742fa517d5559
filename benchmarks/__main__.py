"""Command of `make bench`: measures, prints the report, and saves it on request."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from benchmarks.page import DOCS, save
from benchmarks.parts import PARTS, measure
from benchmarks.peers.measuring import Call, call_apart
from benchmarks.plan import FULL, QUICK, Plan
from benchmarks.report import Report
from benchmarks.sheet import draw
from benchmarks.sheets import lay_out
from benchmarks.targets import lay_out_targets


def show(report: Report, console: Console) -> None:
    """Print the report; the targets come last, where they stay visible."""
    machine = report.machine
    console.print(
        f"{machine.cores} cores of {machine.processor}, Python {machine.python}, numpy {machine.numpy}; "
        f"{machine.load:.1f} processes were busy when we began",
        highlight=False,
        style="dim",
    )
    targets = lay_out_targets(report)
    for sheet in (*lay_out(report), *((targets,) if targets else ())):
        console.print()
        console.print(draw(sheet))
    for remark in report.remarks:
        console.print(remark, highlight=False, markup=False, style="yellow")


def main(
    arguments: Sequence[str],
    plan: Plan | None = None,
    console: Console | None = None,
    *,
    docs: Path = DOCS,
    call: Call = call_apart,
) -> None:
    """Run the command; a plan given by the caller replaces the one that the flags choose."""
    wanted = _read(arguments)
    console = console or Console()
    command = f'make bench ARGS="{shlex.join(arguments)}"' if arguments else "make bench"

    def keep(report: Report) -> list[Path]:
        written = save(report, docs) if wanted.save else []
        if wanted.json:
            wanted.json.write_text(json.dumps(report.to_json(), indent=2) + "\n", encoding="utf-8")
        return [*written, *([wanted.json] if wanted.json else [])]

    chosen = plan or (QUICK if wanted.quick else FULL)
    report = measure(chosen, command, console, wanted.only, keep=keep, call=call)
    show(report, console)
    for path in keep(report):
        console.print(f"Written to {path}", highlight=False)


def _read(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="What the protocol costs.")
    parser.add_argument("--quick", action="store_true", help="under 30 s: no RabbitMQ, no peers, little growth")
    parser.add_argument("--only", metavar="PARTS", help=f"some of {', '.join(PARTS)}, separated by commas")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was measured to FILE")
    parser.add_argument("--save", action="store_true", help="write docs/benchmarks.md and its numbers")
    wanted = parser.parse_args(arguments)
    if wanted.save and wanted.only:
        parser.error("--save: a page holds all parts; leave --only out, or keep some with --json")
    wanted.only = wanted.only.split(",") if wanted.only else list(PARTS)
    strangers = [name for name in wanted.only if name not in PARTS]
    if strangers:
        parser.error(f"--only: there is no part {', '.join(strangers)}; there are {', '.join(PARTS)}")
    if wanted.json and not wanted.json.absolute().parent.is_dir():
        parser.error(f"--json: there is no folder {wanted.json.parent}")
    return wanted


if __name__ == "__main__":
    main(sys.argv[1:])
