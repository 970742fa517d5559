"""Runs a whole federation in this process from Python, and returns its model, history and costs."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from rich.console import Console

from hubbub.errors import ConfigurationError, ProtocolError
from hubbub.messages.manifest import Manifest
from hubbub.runtime.runner import Observer, Transition
from hubbub_cli.formatting import show_bytes, show_metric
from hubbub_cli.suggestions import suggest
from hubbub_coordinator.accounts import Account, account
from hubbub_coordinator.events import CancelRequested
from hubbub_coordinator.phases import round as rounds
from hubbub_coordinator.phases import run as runs
from hubbub_local.demo import NOT_SCORED, draw_secret_seed, draw_up
from hubbub_local.federation import Connect, Parties, describe_end, start_federation
from hubbub_local.options import SimulationOptions
from hubbub_local.task_wrappers import ContinuedTask
from hubbub_trainer.learning.registry import adopt_task, choose_task, is_place, refuse_partition, try_task
from hubbub_trainer.learning.task import Arrays, Task, Theta, check_theta, name_tensors
from hubbub_trainer.saved_model import KeptModel
from hubbub_trainer.task_runner import Progress

if TYPE_CHECKING:
    from hubbub_trainer.learning.torch_learner import StateDict
    from hubbub_trainer.learning.torch_task import TorchTask

T = TypeVar("T")
Report = Callable[[Account], None]
"""Called with each released round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Bytes that all parties of a run have sent."""

    payload_bytes: float
    """Vectors alone, in the bits that their encoding needs."""
    wire_bytes: int
    """The messages that carried them, with headers and seals."""
    bytes_by_kind: Mapping[str, int]
    """All messages, also keys, orders and receipts, by kind."""

    @property
    def all_bytes(self) -> int:
        """Bytes of all messages."""
        return sum(self.bytes_by_kind.values())


@dataclass(frozen=True, kw_only=True)
class Result:
    """Result of a simulated run."""

    manifest: Manifest
    history: tuple[Account, ...]
    """Metrics, members, size of the union and costs of each released round."""
    costs: Costs
    digest: str
    """SHA-256 of the model that all clients ended with, or of the first client's."""
    drift: float | None
    """Largest distance of a client's model from their mean, over its norm; None if they share one."""
    reason: str
    """The reason why the run ended: its rounds, target or patience."""
    stalled: str
    """The reason why it seemed to learn nothing any more, with advice; empty if it did not seem so."""
    task: Task
    kept: KeptModel = field(repr=False)
    best: KeptModel | None = field(repr=False)
    """The model with the best headline metric of the scored rounds, and its `headline`; None without scores."""

    @property
    def model(self) -> Theta:
        """The model that all clients ended with: one flat float32 vector."""
        return self.kept.theta

    @property
    def metrics(self) -> Mapping[str, float]:
        """Metrics of the last round, by name; empty if it was not scored."""
        return self.history[-1].metrics

    @property
    def reached(self) -> bool:
        """True if the last round's headline metric reaches the run's target."""
        return self.manifest.is_on_target(self.metrics)

    def tensors(self, *, best: bool = False) -> Arrays:
        """Return the whole last or best model by name, with frozen parameters, and the first client's buffers."""
        kept = self.best if best else self.kept
        if kept is None:
            raise ConfigurationError("the run was not scored, so there is no best model: take the last")
        return name_tensors(self.task, kept.theta, seed=kept.seed, buffers=kept.buffers)

    def state_dict(self, *, best: bool = False) -> StateDict:
        """Return the whole last or best model for `load_state_dict` of the task's PyTorch module."""
        from hubbub_trainer.learning.torch_learner import make_state_dict  # noqa: PLC0415  (It imports torch.)

        return make_state_dict(self.tensors(best=best))

    def __repr__(self) -> str:
        scores = [f"{name} {show_metric(name, value)}" for name, value in self.metrics.items()]
        run = f"{self.manifest.task}, {self.manifest.strategy}, {len(self.history)} rounds"
        told = ", ".join([run, *scores, *(["stalled"] if self.stalled else [])])
        return f"<Result: {told}; model of {self.model.size:,}, SHA-256 {self.digest[:16]}…>"


def simulate(
    task: str | Path | Task | TorchTask | type[Task | TorchTask],
    *,
    initial_model: Theta | None = None,
    progress: bool | Report = False,
    **options: Any,
) -> Result:
    """Run a federation in this process to its end, and return what came out of it.

    `task` is a name or a place, as for `hubbub demo --task`; or a class or object, of a `TorchTask` or of anything
    that keeps to `hubbub_trainer.learning.task.Task`.

    `options` are the fields of `hubbub_local.options.SimulationOptions`, which are the demo's flags: `clients`,
    `servers`, `strategy`, `rounds`, `local_steps`, `seed`, `data`, `target`, `patience` and more.

    `initial_model` replaces the model that the task begins with, for example by that of an earlier result. It is
    a new run with new parties: accumulators and optimisers begin afresh.

    `progress` prints a line to standard error after each round, or is called with each round's account.

    A run that seems to learn nothing any more is logged as a warning, and `stalled` of the result says why.

    If the task or the run fails, it raises. Where an event loop is running already, as in a notebook, the run has
    a thread of its own, which also calls `progress`.
    """
    chosen, console = _read_options(options), Console(stderr=True, highlight=False)
    shown = _print_rounds(chosen, console) if progress is True else progress or _ignore
    loaded = _load(task, chosen, announce=console.print if progress is True else lambda _line: None)
    if initial_model is not None:
        theta = np.array(initial_model)
        check_theta(theta, loaded.count_parameters())
        loaded = ContinuedTask(loaded, theta)
    return _run_anywhere(run_to_target(chosen, loaded, shown))


async def run_to_target(
    options: SimulationOptions,
    task: Task,
    report: Report = lambda _: None,
    *,
    observer: Observer = lambda _: None,
) -> Result:
    """Run until `options.rounds` are done, or `options.target` or `options.patience` ends the run before.

    A failing task raises: in a real run only its owner is told, but an experiment would give meaningless numbers.
    `report` gets every finished round; if it raises, the run is given up. `observer` gets the coordinator's steps.
    """
    # These are in the manifest, so that no round begins after the one that meets them.
    manifest, parties = draw_up(options, task)
    with tempfile.TemporaryDirectory(prefix="hubbub-experiment-") as folder:
        return await run_in_folder(
            Path(folder),
            manifest,
            parties,
            task,
            report,
            demo_seed=draw_secret_seed(options, task),
            observer=observer,
        )


async def run_in_folder(
    folder: Path,
    manifest: Manifest,
    parties: Parties,
    task: Task,
    report: Report,
    *,
    demo_seed: int,
    observer: Observer,
    progress: Progress = lambda *_: None,
    connect: Connect | None = None,
) -> Result:
    """Run a manifest to its end in a folder, or go on with it there, as `start_federation` can.

    `report` gets the rounds that finished before, too. What `costs.bytes_by_kind` counts is since the last start.
    """
    run = manifest.run_id
    finished: asyncio.Queue[Account | None] = asyncio.Queue()
    history: list[Account] = []

    def watch(moment: Transition) -> None:
        observer(moment)
        if not isinstance(moment.data, rounds.CoordinatorRound) or moment.after is not rounds.State.RELEASED:
            return
        if federation.count_task_failures():
            federation.coordinator.runner.feed_soon(moment.data.run, CancelRequested(at_s=moment.at_s))
        else:
            finished.put_nowait(account(moment.data))

    async with start_federation(
        manifest,
        parties=parties,
        folder=folder,
        load_task=lambda _: task,
        demo_seed=demo_seed,
        connect=connect,
        observer=watch,
        progress=progress,
    ) as federation:
        if run in federation.coordinator.list_runs():
            before = federation.coordinator.find_rounds(run)
            history.extend(account(data) for state, data in before if state is rounds.State.RELEASED)
            for each in history:
                report(each)
        running = asyncio.create_task(federation.run(manifest))
        running.add_done_callback(lambda _: finished.put_nowait(None))
        try:
            while (last := await finished.get()) is not None:
                # A round that ended while the parties were started may be in both.
                if not history or last.round > history[-1].round:
                    history.append(last)
                    report(last)
            state, ended = await running
        finally:
            running.cancel()
        if federation.count_task_failures():
            raise ProtocolError(f"{manifest.strategy} failed: the task failed; the log says how")
        if state is not runs.State.COMPLETED:
            raise ProtocolError(f"{manifest.strategy} {describe_end(state, ended)}")
        return Result(
            manifest=manifest,
            history=tuple(history),
            costs=_add_up(history, federation.wire_by_kind()),
            digest=federation.model_digest(manifest),
            drift=federation.measure_drift(manifest),
            reason=ended.reason,
            stalled=ended.stalled,
            task=task,
            kept=federation.kept_model(manifest),
            best=federation.best_model(manifest),
        )


def _add_up(history: list[Account], by_kind: Mapping[str, int]) -> Costs:
    costs = [cost for each in history for cost in each.costs.values()]
    return Costs(
        payload_bytes=sum(cost.payload_bits for cost in costs) / 8,
        wire_bytes=sum(cost.wire_bytes for cost in costs),
        bytes_by_kind=by_kind,
    )


# Arguments of `simulate` --------------------------------------------------------------------------------


def _read_options(options: Mapping[str, Any]) -> SimulationOptions:
    known = [each.name for each in fields(SimulationOptions)]
    unknown = [name for name in options if name not in known]
    if unknown:
        raise ConfigurationError(
            f"simulate has no option {unknown[0]!r}{suggest(unknown[0], known)}; there are: {', '.join(known)}"
        )
    return SimulationOptions(**options)


def _load(task: object, options: SimulationOptions, announce: Callable[[str], None]) -> Task:
    """Load a task; one that does not come with Hubbub is tried on one batch."""
    if isinstance(task, str | Path):
        loaded = choose_task(str(task), data=options.data, announce=announce, partition=options.partition)
        if not is_place(str(task)):
            return loaded
    else:
        loaded = adopt_task(task, data=options.data)
        refuse_partition(loaded.name, options.partition)
    try_task(loaded)
    if not loaded.metrics:
        announce(NOT_SCORED)
    return loaded


def _ignore(_: Account) -> None:
    """Show no progress."""


def _print_rounds(options: SimulationOptions, console: Console) -> Report:
    """Return a function that prints a line for each round."""
    payload_bits = 0

    def show(last: Account) -> None:
        nonlocal payload_bits
        payload_bits += sum(cost.payload_bits for cost in last.costs.values())
        parts = [f"{name} {show_metric(name, value)}" for name, value in last.metrics.items()]
        members = f"{len(last.members)} of {options.clients} clients"
        line = ", ".join([*parts, members, f"{show_bytes(payload_bits / 8)} of payload so far"])
        console.print(f"round {last.round} of {options.rounds}: {line}", soft_wrap=True)

    return show


# Event loops --------------------------------------------------------------------------------------------


def _run_anywhere(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end; in a thread of its own if an event loop is running in this one."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    begun: list[Callable[[], object]] = []

    async def follow() -> T:
        loop, here = asyncio.get_running_loop(), asyncio.current_task()
        if here is not None:
            begun.append(lambda: loop.call_soon_threadsafe(here.cancel))
        return await work

    with ThreadPoolExecutor(1, thread_name_prefix="simulate") as pool:
        ending = pool.submit(asyncio.run, follow())
        try:
            return ending.result()
        except BaseException:
            # A notebook interrupts the thread that waits; without this the run would go on.
            if not ending.done():
                for cancel in begun:
                    cancel()
            raise
