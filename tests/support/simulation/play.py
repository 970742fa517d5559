"""Play a history, and make one that fails as short as it can be."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path

from hubbub.messages.manifest import Manifest, MetricClaim
from hubbub_trainer.learning.task import Task
from hubbub_trainer.workspace import digest
from support.builders import make_manifest
from support.parties import parties_of
from support.simulation.ledger import Ledger
from support.simulation.operations import History
from support.simulation.shortcuts import QuickTask
from support.simulation.world import Plot, World

SEED = 7
PARAMETERS = 12
ROUNDS = 2


TASK = QuickTask(PARAMETERS)


@cache
def _manifest(strategy: str, min_clients: int, wire: str, momentum: float) -> Manifest:
    return make_manifest(
        strategy=strategy,
        wire=wire,
        q=2,
        rho=0.25,
        min_clients=min_clients,
        server_momentum=momentum,
        parameters=PARAMETERS,
        task=TASK.name,
        rounds=ROUNDS,
        seed=SEED,
        initial_model_sha256=digest(TASK.initial_model(SEED)),
        phase_timeout_s=30.0,
        metrics=tuple(MetricClaim.of(metric) for metric in TASK.metrics),
    )


def play(history: History) -> Ledger:
    """Play a history from the first start to the end, and return what was seen and what must not be."""
    momentum = 0.5 if history.seed % 2 == 0 else 0.0
    return play_run(history, _manifest(history.strategy, history.min_clients, history.wire, momentum), TASK)


def play_run(history: History, manifest: Manifest, task: Task, plot: Plot = lambda *_: None) -> Ledger:
    """Play a history of any run; the plot is told of every message, and may make things happen."""
    shared = Path("/dev/shm")  # noqa: S108  (Only a folder of our own in it is used.)
    folder = Path(tempfile.mkdtemp(prefix="hubbub-", dir=shared if shared.is_dir() else None))
    try:
        return World(history, manifest, parties_of(manifest), task, folder, plot).play()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def shorten(history: History) -> History:
    """Leave out every operation without which it fails all the same."""
    shorter = history
    while True:
        tries = [
            replace(shorter, operations=shorter.operations[:place] + shorter.operations[place + 1 :])
            for place in range(len(shorter.operations))
        ]
        found = next((each for each in tries if play(each).violations), None)
        if found is None:
            return shorter
        shorter = found


def explain(history: History) -> str:
    """A failing history as what to paste into a test."""
    short = shorten(history)
    wrong = "\n".join(f"- {each}" for each in play(short).violations)
    return f"seed {history.seed}, of whose {len(history.operations)} operations this is left:\n{wrong}\n{short}"
