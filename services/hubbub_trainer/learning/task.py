"""The plug-in interface of a learning task, for people who write their own.

The protocol knows a model as θ, one flat float32 vector of fixed length N, and nothing else about it. A
task fills in the rest: how long θ is, what it starts as, and, for each client, a `Learner` that trains
from a given θ on that client's data and scores a θ on that client's slice of the test set.

    theta = task.initial_model(seed=7)                        # every party computes the same bits
    learner = task.learner(index=0, clients=5, seed=7)        # stays with client 0
    trained = learner.train(theta, steps=100, seed=..., progress=print)
    update = trained - theta                                  # what the strategy compresses and shares

What a task must keep to:

- `initial_model` gives the same bits at every party, on every machine: its digest is in the manifest.
  Draw from `numpy.random.Generator.random` and scale; do not use a framework's generator, whose bits may
  depend on its build.
- `train` gives the same bits for the same (θ, steps, seed) in any thread of any process on one machine.
  Learners train at the same time in several threads of a process: no global generator, no state shared
  between learners.
- `train` starts with a fresh optimiser each time: a round may be void, and is then trained anew from the
  same θ.
- `train` and `evaluate` leave the θ they are given as it is.
- Heavy libraries are imported when a learner is made, not with the module: other services load tasks to
  read N.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hubbub.errors import ConfigurationError, LocalError

Theta: TypeAlias = NDArray[np.float32]
"""The shared model: one flat float32 vector."""

ProgressCallback: TypeAlias = Callable[[int, int], None]
"""Called with (steps done, steps in all) from the training thread, at most about 20 times a round."""

_REPORTS_PER_ROUND = 20


@dataclass(frozen=True, slots=True)
class Score:
    """How a model does on some samples: how many it gets right, of how many, and its mean loss over them."""

    correct: int
    total: int
    loss: float


class Learner(Protocol):
    """One client's side of a task: its data and its optimiser."""

    @property
    def samples(self) -> int:
        """The number of training samples that this client holds."""

    def train(self, theta: Theta, *, steps: int, seed: int, progress: ProgressCallback) -> Theta:
        """Take `steps` optimiser steps from `theta` (the paper's E) and return the new model.

        `seed`, an integer of up to 128 bits, alone decides the order of the batches.
        """

    def evaluate(self, theta: Theta) -> Score:
        """Score `theta` on this client's slice of the test set."""


class Task(Protocol):
    """A model, its data, its optimiser and its loss, under a name that a manifest can carry."""

    @property
    def name(self) -> str:
        """The name that `load_task` knows it by."""

    def count_parameters(self) -> int:
        """Return N, the length of θ."""

    def initial_model(self, seed: int) -> Theta:
        """Make the model that a run starts from, out of the manifest's public seed."""

    def learner(self, *, index: int, clients: int, seed: int) -> Learner:
        """Make the learner of client `index` (from 0) of `clients`; `seed` is the manifest's public seed.

        Training data are dealt out i.i.d. from the seed; of the test set the client gets the slice `index`.
        """


def check_theta(theta: Theta, parameters: int) -> None:
    """Refuse a vector that is not a model of this task."""
    if theta.dtype != np.float32 or theta.shape != (parameters,):
        raise LocalError(
            f"a model of this task is a flat float32 vector of {parameters} elements, "
            f"not {theta.dtype} of shape {theta.shape}"
        )


def check_client(index: int, clients: int) -> None:
    """Refuse a client number outside of its cohort."""
    if not 0 <= index < clients:
        raise ConfigurationError(f"there is no client {index} among {clients}: clients count from 0")


def report_interval_steps(steps: int) -> int:
    """Say after how many steps each to report progress."""
    return max(1, -(-steps // _REPORTS_PER_ROUND))
