"""A trained model under the names that other programs know: readable without Hubbub.

A model as torch's own file: a state_dict, without code in it.
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
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
    """A task whose model is more than θ: what is frozen, and buffers."""

    def name_tensors(self, theta: Theta, *, seed: int, buffers: Mapping[str, NDArray[Any]]) -> Arrays:
        """The whole model."""


def name_tensors(task: Task, theta: Theta, *, seed: int, buffers: Mapping[str, NDArray[Any]]) -> Arrays:
    """The whole model of a task; where the task names nothing, θ as it is."""
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
    """For `torch.load(file, weights_only=True)`."""
    content = io.BytesIO()
    torch.save({name: torch.tensor(each) for name, each in arrays.items()}, content)
    return content.getvalue()
