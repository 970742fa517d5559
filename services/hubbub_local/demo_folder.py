"""Folder of a demo: the model that it ended with, the best one, the history of its rounds and its report."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from hubbub.disk import replacing
from hubbub.errors import ConfigurationError, DataError
from hubbub.protocol.metrics import is_better
from hubbub_coordinator.accounts import Account
from hubbub_trainer.learning.task import Arrays, Task, Theta, flatten_tensors, name_tensors
from hubbub_trainer.saved_model import BEST, Headline, KeptModel
from hubbub_trainer.workspace import digest

MODEL, HISTORY, REPORT = "model.safetensors", "history.csv", "report.json"
_READABLE = 0o644
"""Mode of the files, less the umask: nothing of a demo is secret."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedModel:
    """A model in a folder, and the run that ended with it."""

    run: str
    theta: Theta


class DemoFolder:
    """The folder of `--out`. With `resume` it holds the model of an earlier demo, which this one begins with.

    Raises `ConfigurationError` if nothing can be written there, if it holds something and `resume` is false, or if
    it holds no model of this task and seed and `resume` is true.
    """

    def __init__(self, folder: Path, task: Task, *, seed: int, resume: bool) -> None:
        self._folder = folder
        self._task = task
        self._seed = seed
        try:
            folder.mkdir(parents=True, exist_ok=True)
            is_empty = not any(folder.iterdir())
        except OSError as error:
            raise ConfigurationError(f"--out: {error.filename} cannot be used: {error.strerror}") from None
        if not os.access(folder, os.W_OK | os.X_OK):
            raise ConfigurationError(f"--out: {folder} cannot be written to: choose a folder of this user's")
        if not is_empty and not resume:
            raise ConfigurationError(
                f"--out: {folder} is not empty: begin with the model there with --resume, or choose another folder"
            )
        self.begun = self._read_model() if resume else None
        """The model that this demo begins with, if it is that of an earlier one."""

    def _read_model(self) -> SavedModel:
        path = self._folder / MODEL
        if not path.exists():
            raise ConfigurationError(f"--resume: {self._folder} holds no {MODEL}: leave --resume out to begin one")
        try:
            with safe_open(path, framework="numpy") as file:
                labels = file.metadata() or {}
                arrays: Arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (No mapping.)
            run, task, seed, sha256 = (labels[each] for each in ("run", "task", "seed", "model_sha256"))
        except (OSError, SafetensorError, KeyError) as error:
            raise ConfigurationError(f"--resume: {path} holds no model of a demo: {error}") from None
        if task != self._task.name:
            raise ConfigurationError(
                f"--resume: {path} is a model of the task {task}, and --task is {self._task.name}: give the same"
            )
        if seed != str(self._seed):
            # The frozen parts of a model and the partition of the data follow from it.
            raise ConfigurationError(f"--resume: {path} was trained with --seed {seed}: give the same")
        try:
            theta = flatten_tensors(self._task, arrays)
        except DataError as error:
            raise ConfigurationError(f"--resume: {path} does not fit the task any more: {error}") from None
        if digest(theta) != sha256:
            raise ConfigurationError(f"--resume: {path} is damaged: its values are not those that were saved")
        return SavedModel(run=run, theta=theta)

    def save(
        self,
        kept: KeptModel,
        best: KeptModel | None,
        report: Mapping[str, object],
        accounts: Sequence[Account],
    ) -> None:
        """Replace model and report, add the rounds to the history, and keep the best model of all."""
        report = {**report, "resumed_from": self.begun and self.begun.run}
        try:
            self._write(REPORT, (json.dumps(report, indent=2) + "\n").encode())
            self._write(HISTORY, self._draw_history(kept.run, accounts).encode())
            if best is not None and self._is_best(best):
                self._write(BEST, self._name(best))
            self._write(MODEL, self._name(kept))
        except OSError as error:
            raise ConfigurationError(f"--out: {self._folder} cannot be written: {error.strerror}") from None

    def _name(self, kept: KeptModel) -> bytes:
        """Write a model by its names."""
        arrays = name_tensors(self._task, kept.theta, seed=kept.seed, buffers=kept.buffers)
        labels = {
            "run": kept.run,
            "task": kept.task,
            "seed": str(kept.seed),
            "model_sha256": digest(kept.theta),
            **(kept.headline.labels() if kept.headline else {}),
        }
        # Not ascontiguousarray, which turns a scalar into a vector.
        return save({name: np.asarray(each, order="C") for name, each in arrays.items()}, labels)

    def _is_best(self, best: KeptModel) -> bool:
        """Return whether a run's best model is better than that of the runs before it in this folder."""
        path = self._folder / BEST
        if best.headline is None or not path.exists():
            return True
        try:
            with safe_open(path, framework="numpy") as file:
                earlier = Headline.from_labels(file.metadata() or {})
        except (OSError, SafetensorError, KeyError, ValueError):
            return True
        if earlier is None or earlier.metric != best.headline.metric:
            return True
        return is_better(self._task.metrics[0], best.headline.value, earlier.value)

    def _draw_history(self, run: str, accounts: Sequence[Account]) -> str:
        path = self._folder / HISTORY
        known: list[dict[str, object]] = []
        if path.exists():
            known.extend(csv.DictReader(path.read_text("utf-8").splitlines()))
        rows = [*known, *(_make_row(run, each) for each in accounts)]
        text = io.StringIO()
        names = dict.fromkeys(name for row in rows for name in row)
        table = csv.DictWriter(text, names, lineterminator="\n")
        table.writeheader()
        table.writerows(rows)
        return text.getvalue()

    def _write(self, name: str, content: bytes) -> None:
        with replacing(self._folder / name, mode=_READABLE) as file:
            file.write(content)


def _make_row(run: str, each: Account) -> dict[str, object]:
    return {
        "run": run[:12],
        "round": each.round,
        "members": len(each.members),
        "union_size": each.union_size,
        "payload_bytes": sum(cost.payload_bits for cost in each.costs.values()) / 8,
        "wire_bytes": sum(cost.wire_bytes for cost in each.costs.values()),
        **each.metrics,
    }
