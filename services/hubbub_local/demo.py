"""The demo: a whole federation in this process, shown as it runs."""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from hubbub.errors import ConfigurationError, ProtocolError
from hubbub.ids import PartyId
from hubbub.messages.manifest import Manifest
from hubbub.strategies.registry import find_strategy
from hubbub_coordinator.phases import run as runs
from hubbub_local.board import Board
from hubbub_local.federation import start_federation
from hubbub_local.report import draw_report, write_report
from hubbub_local.screen import show
from hubbub_trainer.learning.datasets import default_cache_folder
from hubbub_trainer.learning.registry import load_task
from hubbub_trainer.learning.task import Task
from hubbub_trainer.planning import draw_up_manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """What `hubbub demo` was asked for."""

    strategy: str = "no-union"
    wire: str = "paper"
    task: str = "lenet"
    data: str = "auto"
    clients: int = 5
    servers: int = 2
    rounds: int = 5
    local_steps: int = 100
    rho: float = 0.1
    q: int = 1
    alpha_rule: str = "norm"
    feedback: str = "lost"
    seed: int = 0
    json: Path | None = None


def draw_up(options: DemoOptions, task: Task) -> Manifest:
    """The demo's manifest: client-1 to client-C, aggregator-1 to aggregator-S."""
    return draw_up_manifest(
        task,
        clients=[PartyId(f"client-{number}") for number in range(1, options.clients + 1)],
        aggregators=[PartyId(f"aggregator-{number}") for number in range(1, options.servers + 1)],
        coordinator=PartyId("coordinator"),
        strategy=options.strategy,
        rho=options.rho,
        local_steps=options.local_steps,
        rounds=options.rounds,
        seed=options.seed,
        wire=options.wire,
        q=options.q,
        alpha_rule=options.alpha_rule,
        feedback=options.feedback,
    )


async def run_demo(options: DemoOptions, console: Console) -> None:
    """Run it, show it, report on it."""
    if options.json and not options.json.parent.is_dir():
        raise ConfigurationError(f"--json: there is no folder {options.json.parent}")
    announcements: list[str] = []
    task = load_task(
        options.task,
        data=options.data,
        cache_folder=default_cache_folder(),
        announce=announcements.append,
    )
    manifest = draw_up(options, task)
    board = Board(manifest, announcements)
    _introduce(manifest, console)
    _warn(manifest, console)
    with tempfile.TemporaryDirectory(prefix="hubbub-demo-") as folder:
        async with start_federation(
            manifest,
            folder=Path(folder),
            load_task=lambda _: task,
            demo_seed=options.seed,
            observer=board.observe,
            progress=board.progress,
        ) as federation:
            with show(board, console):
                state, run = await federation.run(manifest)
            if state is not runs.State.COMPLETED:
                raise ProtocolError(f"the run {state.value}: {run.reason}")
            digests = set(federation.model_digests(manifest).values())
            alone = federation.alone_shares(manifest)
    if len(digests) != 1:
        raise ProtocolError(f"the clients ended with {len(digests)} different models")
    digest = digests.pop()
    console.print(draw_report(manifest, board.accounts, digest, alone))
    if options.json:
        report = write_report(manifest, board.accounts, digest, alone, data=options.data)
        options.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
        console.print(f"Written to {options.json}", highlight=False)


def _warn(manifest: Manifest, console: Console) -> None:
    revealed = find_strategy(manifest.strategy).reveals
    if revealed:
        console.print(
            f"{manifest.strategy} is not private: {revealed}. It is here to be compared with.",
            highlight=False,
            style="yellow",
        )


def _introduce(manifest: Manifest, console: Console) -> None:
    console.print("[bold]Hubbub[/bold]  you hear the crowd, never a voice", highlight=False)
    console.print(
        f"{len(manifest.cohort)} clients, {len(manifest.aggregators)} aggregators and a coordinator in this "
        f"process; strategy {manifest.strategy}, task {manifest.task}, {manifest.parameters:,} parameters, "
        f"{manifest.local_steps} local steps a round, ρ = {manifest.rho:g}",
        highlight=False,
        style="dim",
    )
