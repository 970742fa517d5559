"""The plug-in interface of a learning task, for people who write their own.

The protocol knows a model as θ, one flat float32 vector of fixed length N, and nothing else about it. A
task fills in the rest: how long θ is, what it starts as, and, for each client, a `Learner` that trains
from a given θ on that client's data and scores a θ on that client's slice of the test set. The task declares which
metrics are scored. A client's own scores never leave it: clients add them up by a secure sum.

    theta = task.initial_model(seed=7)                        # every party computes the same bits
    learner = task.learner(index=0, clients=5, seed=7)        # stays with client 0
    training = learner.train(theta, steps=100, seed=..., progress=print)
    update = training.theta - theta                           # what the strategy compresses and shares
    learner.train(..., memory=training.memory)                # the next round goes on with the momentum of this
    learner.evaluate(theta)                                   # {"accuracy": (93.0, 100), "loss": (24.7, 100)}

What a task must keep to:

- `initial_model` gives the same bits at every party, on every machine: its digest is in the manifest.
  Draw from `numpy.random.Generator.random` and scale; do not use a framework's generator, whose bits may
  depend on its build.
- `train` gives the same bits for the same (θ, steps, seed, memory), and for the same place in the run if the
  learner `FollowsRounds`, in any thread of any process on one machine. Learners train at the same time in several
  threads of a process: no global generator, no state shared between learners.
- The memory is passed in and returned: the optimiser's state (momentum) and the model's state that is not shared
  (buffers, personal parameters) arrive as `memory` and leave in `Training.memory`. The learner itself keeps
  nothing. A round may be void, and is then trained again from the same θ and the same memory; only the caller
  knows which rounds count.
- `train` and `evaluate` leave the θ and the memory they are given as they are.
- `evaluate` returns every metric of `metrics` and no other: its sum over the examples, each example's value cut
  to the metric's bounds, and their number. This is checked when a trainer starts. In a run nothing is refused:
  a value that is missing or not finite counts as the worst.
- `examples` never depends on the model: others could choose a model to learn something about the data.
- Heavy libraries are imported when a learner is made, not with the module: other services load tasks to
  read N.
"""

import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Protocol, Self, TypeAlias, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from hubbub.errors import ConfigurationError, DataError, LocalError
from hubbub.protocol.compression import Indices
from hubbub.protocol.metrics import Metric, Scores

Theta: TypeAlias = NDArray[np.float32]
"""The shared model: one flat float32 vector."""

ProgressCallback: TypeAlias = Callable[[int, int], None]
"""Called with (steps done, steps in all) from the training thread, at most about 20 times a round."""

Arrays: TypeAlias = dict[str, NDArray[Any]]
"""A model as named arrays."""

_T = TypeVar("_T")
_REPORTS_PER_ROUND = 20
_ROUNDING = 1e-6
"""Tolerance of a mean outside its bounds, as a fraction of their range."""


class TaskFailed(LocalError):
    """Code of the operator's own failed. Its message may tell of the data, and is in this trainer's log only."""


@dataclass(frozen=True, slots=True, eq=False)
class Training:
    """Result of local training. It tells as much of the data as the update does, so it does not print."""

    theta: Theta
    memory: Theta | None
    """State for the next round, such as momentum: any float32 vector; None if there is nothing to keep."""

    def __repr__(self) -> str:
        memory = "no memory" if self.memory is None else f"a memory of {self.memory.shape}"
        return f"<Training: a model of {self.theta.shape}, {memory}>"


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Location of the data, and the client's place in the cohort."""

    data: str
    """The operator's `--data`: a folder, a file, an address; the task interprets it."""
    index: int
    """The client's number in the cohort, from 0, of `clients`: for examples that deal out one data set."""
    clients: int
    seed: int
    """The manifest's public seed."""


class Learner(Protocol):
    """One client's side of a task: its data and its optimiser, but not the optimiser's memory."""

    @property
    def samples(self) -> int:
        """The number of training samples that this client holds."""

    @property
    def examples(self) -> int:
        """The number of examples that `evaluate` scores; the same for every model."""

    def train(
        self, theta: Theta, *, steps: int, seed: int, progress: ProgressCallback, memory: Theta | None = None
    ) -> Training:
        """Take `steps` optimiser steps from `theta` (the paper's E) and return the new model.

        A task whose learners do something else says so (`HasOwnPace`).
        `seed`, an integer of up to 128 bits, alone decides the order of the batches. `memory` is that of the last
        round that counted; without it the optimiser begins afresh.
        """

    def evaluate(self, theta: Theta, *, memory: Theta | None = None) -> Scores:
        """Score `theta` on this client's slice of the test set: for each metric a sum, and the number of examples.

        `memory` is that of the last round that counted. It may hold the model's state beside θ, such as
        BatchNorm's running means.
        """


@runtime_checkable
class HasBuffers(Protocol):
    """A learner whose model has buffers or personal parameters beside θ, which stay with the client."""

    def buffers(self, memory: Theta | None) -> Mapping[str, NDArray[Any]]:
        """Return them by name, as the memory holds them."""

    def remember(self, buffers: Mapping[str, NDArray[Any]]) -> Theta | None:
        """Return a memory that holds these, and nothing of the optimiser."""


@runtime_checkable
class CanBeTried(Protocol):
    """A learner with a cheaper trial than a step of training and a whole evaluation."""

    def try_out(self, theta: Theta) -> None:
        """Try a little of everything; raise on failure."""


@runtime_checkable
class Adjustable(Protocol):
    """A learner that can train with another learning rate, or move only some coordinates of θ."""

    def adjusted(self, *, learning_rate: float | None, movable: Indices | None) -> Learner:
        """Return a learner on the same data that trains with this rate and moves only these coordinates.

        None stands for the task's own rate, and for all coordinates. If only some move, training leaves the bits
        of the others as they are, and the optimiser begins each round afresh: the memory holds buffers alone.
        """


class AdjustableLearner:
    """Base class that implements `Adjustable` for a learner whose `train` obeys these two attributes."""

    learning_rate: float | None = None
    movable: Indices | None = None

    def adjusted(self, *, learning_rate: float | None, movable: Indices | None) -> Self:
        """Return a learner on the same data that trains with this rate and moves only these coordinates."""
        changed = copy(self)
        changed.learning_rate, changed.movable = learning_rate, movable
        return changed


@runtime_checkable
class FollowsRounds(Protocol):
    """A learner that trains differently as the run goes on, for example by a schedule of learning rates."""

    def in_round(self, number: int, rounds: int) -> Learner:
        """Return a learner on the same data that trains as in round `number`, from 1, of `rounds`.

        Only released rounds count: a void one is trained again with the same number. A run that reaches its target
        has fewer rounds.
        """


class RoundLearner:
    """Base class that implements `FollowsRounds` for a learner whose `train` looks at `place`."""

    place: tuple[int, int] | None = None
    """Numbers of the round and of all rounds; None outside a run."""

    def in_round(self, number: int, rounds: int) -> Self:
        """Return a learner on the same data that trains as in round `number`, from 1, of `rounds`."""
        changed = copy(self)
        changed.place = number, rounds
        return changed


@runtime_checkable
class HasLearningRate(Protocol):
    """A task whose learning rate can be told without its data."""

    # No property: `isinstance` would evaluate it, and it may have to make a model and an optimiser.
    def find_learning_rate(self) -> float:
        """Return the rate of local training, unless a run asks for another."""


@runtime_checkable
class HasOwnPace(Protocol):
    """A task whose learners take no notice of the number of local steps."""

    pace: str
    """Training of a round, for people, such as `one epoch of your client`."""


@runtime_checkable
class HasLayout(Protocol):
    """A task whose θ is made of arrays with names."""

    @property
    def layout(self) -> Mapping[str, tuple[int, ...]]:
        """The parameters that θ is made of, in order."""


@runtime_checkable
class NamesTensors(Protocol):
    """A task whose model is more than θ: it has frozen or personal parameters, or buffers."""

    def name_tensors(self, theta: Theta, *, seed: int, buffers: Mapping[str, NDArray[Any]]) -> Arrays:
        """Return the whole model."""


@runtime_checkable
class HasRanges(Protocol):
    """A task whose numbers are added as they are, by `sum` or `sparse-sum`, and have ranges of their own."""

    @property
    def ranges(self) -> Sequence[float]:
        """The largest magnitude of each number, for manifests that are drawn up for this task."""


class Task(Protocol):
    """A model, its data, its optimiser and its loss, under a name that a manifest can carry."""

    @property
    def name(self) -> str:
        """The name that `load_task` knows it by."""

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """The metrics that `evaluate` scores, the headline metric first; empty if there is nothing to score."""

    def count_parameters(self) -> int:
        """Return N, the length of θ."""

    def initial_model(self, seed: int) -> Theta:
        """Make the model that a run starts from, out of the manifest's public seed."""

    def learner(self, *, index: int, clients: int, seed: int) -> Learner:
        """Make the learner of client `index` (from 0) of `clients`; `seed` is the manifest's public seed.

        Training data are dealt out from the seed, i.i.d. if the task was not told otherwise; of the test set the
        client gets the slice `index`.
        """


def default_name(task: type) -> str:
    """Return the name of a task that has none: that of its class, in lower case and with hyphens."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", task.__name__).lower()


def check_theta(theta: Theta, parameters: int) -> None:
    """Refuse a vector that is not a model of this task."""
    _check_vector("a model of this task", theta, parameters)


def check_memory(memory: Theta | None, parameters: int) -> None:
    """Refuse a memory that is not one value per parameter; None is always valid."""
    if memory is not None:
        _check_vector("the optimiser's memory in this task", memory, parameters)


def _check_vector(what: str, vector: Theta, parameters: int) -> None:
    if vector.dtype != np.float32 or vector.shape != (parameters,):
        raise LocalError(
            f"{what} is a flat float32 vector of {parameters} elements, not {vector.dtype} of shape {vector.shape}"
        )


def check_scores(metrics: Sequence[Metric], scores: Scores) -> None:
    """Raise TaskFailed if an evaluation does not return what its task declares; for the trial at the start only.

    The messages hold no values, which may tell of the data.
    """
    declared = {metric.name for metric in metrics}
    if missing := declared - set(scores):
        raise TaskFailed(f"the evaluation does not return {_list(missing)}, which the task's metrics declare")
    if unknown := set(scores) - declared:
        raise TaskFailed(f"the evaluation returns {_list(unknown)}, which the task's metrics do not declare")
    for metric in metrics:
        _check_sums(metric, *scores[metric.name])


def _list(names: set[str]) -> str:
    return ", ".join(sorted(map(repr, names)))


def _check_sums(metric: Metric, total: float | Sequence[float], weight: float) -> None:
    sums = np.atleast_1d(np.asarray(total, dtype=np.float64))
    if sums.shape != (metric.width,):
        raise TaskFailed(
            f"the evaluation returns {sums.size} sums for {metric.name!r}, which needs {metric.width}"
        )
    if not np.isfinite([*sums, weight]).all():
        raise TaskFailed(f"the evaluation returns something for {metric.name!r} that is not finite")
    if weight <= 0:
        raise TaskFailed(f"the evaluation scores no examples for {metric.name!r}")
    for mean, (low, high) in zip(sums / weight, _bounds(metric), strict=True):
        slack = (high - low) * _ROUNDING
        if not low - slack <= mean <= high + slack:
            raise TaskFailed(
                f"a mean that the evaluation returns for {metric.name!r} is outside its bounds, {low:g} and "
                f"{high:g}: return sums over the examples and their number, and cut each example to the bounds"
            )


def _bounds(metric: Metric) -> list[tuple[float, float]]:
    """Return the bounds of the mean of each of a metric's sums."""
    low, high = metric.low, metric.high
    if metric.kind == "r2":
        return [(0.0, (high - low) ** 2), (low, high), (0.0, max(low**2, high**2))]
    return [(0.0, 1.0) if metric.kind == "auc" else (low, high)] * metric.width


def check_client(index: int, clients: int) -> None:
    """Refuse a client number outside of its cohort."""
    if not 0 <= index < clients:
        raise ConfigurationError(f"there is no client {index} among {clients}: clients count from 0")


def report_progress(batches: Collection[_T], progress: ProgressCallback) -> Iterator[_T]:
    """Yield the batches of a round; report progress after every twentieth part of them, and at the end."""
    steps = len(batches)
    interval = -(-steps // _REPORTS_PER_ROUND)
    for done, batch in enumerate(batches, start=1):
        yield batch
        if done % interval == 0 or done == steps:
            progress(done, steps)


def count_elements(shapes: Mapping[str, tuple[int, ...]]) -> int:
    """Return the number of elements in all arrays of a layout."""
    return sum(map(math.prod, shapes.values()))


def name_tensors(task: Task, theta: Theta, *, seed: int, buffers: Mapping[str, NDArray[Any]]) -> Arrays:
    """Return the whole model of a task by name; θ as one array if the task names nothing."""
    if theta.size != task.count_parameters():
        raise DataError(
            f"the model has {theta.size} parameters, and task {task.name!r} here has {task.count_parameters()}: "
            "export it with the task that it was trained with"
        )
    if isinstance(task, NamesTensors):
        return task.name_tensors(theta, seed=seed, buffers=buffers)
    if not isinstance(task, HasLayout):
        return {"theta": theta}
    shapes = task.layout
    pieces = np.split(theta, np.cumsum([math.prod(shape) for shape in shapes.values()])[:-1])
    return {name: piece.reshape(shape) for (name, shape), piece in zip(shapes.items(), pieces, strict=True)}


def flatten_tensors(task: Task, arrays: Mapping[str, NDArray[Any]]) -> Theta:
    """Return θ out of a whole model by name; raise `DataError` if it is not one of this task."""
    shapes = task.layout if isinstance(task, HasLayout) else {"theta": (task.count_parameters(),)}
    found = {name: arrays[name].shape if name in arrays else None for name in shapes}
    wrong = [name for name, shape in shapes.items() if found[name] != tuple(shape)]
    if wrong:
        raise DataError(
            f"the model's {wrong[0]!r} is {found[wrong[0]] or 'missing'}, and task {task.name!r} here has "
            f"{tuple(shapes[wrong[0]])}"
        )
    return np.concatenate([arrays[name].ravel() for name in shapes]).astype(np.float32)


def require(module: str, *, wanted_by: str, extra: str) -> None:
    """Raise `ConfigurationError`, which names the extra to install, if an optional dependency is missing."""
    if find_spec(module) is None:
        raise ConfigurationError(
            f"{wanted_by} needs {module}, which is not installed here: pip install 'hubbub[{extra}]'"
        )
