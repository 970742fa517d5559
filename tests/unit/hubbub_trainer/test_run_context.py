"""A task that its owner changes while a run goes on: the owner is told, and nobody else."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import nn

from hubbub.messages.manifest import Manifest
from hubbub.runtime.runner import Runner
from hubbub.runtime.spool import Spool
from hubbub.store.state_file import Vault
from hubbub.trust.succession import gather
from hubbub_trainer.learning import source
from hubbub_trainer.learning.registry import find_task
from hubbub_trainer.learning.synthetic import SyntheticTask
from hubbub_trainer.learning.task import HasBuffers, Task
from hubbub_trainer.learning.torch_learner import OwnTask
from hubbub_trainer.learning.torch_task import Data, Site, TorchTask
from hubbub_trainer.ledger import Ledger
from hubbub_trainer.run_context import RunContext
from hubbub_trainer.run_secrets import RunSecrets
from hubbub_trainer.saved_model import FILE, KeptModel
from hubbub_trainer.task_runner import TaskRunner
from hubbub_trainer.workspace import Workspace
from support.builders import make_manifest
from support.parties import identity_of
from support.succession import endorse_as

MANIFEST = make_manifest()
RUN = MANIFEST.run_id
TASK = """
import os
from hubbub_trainer.learning.synthetic import SyntheticTask
from rates_of_the_task import RATE

class Other(SyntheticTask):
    name = "other"
    decay = float(os.environ.get("DECAY", "0.5"))

    @property
    def learning_rate(self):
        raise AssertionError("it may load data")

task = Other(30)
"""


class Home:
    """A trainer's folder, and the folder of its owner's task."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.task = folder / "mine.py"
        self.rates = folder / "rates_of_the_task.py"
        self.task.write_text(TASK, encoding="utf-8")
        self.rates.write_text("RATE = 0.1", encoding="utf-8")

    def load(self) -> Task:
        return find_task(str(self.task), data="")

    def start(self, load: Callable[[], Task] | None = None, manifest: Manifest = MANIFEST) -> Workspace:
        """Start the trainer: the task is imported anew, and the run's workspace opened."""
        _forget_imports()
        task, vault = (load or self.load)(), Vault(self.folder / "state.sqlite")
        try:
            run = RunContext(
                manifest=manifest,
                keys=None,
                secrets=RunSecrets(vault, manifest.run_id),
                runs_folder=self.folder / "runs",
                runner=cast("Runner", SimpleNamespace(identity=identity_of(manifest, manifest.clients[0]))),
                spool=cast("Spool", None),
                ledger=cast("Ledger", None),
                tasks=cast("TaskRunner", None),
                load_task=lambda _: task,
            )
            if not run.folder.exists():
                run.begin_with(np.zeros(manifest.parameters, dtype=np.float32))
            return run.open()
        finally:
            vault.close()

    def notes(self) -> list[dict[str, Any]]:
        path = self.folder / "runs" / RUN / "rounds.jsonl"
        return [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.exists() else []


def _forget_imports() -> None:
    for name in [each for each in sys.modules if each.startswith("hubbub_task_") or each == "rates_of_the_task"]:
        del sys.modules[name]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Home]:
    # A file that is changed twice within a second has the same time, by which Python knows its bytecode.
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield Home(tmp_path)
    _forget_imports()


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]


def test_a_changed_file_is_named_once_and_noted_by_round(home: Home, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(3):
        home.start()
    assert (warnings(caplog), home.notes()) == ([], [])
    home.task.write_text(f"{TASK}\n# another learning rate", encoding="utf-8")
    for _ in range(2):
        home.start()
    (told,) = warnings(caplog)
    assert told.endswith(f"which goes on with the task as it is now: {home.task}")
    assert home.notes() == [{"round": 0, "task_changed": [str(home.task)]}]

    notes = home.folder / "runs" / RUN / "rounds.jsonl"
    notes.write_text('{"round": 3, "trouble": ["training"]}\n', encoding="utf-8")
    home.rates.write_text("RATE = 0.01", encoding="utf-8")  # The task imports it.
    home.start()
    _, told = warnings(caplog)
    assert told.endswith(f": {home.rates}")
    assert home.notes() == [{"round": 3, "trouble": ["training"], "task_changed": [str(home.rates)]}]


def test_a_changed_setting_is_named_and_its_value_is_not(
    home: Home, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    home.start()
    monkeypatch.setenv("DECAY", "0.725")
    home.start()

    (told,) = warnings(caplog)
    assert told.endswith(": setting decay")
    assert "0.725" not in told


def test_a_change_that_is_made_while_the_process_runs_is_told_at_the_next_start(
    home: Home, caplog: pytest.LogCaptureFixture
) -> None:
    first = home.load()
    home.task.write_text(f"{TASK}\n# not what runs now", encoding="utf-8")
    home.start(lambda: first)
    assert not warnings(caplog)
    home.start()

    assert len(warnings(caplog)) == 1


def test_a_task_of_hubbubs_own_changes_with_its_version(
    home: Home, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    home.start(lambda: SyntheticTask(30))
    monkeypatch.setattr(source, "__version__", "99.0")
    home.start(lambda: SyntheticTask(30))

    (told,) = warnings(caplog)
    assert told.endswith(": hubbub")


@pytest.mark.parametrize("was_there", [True, False])
def test_an_heir_goes_on_with_its_own_buffers_and_personal_parameters(home: Home, *, was_there: bool) -> None:
    class Headed(TorchTask):
        personal = ("1.*",)

        def model(self) -> nn.Module:
            return nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2))

        def data(self, site: Site) -> Data:
            del site
            rows = torch.zeros(9, 2), torch.zeros(9, dtype=torch.long)
            return Data(train=rows, test=rows)

    task = OwnTask(Headed(), data="")
    before = make_manifest(parameters=9, rho=1.0)
    head = {"1.weight": np.full((2, 3), 5, np.float32), "1.bias": np.ones(2, np.float32)}
    if was_there:
        place = home.folder / "runs" / before.run_id
        place.mkdir(parents=True)
        kept = KeptModel(run=before.run_id, task=task.name, seed=0, theta=np.zeros(9, np.float32), buffers=head)
        (place / FILE).write_bytes(kept.write())
    commitment, predecessor = gather(endorse_as(before, commitment="c" * 64))
    after = make_manifest(parameters=9, rho=1.0, predecessor=predecessor, initial_model_sha256=commitment)

    for _ in range(2):  # Again after a restart.
        space = home.start(lambda: task, after)
        assert isinstance(space.learner, HasBuffers)
        found = space.learner.buffers(space.memory)
        assert all(np.array_equal(found[name], each) for name, each in head.items()) == was_there
