"""The demo: a whole federation in this process, shown as it runs."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from socket import socket

from rich.console import Console

from hubbub.errors import ConfigurationError, ProtocolError
from hubbub.messages.manifest import Manifest
from hubbub.strategies.planner import explain_choices
from hubbub.strategies.registry import find_strategy
from hubbub.strategies.shared_mask import ONE_BIT
from hubbub.strategies.unions import REVEALS
from hubbub_cli.formatting import count
from hubbub_local.demo_board import Board
from hubbub_local.demo_folder import HISTORY, MODEL, REPORT, DemoFolder
from hubbub_local.demo_screen import show
from hubbub_local.federation import Federation, Parties, make_parties, start_federation
from hubbub_local.options import DemoOptions, SimulationOptions
from hubbub_local.report import draw_report, draw_rounds, write_report
from hubbub_local.task_wrappers import ContinuedTask
from hubbub_trainer.learning.registry import TASKS_IN_TORCH, Shelf, choose_task, is_place, load_task, try_task
from hubbub_trainer.learning.task import HasOwnPace, Task, require
from hubbub_trainer.planning import draw_up_manifest, find_warning, recommend_for
from hubbub_trainer.run_context import TaskLoader
from hubbub_trainer.saved_model import BEST
from hubbub_trainer.workspace import digest

DASHBOARD_PORT = 8750
NOT_SCORED = "The task has no test samples or no metrics, so nothing is scored."
SKEWED = (
    "Clients' data differ, and models learn more slowly from compressed updates of such data: "
    "--server-momentum 0.5 helps, and so does --strategy secure-fedavg, which sends more."
)
STOPPING = "Ctrl-C stops the run; the rounds that have ended are kept on the screen"
NO_BROWSER = "There is no browser here that can be opened: open the link yourself."
LINGERING = "The dashboard stays up, for more runs too, until you press Ctrl-C."


def draw_up(options: SimulationOptions, task: Task) -> tuple[Manifest, Parties]:
    """Return the demo's manifest, and throw-away identities for all its parties."""
    parties = make_parties(clients=options.clients, servers=options.servers)
    manifest = draw_up_manifest(
        task,
        options,
        roster=parties.roster,
        # In the order of their numbers: the roster's is that of their names.
        clients=[f"client-{number}" for number in range(1, options.clients + 1)],
        aggregators=[f"aggregator-{number}" for number in range(1, options.servers + 1)],
    )
    return manifest, parties


def draw_secret_seed(options: SimulationOptions, task: Task) -> int:
    """Return the seed of the clients' secrets; a run that goes on from a model must not repeat its batches."""
    if isinstance(task, ContinuedTask):
        return int(digest(task.initial_model(options.seed))[:16], 16)
    return options.seed


async def run_demo(options: DemoOptions, console: Console) -> None:
    """Run the demo, show its progress and print its report."""
    if options.port is not None and not options.dashboard:
        raise ConfigurationError("--port says where the dashboard is served; add --dashboard")
    if options.open and not options.dashboard:
        raise ConfigurationError("--open opens the dashboard; add --dashboard")
    if options.json and not options.json.parent.is_dir():
        raise ConfigurationError(f"--json: there is no folder {options.json.parent}")
    if options.resume and not options.out:
        raise ConfigurationError("--resume begins with the model in a folder: name it with --out")
    _check_installed(options)
    announcements: list[str] = []
    task = choose_task(options.task, data=options.data, announce=announcements.append, partition=options.partition)
    load = partial(load_task, data=options.data, announce=announcements.append)
    out = DemoFolder(options.out, task, seed=options.seed, resume=options.resume) if options.out else None
    if out and out.begun:
        task = ContinuedTask(task, out.begun.theta)
        announcements.append(
            f"Begins with the model that run {out.begun.run[:12]} ended with. This is a new run with new parties: "
            "accumulators, optimisers and what clients allow of a model begin afresh."
        )
    if is_place(options.task):
        try_task(task)
    manifest, parties = draw_up(options, task)
    board = Board(manifest, announcements, has_own_pace=isinstance(task, HasOwnPace), footer=STOPPING)
    _introduce(options, task, manifest, console)
    _warn(manifest, console)
    if options.partition != "iid" and find_strategy(manifest.strategy).uses_rho and not manifest.server_momentum:
        console.print(SKEWED, highlight=False, style="yellow")
    async with AsyncExitStack() as stack:
        listener = stack.enter_context(_reserve_port(options.port)) if options.dashboard else None
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="hubbub-demo-"))
        federation = await stack.enter_async_context(
            start_federation(
                manifest,
                parties=parties,
                folder=Path(folder),
                load_task=_share(task, Shelf([task], load) if is_place(options.task) else load),
                demo_seed=draw_secret_seed(options, task),
                observer=board.observe,
                trainer_observer=board.stopwatch.observe,
                progress=board.progress,
            )
        )
        if listener is not None:
            showing = _showing_dashboard(federation, listener, console, options, Path(folder))
            board.footer = await stack.enter_async_context(showing)
        await _run(options, manifest, federation, board, console, out)
        _tell_next(options, console)


def _check_installed(options: DemoOptions) -> None:
    """Raise `ConfigurationError` early if a package is missing; the extra `demo` installs them all."""
    if options.task in TASKS_IN_TORCH:
        require("torch", wanted_by=f"task {options.task}", extra="demo")
    if options.dashboard:
        for module in ("fastapi_offline", "plotly"):
            require(module, wanted_by="the dashboard", extra="demo")


def _share(task: Task, load: TaskLoader) -> TaskLoader:
    """Return a loader that gives all trainers one task object, so that its data are loaded once."""
    return lambda name: task if name == task.name else load(name)


def _reserve_port(port: int | None) -> socket:
    from hubbub_local.serving import reserve_port  # noqa: PLC0415  (Only the dashboard needs FastAPI.)

    return reserve_port(DASHBOARD_PORT if port is None else port)


@asynccontextmanager
async def _showing_dashboard(
    federation: Federation, listener: socket, console: Console, options: DemoOptions, folder: Path
) -> AsyncIterator[str]:
    """Serve the dashboard during the run and after it, also after a failure, until Ctrl-C; yield its link."""
    from hubbub_local.serving import open_dashboard, wait_for_interrupt  # noqa: PLC0415

    async with open_dashboard(federation.coordinator, listener) as dashboard:
        token_file = dashboard.write_token(folder)
        command = f"{_name_program()} run list --url {dashboard.url} --token-file {token_file}"
        console.print(f"Dashboard  {dashboard.link}", highlight=False, markup=False, soft_wrap=True)
        console.print(f"Commands   {command}", highlight=False, markup=False, soft_wrap=True)
        if options.open and not await dashboard.open_browser(folder):
            console.print(NO_BROWSER, highlight=False)
        try:
            yield dashboard.link
        except ProtocolError as error:
            console.print(str(error), style="red", highlight=False, markup=False, soft_wrap=True)
            console.print(LINGERING, highlight=False)
            await wait_for_interrupt()
            raise
        console.print(LINGERING, highlight=False)
        await wait_for_interrupt()


async def _run(
    options: DemoOptions,
    manifest: Manifest,
    federation: Federation,
    board: Board,
    console: Console,
    out: DemoFolder | None,
) -> None:
    try:
        with show(board, console):
            ended = await federation.complete(manifest)
    except asyncio.CancelledError:
        _tell_stopped(board, console, options.out)
        raise
    sha256, alone = federation.model_digest(manifest), federation.alone_shares(manifest)
    wire, drift = federation.wire_by_kind(), federation.measure_drift(manifest)
    times = board.split_times()
    console.print(draw_report(manifest, board.accounts, times, sha256, alone, wire, drift))
    if ended.released < manifest.rounds:
        console.print(f"The run ended early: {ended.reason}.", highlight=False)
    if ended.stalled:
        console.print(f"warning: the run is stalled: {ended.stalled}.", highlight=False, style="yellow")
    report = write_report(manifest, board.accounts, times, sha256, alone, wire, data=options.data)
    report |= {"reason": ended.reason, "stalled": ended.stalled}
    report |= {"models_agree": drift is None, "models_drift": drift}
    if options.json:
        options.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
        console.print(f"Written to {options.json}", highlight=False)
    if out:
        best = federation.best_model(manifest)
        out.save(federation.kept_model(manifest), best, report, board.accounts)
        files = [MODEL, HISTORY, REPORT, *([BEST] if best else [])]
        console.print(f"Saved in {options.out}: {', '.join(files)}", highlight=False, soft_wrap=True)


def _tell_stopped(board: Board, console: Console, out: Path | None) -> None:
    """Print the rounds that have ended, and what Ctrl-C has stopped."""
    manifest = board.manifest
    if board.accounts:
        console.print(draw_rounds(manifest, board.accounts, board.split_times(), {}))
    saved = f", and nothing was saved in {out}" if out else ""
    when = f"in round {board.round} of {manifest.rounds}" if board.round else "before its first round"
    console.print(
        f"The run was stopped {when}, with its {count(len(manifest.clients), 'trainer')}, "
        f"{count(len(manifest.aggregators), 'aggregator')} and coordinator{saved}.",
        highlight=False,
    )


def _name_program() -> str:
    """Return `hubbub`, or where it is if it is not on the path."""
    is_elsewhere = Path(sys.argv[0]).name == "hubbub" and not shutil.which("hubbub")
    return sys.argv[0] if is_elsewhere else "hubbub"


def _tell_next(options: DemoOptions, console: Console) -> None:
    """Print commands to go on with, as they can be typed here."""
    hubbub = _name_program()
    steps = {} if options.dashboard else {"dashboard": f"{hubbub} demo --dashboard --open"}
    if not is_place(options.task):
        steps["your own model"] = f"{hubbub} new FOLDER, and docs/tasks.md"
    steps["processes"] = f"{hubbub} federation new FOLDER, and docs/running.md"
    console.print("\nNext")
    for what, command in steps.items():
        console.print(f"  {what:<16}{command}", highlight=False, markup=False, soft_wrap=True)


def _warn(manifest: Manifest, console: Console) -> None:
    revealed = find_strategy(manifest.strategy).reveals
    if revealed:
        console.print(
            f"{manifest.strategy} is not private: {revealed}. It is here to be compared with.",
            highlight=False,
            style="yellow",
        )
    if manifest.block > 1:
        shown = f"With blocks of {manifest.block} indices clients are shown more: {REVEALS}."
        console.print(shown, highlight=False, style="yellow")
    if not manifest.metrics:
        console.print(NOT_SCORED, highlight=False, style="yellow")
    warning = find_warning(manifest)
    if warning:
        console.print(f"warning: {warning}", highlight=False, style="yellow")
    if manifest.bits == 1:
        console.print(f"{ONE_BIT[0].upper()}{ONE_BIT[1:]}.", highlight=False, style="yellow")


def _introduce(options: DemoOptions, task: Task, manifest: Manifest, console: Console) -> None:
    why = "" if options.strategy else f" (recommended: {recommend_for(task).reason})"
    strategy = find_strategy(manifest.strategy)
    share = f", ρ = {manifest.rho:g}" if strategy.uses_rho else ""
    rate = "" if manifest.learning_rate is None else f", learning rate {manifest.learning_rate:g}"
    if manifest.server_momentum:
        rate += f", server momentum {manifest.server_momentum:g}"
    weights = "" if manifest.weights == "equal" else ", weighted by samples"
    pace = task.pace if isinstance(task, HasOwnPace) else f"{manifest.local_steps} local steps"
    console.print("[bold]Hubbub[/bold]  you hear the crowd, never a voice", highlight=False)
    console.print(
        f"{len(manifest.cohort)} clients, {len(manifest.aggregators)} aggregators and a coordinator in this "
        f"process; strategy {manifest.strategy}{why}, task {manifest.task}, {manifest.parameters:,} parameters, "
        f"{pace} a round{share}{rate}{weights}",
        highlight=False,
        style="dim",
    )
    if chosen := explain_choices(strategy, manifest.protocol_parameters, rho=options.rho, q=options.q):
        console.print(f"{chosen}.", highlight=False, style="dim")
