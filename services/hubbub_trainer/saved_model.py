"""Saved model of a finished run at a trainer: the model, this client's buffers, and their task and seed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from hubbub.errors import DataError
from hubbub.strategies.base import Theta

FILE = "model.safetensors"
Arrays = Mapping[str, NDArray[Any]]

_THETA, _BUFFER = "theta", "buffer."


@dataclass(frozen=True, slots=True, eq=False)
class KeptModel:
    """A model that a run ended with. It does not print."""

    run: str
    task: str
    seed: int
    """The manifest's: the frozen parts of a model may have been drawn from it."""
    theta: Theta = field(repr=False)
    buffers: Arrays = field(repr=False, default_factory=dict)

    def write(self) -> bytes:
        """Write a safetensors file."""
        arrays = {_THETA: self.theta, **{f"{_BUFFER}{name}": each for name, each in self.buffers.items()}}
        labels = {"run": self.run, "task": self.task, "seed": str(self.seed)}
        # Not ascontiguousarray, which turns a scalar into a vector.
        return save({name: np.asarray(each, order="C") for name, each in arrays.items()}, labels)


def read_kept_model(folder: Path) -> KeptModel:
    """Read the model in a run's folder; raise `ValueError` if its file holds none, `OSError` without a file."""
    try:
        with safe_open(folder / FILE, framework="numpy") as file:
            labels = file.metadata() or {}
            arrays: Arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (No mapping.)
        return KeptModel(
            run=labels["run"],
            task=labels["task"],
            seed=int(labels["seed"]),
            theta=arrays[_THETA],
            buffers={name.removeprefix(_BUFFER): each for name, each in arrays.items() if name != _THETA},
        )
    except (SafetensorError, KeyError, ValueError) as error:
        raise ValueError(f"{folder / FILE} holds no model: {error}") from None


def find_models(folder: Path) -> list[str]:
    """List the runs that left a model in a trainer's folder, the last first."""
    found = [path.parent for path in (folder / "runs").glob(f"*/{FILE}")]
    return [path.name for path in sorted(found, key=lambda path: (path / FILE).stat().st_mtime, reverse=True)]


def choose_model(folder: Path, run: str) -> KeptModel:
    """Read the model of a run, named by the beginning of its id; the only one if nothing is named."""
    there = find_models(folder)
    wanted = [name for name in there if name.startswith(run)]
    if len(wanted) == 1:
        try:
            return read_kept_model(folder / "runs" / wanted[0])
        except (OSError, ValueError) as error:
            raise DataError(str(error)) from None
    if not there:
        raise DataError(
            f"no run has left a model in {folder}: name the folder of a trainer (HUBBUB_TRAINER_FOLDER) whose run "
            "was completed"
        )
    which = ", ".join(name[:12] for name in there)
    problem = f"{len(wanted)} runs begin with {run!r}" if wanted else f"no run begins with {run!r}"
    raise DataError(f"{problem}: there are {which}")
