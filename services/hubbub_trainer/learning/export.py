"""Export of a trained model: named arrays, or a torch state_dict, which other programs read without Hubbub.

The state_dict has no code in it.
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from hubbub.errors import DataError
from hubbub_trainer.learning.task import Task, Theta

Arrays = dict[str, NDArray[Any]]


@runtime_checkable
class HasLayout(Protocol):
    """A task whose θ is made of arrays with names."""

    @property
    def layout(self) -> Mapping[str, tuple[int, ...]]:
        """The parameters that θ is made of, in order."""


@runtime_checkable
class NamesTensors(Protocol):
    """A task whose model is more than θ: it has frozen parameters or buffers."""

    def name_tensors(self, theta: Theta, *, seed: int, buffers: Mapping[str, NDArray[Any]]) -> Arrays:
        """Return the whole model."""


def name_tensors(task: Task, theta: Theta, *, seed: int, buffers: Mapping[str, NDArray[Any]]) -> Arrays:
    """Return the whole model of a task by name; θ as one array if the task names nothing."""
    if theta.size != task.count_parameters():
        raise DataError(
            f"the model has {theta.size} parameters, and task {task.name!r} here has {task.count_parameters()}: "
            "export it with the task that it was trained with"
        )
    if isinstance(task, NamesTensors):
        return task.name_tensors(theta, seed=seed, buffers=buffers)
    if isinstance(task, HasLayout):
        return split(theta, task.layout)
    return {"theta": theta}


def split(theta: Theta, shapes: Mapping[str, tuple[int, ...]]) -> Arrays:
    """Cut θ into the arrays that it is made of."""
    ends = np.cumsum([math.prod(shape) for shape in shapes.values()])
    pieces = np.split(theta, ends[:-1])
    return {name: piece.reshape(shape) for (name, shape), piece in zip(shapes.items(), pieces, strict=True)}


def write_state_dict(arrays: Arrays) -> bytes:
    """Write a state_dict for `torch.load(file, weights_only=True)`."""
    import torch  # noqa: PLC0415  (Naming arrays should not wait for it.)

    content = io.BytesIO()
    torch.save({name: torch.tensor(each) for name, each in arrays.items()}, content)
    return content.getvalue()
