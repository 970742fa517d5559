"""Bring your own model without PyTorch: anything whose parameters are numpy arrays that can be read and written.

    class Hospital(NumpyTask):
        def model(self):
            return make_my_model()

        def data(self, site):
            return Data(train=(inputs, labels), test=(more_inputs, more_labels))

        def get(self, model):
            return [model.weights, model.biases]

        def set(self, model, arrays):
            model.weights, model.biases = arrays

        def fit(self, model, train, how):
            inputs, labels = train
            for rows in how.batches(len(labels), size=16):
                model.step(inputs[rows], labels[rows])

        def evaluate(self, model, test):
            inputs, labels = test
            return score_classes(model.probabilities(inputs), labels)

θ is the arrays of `get`, flattened in their order. Every training and every evaluation works on a fresh copy of
what `model` made, with the shared parameters put in by `set`. So nothing else is kept from round to round: the
state of an optimiser begins afresh.

`model` and `fit` run with the global generators of Python and numpy seeded: from the manifest's public seed, and
from the round's secret one. All clients must make the same initial model, to the bit, on every machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hubbub.errors import ConfigurationError
from hubbub.protocol.metrics import BINARY, CLASSIFICATION, Metric, Scores, bin_probabilities
from hubbub_trainer.learning.batches import order_batches
from hubbub_trainer.learning.own_code import own_code, seeded
from hubbub_trainer.learning.task import (
    ProgressCallback,
    RoundLearner,
    Site,
    TaskFailed,
    Theta,
    Training,
    check_client,
    check_theta,
    count_elements,
    default_name,
)

Array: TypeAlias = NDArray[Any]
Rows: TypeAlias = tuple[Array, ...]
"""Arrays with a row for each sample, such as inputs and labels."""

_LARGEST_LOSS = CLASSIFICATION[1].high
_LEAST_PROBABILITY = 1e-7
_BINS = BINARY[0].bins


@dataclass(frozen=True, slots=True)
class Data:
    """This client's samples; they do not print."""

    train: Rows
    test: Rows | None = None
    """Without test samples nothing is scored: then `metrics` is ()."""

    def __repr__(self) -> str:
        return "<Data>"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Steps, seed and place of a round's training, for `fit`."""

    steps: int
    """The run's number of local steps (the paper's E)."""
    seed: int
    """Decides the order of the batches, and all else that is drawn; of up to 128 bits."""
    number: int
    """The number of the round, from 1; a void round is trained again with the same number."""
    rounds: int
    """The number of rounds of the run, which may end earlier."""

    def batches(self, samples: int, *, size: int) -> Iterator[NDArray[np.int64]]:
        """Yield the row numbers of each step's batch."""
        yield from order_batches(samples, steps=self.steps, batch_size=size, seed=self.seed)


class NumpyTask:
    """Base class of a user's task: all methods up to `evaluate` are required."""

    name: ClassVar[str] = ""
    """The name that manifests carry; by default that of the class in lower case, with hyphens."""
    metrics: tuple[Metric, ...] = CLASSIFICATION
    """The metrics that `evaluate` returns, the headline metric first; () scores nothing."""
    site_data: str = ""
    """The operator's `--data`; set when the task is loaded."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "name" not in vars(cls):
            cls.name = default_name(cls)

    def model(self) -> Any:
        """Make the model, with its initial values."""
        raise NotImplementedError("say in `model` what is to be trained")

    def data(self, site: Site) -> Data:
        """Return this client's data."""
        raise NotImplementedError("say in `data` what to train on: return Data(train=..., test=...)")

    def get(self, model: Any) -> Sequence[Array]:
        """Return the model's parameters, always in the same order."""
        raise NotImplementedError("return the model's parameters in `get`, as a list of numpy arrays")

    def set(self, model: Any, arrays: Sequence[Array]) -> None:
        """Put parameters into the model, in the order of `get`."""
        raise NotImplementedError("put parameters into the model in `set`")

    def fit(self, model: Any, train: Rows, how: Fit) -> None:
        """Train the model in place."""
        raise NotImplementedError("train the model in `fit`")

    def evaluate(self, model: Any, test: Rows) -> Scores:
        """Score the model: for each metric the sum over the samples, and their number."""
        raise NotImplementedError("score the model in `evaluate`, or set `metrics` to ()")

    # The interface of a task ----------------------------------------------------------------------------

    @cached_property
    def layout(self) -> dict[str, tuple[int, ...]]:
        """The arrays that θ is made of, by their place."""
        return {str(place): each.shape for place, each in enumerate(_read(self, self._make(0)))}

    def count_parameters(self) -> int:
        """Return N."""
        return count_elements(self.layout)

    def initial_model(self, seed: int) -> Theta:
        """Make the model that a run starts from."""
        return _flatten(_read(self, self._make(seed)))

    def learner(self, *, index: int, clients: int, seed: int) -> NumpyLearner:
        """Make the learner of one client, with its data and a model."""
        check_client(index, clients)
        model = self._make(seed)
        with own_code("while it got its data"):
            found = self.data(Site(data=self.site_data, index=index, clients=clients, seed=seed))
            if not isinstance(found, Data):
                raise TypeError(f"`data` must return Data(train=..., test=...), not {type(found).__name__}")
            _count(found.train, "train")
            if self.metrics and not (found.test and _count(found.test, "test")):
                raise ConfigurationError(
                    f"task {self.name!r} has no test samples here, so nothing can be scored: give some, or set "
                    "its `metrics` to ()"
                )
        return NumpyLearner(self, model, found)

    def _make(self, seed: int) -> Any:
        with own_code("while it made its model"), seeded(seed):
            return self.model()


def _read(task: NumpyTask, model: Any) -> list[Array]:
    """Return the parameters that `get` gives; raise `ConfigurationError` if they cannot be shared."""
    with own_code("while it gave its parameters"):
        arrays = [np.asarray(each) for each in task.get(model)]
    wrong = {str(each.dtype) for each in arrays if each.dtype.kind != "f"}
    if wrong or not any(each.size for each in arrays):
        found = ", ".join(sorted(wrong)) or "nothing"
        raise ConfigurationError(f"`get` of task {task.name!r} must return arrays of floats, not {found}")
    return arrays


class NumpyLearner(RoundLearner):
    """One client's side of a user's task. It keeps no state: training begins from the model as it was made."""

    def __init__(self, task: NumpyTask, model: Any, data: Data) -> None:
        self._task = task
        self._model = model
        self._data = data
        self._first = _read(task, model)

    @property
    def samples(self) -> int:
        """The number of training samples that this client holds."""
        return len(self._data.train[0])

    @property
    def examples(self) -> int:
        """The number of test samples that this client scores."""
        return len(self._data.test[0]) if self._task.metrics and self._data.test else 0

    def train(
        self, theta: Theta, *, steps: int, seed: int, progress: ProgressCallback, memory: Theta | None = None
    ) -> Training:
        """Let the task train. Only at the beginning and at the end can it be given up."""
        del memory  # There is none.
        number, rounds = self.place or (1, 1)
        progress(0, steps)
        with own_code("in training"), seeded(seed):
            model = self._fill(theta)
            self._task.fit(model, self._data.train, Fit(steps=steps, seed=seed, number=number, rounds=rounds))
            trained = _read(self._task, model)
            if [each.shape for each in trained] != [each.shape for each in self._first]:
                raise TaskFailed("after `fit`, `get` returns arrays of other shapes than the model had at first")
            after = _flatten(trained)
            if not np.isfinite(after).all():
                raise TaskFailed("the model is not finite any more: try a smaller learning rate")
        progress(steps, steps)
        return Training(theta=after, memory=None)

    def evaluate(self, theta: Theta, *, memory: Theta | None = None) -> Scores:
        """Let the task score `theta` on this client's test samples."""
        del memory
        if not self._task.metrics or self._data.test is None:
            return {}
        with own_code("in its evaluation"):
            return self._task.evaluate(self._fill(theta), self._data.test)

    def _fill(self, theta: Theta) -> Any:
        """Return a copy of the model that has these parameters, in the types that it had."""
        check_theta(theta, sum(each.size for each in self._first))
        model, pieces = deepcopy(self._model), np.split(theta, np.cumsum([each.size for each in self._first])[:-1])
        arrays = zip(self._first, pieces, strict=True)
        self._task.set(model, [piece.reshape(first.shape).astype(first.dtype) for first, piece in arrays])
        return model


def _flatten(arrays: Sequence[Array]) -> Theta:
    with np.errstate(over="ignore"):  # What is too large becomes infinite, which is looked for.
        return np.concatenate([each.ravel() for each in arrays]).astype(np.float32)


def _count(rows: Rows, what: str) -> int:
    """Return the number of samples; raise `ValueError` if there are none."""
    lengths = {len(each) for each in rows}
    if len(lengths) != 1 or not all(lengths):
        raise ValueError(f"the arrays of `{what}` must all have a row for each sample, and at least one")
    return lengths.pop()


# Scores -------------------------------------------------------------------------------------------------


def score_classes(probabilities: Array, labels: Array) -> Scores:
    """Score the probabilities of all classes, a row for each sample, for `CLASSIFICATION`."""
    chosen = probabilities[np.arange(len(labels)), labels]
    return _score(probabilities.argmax(axis=1) == labels, chosen)


def score_binary(probabilities: Array, labels: Array) -> Scores:
    """Score the probabilities of class 1, for `BINARY`."""
    positive = labels > 0
    histogram = bin_probabilities(probabilities, positive, _BINS)
    chosen = np.where(positive, probabilities, 1 - probabilities)
    return {"auc": (histogram, len(labels)), **_score((probabilities > 0.5) == positive, chosen)}  # noqa: PLR2004  (A half.)


def _score(right: Array, chosen: Array) -> Scores:
    """Score which samples are right, and the probabilities of the true classes."""
    losses = np.minimum(-np.log(np.maximum(chosen, _LEAST_PROBABILITY)), _LARGEST_LOSS)
    return {"accuracy": (int(right.sum()), len(right)), "loss": (float(losses.sum()), len(right))}


def score_regression(outputs: Array, targets: Array, low: float, high: float) -> Scores:
    """Score predictions of numbers, for `regression(low, high)`; both are cut to the bounds."""
    found, wanted = (np.clip(each.astype(np.float64), low, high) for each in (outputs, targets))
    error, total = float(((found - wanted) ** 2).sum()), len(wanted)
    return {"r2": ((error, float(wanted.sum()), float((wanted**2).sum())), total), "mse": (error, total)}
