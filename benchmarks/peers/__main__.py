"""Command `python -m benchmarks.peers`: measures, prints the report, and saves it on request."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import get_args

from rich.console import Console

from benchmarks.machine import describe_machine
from benchmarks.peers.measuring import FULL, LARGE, QUICK, Call, Plan, call_apart, measure_peers
from benchmarks.peers.report import PeersReport
from benchmarks.peers.sheet import lay_out_peers
from benchmarks.sheet import draw
from hubbub.messages.manifest import Manifest


def main(
    arguments: Sequence[str], plan: Plan | None = None, console: Console | None = None, call: Call = call_apart
) -> None:
    """Run the command; a plan given by the caller replaces the one that the flags choose."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description="What rounds cost elsewhere.")
    parser.add_argument("--quick", action="store_true", help="a minute: little of Paillier, nothing deployed")
    parser.add_argument("--large", action="store_true", help=f"also N = {LARGE:,}: about ten minutes more")
    modes = get_args(Manifest.model_fields["wire"].annotation)
    parser.add_argument("--wire", choices=modes, default=FULL.wire, help="Hubbub's wire mode (%(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was measured to FILE")
    wanted = parser.parse_args(arguments)
    if wanted.json and not wanted.json.absolute().parent.is_dir():
        parser.error(f"--json: there is no folder {wanted.json.parent}")
    chosen = plan or replace(QUICK if wanted.quick else FULL, wire=wanted.wire)
    if wanted.large:
        chosen = replace(chosen, parameters=(*chosen.parameters, LARGE))
    report = PeersReport(
        date=datetime.now(UTC).date().isoformat(),
        command=shlex.join(["python", "-m", "benchmarks.peers", *arguments]),
        machine=describe_machine(),
    )
    console = console or Console()
    measure_peers(chosen, report, console, call)
    show(report, console)
    if wanted.json:
        wanted.json.write_text(json.dumps(report.to_json(), indent=2) + "\n", encoding="utf-8")
        console.print(f"Written to {wanted.json}", highlight=False)


def show(report: PeersReport, console: Console) -> None:
    """Print the report."""
    for sheet in lay_out_peers(report):
        console.print(draw(sheet))
        console.print()
    for remark in report.remarks:
        console.print(remark, highlight=False, markup=False, style="yellow")


if __name__ == "__main__":
    main(sys.argv[1:])
