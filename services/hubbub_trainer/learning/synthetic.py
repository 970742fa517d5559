"""Synthetic task: softmax regression on generated data, of any size, without torch.

It exercises the protocol: it learns visibly in a few rounds, takes milliseconds, and its bits depend on
no library's thread count. The sample of class c is c's prototype plus noise; the noise of a sample is a
window, at an offset of its own, into one long noise vector, so that data cost O(N) memory for any number
of samples.

θ holds the weights, one row of N // 10 features per class, then N mod 10 biases, those of the first
classes: so N can be any number.
"""

from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from hubbub.errors import ConfigurationError, LocalError
from hubbub.protocol.metrics import CLASSIFICATION, Metric, Scores
from hubbub_trainer.learning.batches import order_batches, slice_test_samples
from hubbub_trainer.learning.task import (
    AdjustableLearner,
    ProgressCallback,
    Theta,
    Training,
    check_client,
    check_theta,
    report_progress,
)

Floats = NDArray[np.float32]
Integers = NDArray[np.int64]

# A prime: no chunk, byte or word boundary falls on its end.
DEFAULT_PARAMETERS = 5_003

_CLASSES = 10
_SAMPLES_PER_CLIENT = 512
_TEST_SAMPLES = 1_000
_NOISE_OFFSETS = 4_096
_BATCH_SIZE = 16
_LARGEST_LOSS = CLASSIFICATION[1].high

# A prototype and an initial row of weights are vectors of about this length; noise is longer by a factor
# that grows with the fourth root of the number of features, because what a model has learnt of the noise
# weighs as the square of the noise's length over the square root of that number: so the task is as hard
# at every N. Chosen so that five clients with ρ = 0.1 and ten steps a round climb from 10 % to over 95 %
# in three rounds (N = 5,003).
_PROTOTYPE_LENGTH = 1.0
_NOISE_FACTOR = 0.7
_LEARNING_RATE = 4.0

# Each kind of draw from the public seed is set apart by a number of its own.
_WEIGHTS, _PROTOTYPES, _NOISE, _CLIENT, _TEST = range(5)


def _draw(shape: tuple[int, ...], length: float, *key: int) -> Floats:
    """Draw vectors along the last axis that are about `length` long, uniform in every coordinate."""
    coordinates = np.random.default_rng(key).random(shape, dtype=np.float32)
    # Uniform on [-1, 1) has variance 1/3. Uniform and not normal, because its bits depend on no maths
    # library.
    scale = np.float32(length * np.sqrt(3 / shape[-1]))
    return (coordinates * np.float32(2) - np.float32(1)) * scale


@dataclass(frozen=True, slots=True, eq=False)
class _Samples:
    """Samples in compact form: for each a label, and the offset of its noise in the noise vector."""

    labels: Integers
    offsets: Integers

    @classmethod
    def draw(cls, count: int, *key: int) -> "_Samples":
        generator = np.random.default_rng(key)
        return cls(generator.integers(_CLASSES, size=count), generator.integers(_NOISE_OFFSETS, size=count))

    def pick(self, which: Integers | slice) -> "_Samples":
        return _Samples(self.labels[which], self.offsets[which])


class _World:
    """Generator of the samples, the same at all clients: a prototype per class, and the noise vector."""

    def __init__(self, features: int, seed: int) -> None:
        self._prototypes = _draw((_CLASSES, features), _PROTOTYPE_LENGTH, _PROTOTYPES, seed)
        noise_length = _NOISE_FACTOR * float(np.sqrt(np.sqrt(features)))
        noise_size = _NOISE_OFFSETS + features - 1
        # The whole vector is as much longer than one of its windows as the root of their sizes says.
        noise = _draw((noise_size,), noise_length * float(np.sqrt(noise_size / features)), _NOISE, seed)
        self._windows = sliding_window_view(noise, features)
        # Divided by the mean squared length of a sample, which bounds the curvature.
        self.learning_rate = np.float32(_LEARNING_RATE / (_PROTOTYPE_LENGTH**2 + noise_length**2))

    def features_of(self, samples: _Samples) -> Floats:
        return self._prototypes[samples.labels] + self._windows[samples.offsets]


def _forward(theta: Theta, features: Floats) -> Floats:
    """Return log-probabilities, a row per sample."""
    width = features.shape[1]
    # einsum and not @: a BLAS splits its work over threads, and their number changes the last bits.
    logits = np.einsum("sf,cf->sc", features, theta[: _CLASSES * width].reshape(_CLASSES, width))
    biases = theta[_CLASSES * width :]
    logits[:, : biases.size] += biases
    logits -= logits.max(axis=1, keepdims=True)
    log_probabilities: Floats = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    return log_probabilities


def _descend(theta: Theta, features: Floats, labels: Integers, learning_rate: np.float32) -> None:
    """Take one step of gradient descent on the mean cross-entropy, in place."""
    width = features.shape[1]
    error = np.exp(_forward(theta, features))
    error[np.arange(labels.size), labels] -= 1
    error *= learning_rate / np.float32(labels.size)
    theta[: _CLASSES * width] -= np.einsum("sc,sf->cf", error, features).reshape(-1)
    biases = theta[_CLASSES * width :]
    biases -= error.sum(axis=0)[: biases.size]


class SyntheticLearner(AdjustableLearner):
    """One client's samples of the synthetic task, and plain gradient descent on them."""

    def __init__(self, world: _World, *, parameters: int, training: _Samples, test: _Samples) -> None:
        self._world = world
        self._parameters = parameters
        self._training = training
        self._test = test

    @property
    def samples(self) -> int:
        """The number of training samples that this client holds."""
        return self._training.labels.size

    @property
    def examples(self) -> int:
        """The number of test samples that this client scores."""
        return self._test.labels.size

    def train(
        self, theta: Theta, *, steps: int, seed: int, progress: ProgressCallback, memory: Theta | None = None
    ) -> Training:
        """Take steps of plain gradient descent, which has no memory, batches in the order that `seed` gives."""
        check_theta(theta, self._parameters)
        if memory is not None:
            raise LocalError("plain gradient descent has no memory, and was given another optimiser's: give None")
        order = order_batches(self.samples, steps=steps, batch_size=_BATCH_SIZE, seed=seed)
        rate = self._world.learning_rate if self.learning_rate is None else np.float32(self.learning_rate)
        trained = theta.copy()
        for which in report_progress(order, progress):
            batch = self._training.pick(which)
            _descend(trained, self._world.features_of(batch), batch.labels, rate)
            if self.movable is not None:
                moved = trained[self.movable]
                trained[:] = theta
                trained[self.movable] = moved
        return Training(theta=trained, memory=None)

    def evaluate(self, theta: Theta, *, memory: Theta | None = None) -> Scores:
        """Score `theta` on this client's slice of the test set."""
        del memory  # Only the optimiser's, and a score needs none.
        check_theta(theta, self._parameters)
        total, correct, loss = self.examples, 0, 0.0
        # Batch by batch, so that a large N needs little memory here as well.
        for start in range(0, total, _BATCH_SIZE):
            batch = self._test.pick(slice(start, start + _BATCH_SIZE))
            log_probabilities = _forward(theta, self._world.features_of(batch))
            correct += int(np.count_nonzero(log_probabilities.argmax(axis=1) == batch.labels))
            losses = -log_probabilities[np.arange(batch.labels.size), batch.labels]
            loss += float(np.minimum(losses, _LARGEST_LOSS).sum(dtype=np.float64))
        return {"accuracy": (correct, total), "loss": (loss, total)}


class SyntheticTask:
    """Softmax regression with a given number of parameters on generated data."""

    def __init__(self, parameters: int = DEFAULT_PARAMETERS) -> None:
        if parameters < _CLASSES:
            raise ConfigurationError(
                f"a synthetic task has at least {_CLASSES} parameters, one per class, not {parameters}"
            )
        self._parameters = parameters

    @property
    def name(self) -> str:
        """The name with which the registry makes the same task again."""
        return "synthetic" if self._parameters == DEFAULT_PARAMETERS else f"synthetic:{self._parameters}"

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """Accuracy and cross-entropy."""
        return CLASSIFICATION

    @property
    def layout(self) -> dict[str, tuple[int, ...]]:
        """A row of weights per class, and as many biases as are left."""
        biases = self._parameters % _CLASSES
        weights = {"weights": (_CLASSES, self._parameters // _CLASSES)}
        return {**weights, "biases": (biases,)} if biases else {**weights}

    def count_parameters(self) -> int:
        """Return N."""
        return self._parameters

    def initial_model(self, seed: int) -> Theta:
        """Draw small random weights; biases start at zero."""
        weights = self._parameters - self._parameters % _CLASSES
        theta = np.zeros(self._parameters, dtype=np.float32)
        theta[:weights] = _draw((_CLASSES, weights // _CLASSES), _PROTOTYPE_LENGTH, _WEIGHTS, seed).reshape(-1)
        return theta

    def learner(self, *, index: int, clients: int, seed: int) -> SyntheticLearner:
        """Generate the data of one client; all clients' come from the same prototypes and noise."""
        check_client(index, clients)
        test = _Samples.draw(_TEST_SAMPLES, _TEST, seed)
        return SyntheticLearner(
            _World(self._parameters // _CLASSES, seed),
            parameters=self._parameters,
            training=_Samples.draw(_SAMPLES_PER_CLIENT, _CLIENT, seed, index),
            test=test.pick(slice_test_samples(_TEST_SAMPLES, index=index, clients=clients)),
        )
