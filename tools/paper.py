"""`make paper`: rounds, mean |V| and megabytes to 98 % on MNIST, for every strategy, beside the paper's Table 3.

The setting is that of section 5: LeNet, C = 5, S = 2, E = 100, ρ = 0.1, the official test set. Inputs are
normalised.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from hubbub_local.demo import DemoOptions
from hubbub_local.experiment import Outcome, run_to_target
from hubbub_trainer.learning.datasets import default_cache_folder
from hubbub_trainer.learning.registry import load_task

ROOT = Path(__file__).parent.parent
TARGET = 0.98
MB = 8 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A configuration, and what the paper prints for it (Table 3a)."""

    strategy: str
    q: int = 1
    feedback: str = "lost"
    paper_rounds: int | None = None
    paper_union: int | None = None
    paper_mb: float | None = None

    @property
    def label(self) -> str:
        """As the table calls it."""
        if self.strategy != "sec-union":
            return self.strategy
        return f"sec-union q={self.q}" + (" to the letter" if self.feedback == "paper" else "")


ROWS = (
    Row(strategy="fedavg", paper_rounds=15, paper_mb=35.31),
    Row(strategy="topbinary-direct", paper_rounds=17, paper_mb=7.23),
    Row(strategy="topbinary-sep", paper_rounds=17, paper_union=18_253, paper_mb=2.05),
    Row(strategy="no-union", paper_rounds=17, paper_mb=10.01),
    Row(strategy="sec-union", feedback="paper", paper_rounds=22, paper_union=14_344, paper_mb=6.25),
    Row(strategy="sec-union"),
    Row(strategy="sec-union", q=5, feedback="paper", paper_rounds=17, paper_union=18_037, paper_mb=15.43),
    Row(strategy="partial-sec-union", paper_rounds=17, paper_union=18_253, paper_mb=10.46),
    Row(strategy="plaintext-union", paper_rounds=17, paper_union=18_253, paper_mb=4.21),
)


def main() -> None:
    """Run every row for every seed, print the table, and save it if asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="0,1", help="comma-separated (default 0,1)")
    parser.add_argument("--max-rounds", type=int, default=20)
    parser.add_argument("--data", default="mnist")
    parser.add_argument("--save", action="store_true", help="write docs/results/<date>-paper.md")
    options = parser.parse_args()
    seeds = [int(seed) for seed in options.seeds.split(",")]
    console = Console()
    outcomes = asyncio.run(_run(seeds, options.max_rounds, options.data, console))
    cells = [_cells(row, outcomes[row]) for row in ROWS]
    _print(cells, seeds, console)
    if options.save:
        path = ROOT / "docs" / "results" / f"{datetime.now(UTC):%Y-%m-%d}-paper.md"
        path.write_text(_markdown(cells, seeds, options.max_rounds), encoding="utf-8")
        console.print(f"Written to {path}")


async def _run(seeds: list[int], rounds: int, data: str, console: Console) -> dict[Row, list[Outcome]]:
    outcomes: dict[Row, list[Outcome]] = {}
    # One task for all: it loads the data once.
    task = load_task("lenet", data=data, cache_folder=default_cache_folder(), announce=console.print)
    for row in ROWS:
        for seed in seeds:
            options = DemoOptions(
                strategy=row.strategy, q=row.q, feedback=row.feedback, rounds=rounds, seed=seed, data=data
            )
            outcome = await run_to_target(options, task, TARGET)
            if outcome.total_bits != outcome.predicted_bits:
                raise SystemExit(f"{row.label}: {outcome.total_bits} bits where {outcome.predicted_bits} are due")
            outcomes.setdefault(row, []).append(outcome)
            console.print(f"{row.label}, seed {seed}: {_rounds(outcome)} rounds, {outcome.accuracy:.2%}")
    return outcomes


def _rounds(outcome: Outcome) -> str:
    return f"{len(outcome.accounts)}" if outcome.reached else f">{len(outcome.accounts)}"


def _cells(row: Row, outcomes: list[Outcome]) -> list[str]:
    union = sum(outcome.mean_union for outcome in outcomes) / len(outcomes)
    return [
        row.label,
        ", ".join(_rounds(outcome) for outcome in outcomes),
        "-" if row.strategy in {"fedavg", "no-union"} else f"{union:,.0f}",
        ", ".join(f"{outcome.total_bits / MB:.2f}" for outcome in outcomes),
        "-" if row.paper_rounds is None else str(row.paper_rounds),
        "-" if row.paper_union is None else f"{row.paper_union:,}",
        "-" if row.paper_mb is None else f"{row.paper_mb:.2f}",
    ]


HEAD = ("strategy", "rounds", "mean |V|", "MB", "paper: rounds", "paper: |V|", "paper: MB")


def _print(cells: list[list[str]], seeds: list[int], console: Console) -> None:
    table = Table(title=f"To 98 % on MNIST, seeds {', '.join(map(str, seeds))}", box=box.SIMPLE_HEAD)
    for position, column in enumerate(HEAD):
        table.add_column(column, justify="right" if position else "left", no_wrap=not position)
    for row in cells:
        table.add_row(*row)
    console.print(table)


def _markdown(cells: list[list[str]], seeds: list[int], rounds: int) -> str:
    command = f'make paper ARGS="--seeds {",".join(map(str, seeds))} --max-rounds {rounds} --save"'
    table = [
        f"| {' | '.join(name.replace('|', chr(92) + '|') for name in HEAD)} |",
        f"| {' | '.join(['---', *['---:'] * (len(HEAD) - 1)])} |",
        *(f"| {' | '.join(row)} |" for row in cells),
    ]
    return f"""# Rounds and bytes to 98 % on MNIST

Made on {datetime.now(UTC):%Y-%m-%d} by `{command}` on {os.cpu_count()} cores, Python {platform.python_version()}.

LeNet, C = 5, S = 2, E = 100, ρ = 0.1, learning rate 0.01, momentum 0.9, batches of 64, inputs normalised; accuracy
on the official test set after each round, through the services. One number a seed. MB = 2^20 bytes of payload, all
parties, both directions, measured; it equals the formulas of the paper's Table 2 to the bit. "To the letter" is
without error feedback for lost indices, as in the paper's Alg. 2. The paper's columns are those of its Table 3a,
where nothing is said about normalising inputs.

{chr(10).join(table)}
"""


if __name__ == "__main__":
    main()
