"""Runs a plan through the services, one run after the other; saves, resumes and reports the results."""

from __future__ import annotations

import asyncio
import signal
from contextlib import closing, nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from rich.console import Console

from hubbub.errors import HubbubError, ProtocolError
from hubbub.runtime.runner import Transition
from hubbub.transport.memory import MemoryBroker
from hubbub_cli.formatting import show_bytes
from hubbub_coordinator.accounts import Account
from hubbub_coordinator.events import Began
from hubbub_coordinator.phases import round as rounds
from hubbub_local.attribution import AttributingLoop, Attribution, MeasuredTask, UncountedMessages
from hubbub_local.demo import draw_up
from hubbub_local.demo_board import Board
from hubbub_local.demo_screen import show
from hubbub_local.experiment import run_in_folder
from hubbub_local.federation import connect_to
from hubbub_local.figures import require_matplotlib
from hubbub_local.kept_run import KeptRun, is_kept, open_kept_run
from hubbub_local.reproduce.plan import METHODS, Method, Plan, Settings
from hubbub_local.reproduce.records import Results, RoundRecord, RunRecord, open_results
from hubbub_local.reproduce.report import REPORT, write_report
from hubbub_trainer.learning.registry import load_task
from hubbub_trainer.learning.task import Task

STOPPING = "Ctrl-C stops here; --resume goes on from here"
UNFINISHED = "unfinished"
"""Folder of the state of runs that are not over."""


def reproduce(
    plan: Plan, *, out: Path, resume: bool, console: Console, task: Task | None = None
) -> list[RunRecord]:
    """Run a plan, save the results in a folder, and return all records there.

    `task` replaces the one that the settings name: tests have a small one.
    """
    require_matplotlib()
    wanted = task or load_task_of(plan.settings, console)
    _check(plan, wanted)
    results = open_results(out, plan.settings, resume=resume)
    try:
        _Runner(plan, wanted, results, out, console).run_all()
    except (HubbubError, KeyboardInterrupt):
        console.print("Cut off; the same command with --resume goes on from here.", highlight=False)
        raise
    finally:
        # Also after Ctrl-C or a failed run: the results so far are worth a look.
        if results.results:
            write_report(results, _list_commands(plan, results), out)
            console.print(f"Report: {out / REPORT}", highlight=False, markup=False, soft_wrap=True)
    wrong = [each for each in results.results if each.payload_bits != each.predicted_bits]
    if wrong:
        # This is a bug, and nobody should have to find it in a table.
        raise ProtocolError(
            "; ".join(
                f"{each.label}: {each.payload_bits} bits were sent where {each.predicted_bits} are due"
                for each in wrong
            )
        )
    return results.results


def _list_commands(plan: Plan, results: Results) -> list[str]:
    """List the commands that ask for what was run and is to be run, each with the methods of the same seeds."""
    wanted = {(each.name, each.seed) for each in results.results}
    wanted |= {(method.name, seed) for method in plan.methods for seed in plan.seeds}
    by_seeds: dict[tuple[int, ...], list[Method]] = {}
    for name, method in METHODS.items():
        if seeds := tuple(sorted(seed for each, seed in wanted if each == name)):
            by_seeds.setdefault(seeds, []).append(method)
    return [replace(plan, methods=methods, seeds=seeds).command for seeds, methods in by_seeds.items()]


def load_task_of(settings: Settings, console: Console) -> Task:
    """Load the network and its data, partitioned as the settings say."""
    return load_task(
        settings.task,
        data=settings.data,
        announce=console.print,
        partition=settings.partition,
    )


def _check(plan: Plan, task: Task) -> None:
    """Raise before anything begins if a setting fits no manifest, or data are missing."""
    for method in plan.methods:
        draw_up(plan.settings.demo_options(method, plan.seeds[0]), task)
    task.learner(index=0, clients=plan.settings.clients, seed=plan.seeds[0])


class _Runner:
    """Runs the plan's runs one after the other, and saves each round."""

    def __init__(self, plan: Plan, task: Task, results: Results, folder: Path, console: Console) -> None:
        self._plan = plan
        self._results = results
        self._folder = folder
        self._console = console
        self._attribution = Attribution()
        self._task = MeasuredTask(task, self._attribution)

    def run_all(self) -> None:
        target = self._plan.settings.target
        for seed in self._plan.seeds:
            for method in self._plan.methods:
                known = self._results.find(method.name, seed)
                if known is not None and known.finished:
                    self._say(f"{known.label}: {known.describe(target)}; kept from before")
                    continue
                self._run_one(method, seed)
        with suppress(OSError):
            # Only if no run in it is unfinished, and if there was one.
            (self._folder / UNFINISHED).rmdir()

    def _run_one(self, method: Method, seed: int) -> None:
        """Begin a run in a folder of its own, or go on with it there; remove the folder when the run is over."""
        options = self._plan.settings.demo_options(method, seed)
        folder = self._folder / UNFINISHED / f"{method.name}-{seed}"
        record = self._results.find(method.name, seed) if is_kept(folder) else None
        with open_kept_run(folder, lambda: draw_up(options, self._task)) as kept:
            try:
                # A new loop for each: what one run leaves behind cannot slow the next.
                with asyncio.Runner(loop_factory=partial(AttributingLoop, self._attribution)) as loop:
                    loop.run(self._run(kept, record or RunRecord(name=method.name, seed=seed)))
            except asyncio.CancelledError:
                raise KeyboardInterrupt from None
            except ProtocolError:
                kept.remove()
                raise
            kept.remove()

    async def _run(self, kept: KeptRun, record: RunRecord) -> None:
        before: tuple[dict[str, float], float] | None = None
        is_whole = False
        if record.by_round:
            self._say(f"{record.label}: goes on after round {len(record.by_round)}")

        def observe(moment: Transition) -> None:
            """Start the clocks with the first round: joining belongs to no round."""
            nonlocal before, is_whole
            board.observe(moment)
            if before is None and isinstance(moment.data, rounds.CoordinatorRound):
                before, is_whole = self._read_clocks(), isinstance(moment.event, Began)

        def keep_round(account: Account) -> None:
            nonlocal before, is_whole, record
            if record.by_round and account.round <= record.by_round[-1].round:
                return
            now = self._read_clocks()
            if before is not None and is_whole:
                spent = {name: value - before[0].get(name, 0.0) for name, value in now[0].items() if name}
                last = RoundRecord.of(account, spent, now[1] - before[1])
            else:
                last = RoundRecord.of(account, {}, None)
            before, is_whole = now, True
            record = replace(record, by_round=(*record.by_round, last))
            self._results.keep(record, self._folder)
            size = show_bytes(record.payload_bits / 8)
            self._say(f"{record.label}, round {last.round}: {100 * last.accuracy:.2f} %, {size} so far")

        loop, me = asyncio.get_running_loop(), asyncio.current_task()
        assert me is not None  # noqa: S101  (A coroutine runs in a task.)
        loop.add_signal_handler(signal.SIGTERM, me.cancel)
        board = Board(kept.manifest, [], title=record.label, footer=STOPPING)
        with (
            show(board, self._console) if self._console.is_terminal else nullcontext(),
            closing(UncountedMessages(kept.messages, self._attribution)) as messages,
        ):
            result = await run_in_folder(
                kept.folder,
                kept.manifest,
                kept.parties,
                self._task,
                keep_round,
                demo_seed=record.seed,
                observer=observe,
                progress=board.progress,
                connect=connect_to(MemoryBroker(messages)),
            )
        record = replace(
            record, finished=True, reached=result.reached, model_sha256=result.digest, drift=result.drift
        )
        self._results.keep(record, self._folder)
        self._say(f"{record.label}: {record.describe(self._plan.settings.target)}")

    def _read_clocks(self) -> tuple[dict[str, float], float]:
        """Return the CPU seconds so far: of each party's protocol, and of all training."""
        return self._attribution.read(), sum(self._task.training_s.values())

    def _say(self, line: str) -> None:
        self._console.print(line, highlight=False, markup=False, soft_wrap=True)
