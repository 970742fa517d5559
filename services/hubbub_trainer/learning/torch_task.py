"""Bring your own model: a PyTorch model and this client's data, as a small class.

    class Hospital(TorchTask):
        def model(self):
            return torch.nn.Linear(30, 2)

        def data(self, site):
            return Data(train=(inputs, labels), test=(more_inputs, more_labels))

Only these two methods are required. The loss, the optimiser and the evaluation have defaults, which depend on the
kind of task in `metrics`: classification by default. The other attributes configure training. The class is the
trainer's operator's own code: the operator says where it is (`--task hospital.py`), and none of it ever comes from
the coordinator.

What is shared, and what is not
    *Parameters that require gradients* are θ, in the order of `model.named_parameters()`: summed, and the same at
    all clients. *Parameters that do not* (the frozen part of a network) are neither trained nor sent: every client
    must make the same ones, from a file or from the seed. *Buffers* (BatchNorm's running means) stay with the
    client: they start as the model makes them, go on from round to round with the optimiser's state, and are in no
    digest. A void round leaves no trace in either. *Personal parameters* are trained, and stay with the client as
    buffers do.

Randomness
    `model` is called with torch's generator set from the manifest's public seed, so that all clients make the same
    initial model. A client whose torch makes another one learns that when it joins. Training, dropout and
    augmentation draw from the round's secret seed. The class need not be thread-safe: calls come one at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset

from hubbub.errors import ConfigurationError
from hubbub.protocol.metrics import (
    BINARY,
    CLASSIFICATION,
    Metric,
    Scores,
    bin_probabilities,
    check_metrics,
    regression,
)
from hubbub_trainer.learning.task import Site, default_name

__all__ = ["Batch", "Data", "Samples", "Site", "TorchTask"]

Batch: TypeAlias = Any
"""Collated samples: mostly a pair of inputs and targets. Only the task looks into it."""
Samples: TypeAlias = tuple[Tensor, ...] | Dataset[Any]
"""Tensors with a row for each sample, which is quick, or any data set with a length."""
Kind: TypeAlias = Literal["classification", "binary", "regression"]

_LARGEST_LOSS = CLASSIFICATION[1].high
_BINS = BINARY[0].bins


@dataclass(frozen=True, slots=True)
class Data:
    """This client's samples; they do not print."""

    train: Samples
    test: Samples | None = None
    """Without test samples nothing is scored. All clients of a run have them, or none has."""

    def __repr__(self) -> str:
        return "<Data>"


class TorchTask:
    """Base class of a user's task: `model` and `data` are required, everything else has a default."""

    name: ClassVar[str] = ""
    """The name that manifests carry; by default that of the class in lower case, with hyphens."""
    metrics: ClassVar[Kind | tuple[Metric, ...]] = "classification"
    """The metrics to score, the headline metric first. They also choose the default loss.

    classification   accuracy and loss; an output for each class, and the number of the class as target
    binary           AUC, accuracy and loss; one output (a logit) or two, and 0 or 1 as target
    regression       R² and mean squared error; one output, and a number within `target_range` as target
    a tuple          metrics of one's own, for an `evaluate` or `evaluate_all` of one's own; () scores nothing
    """
    personal: ClassVar[tuple[str, ...]] = ()
    """Names of parameters that are trained and never shared, or patterns such as `head.*`."""
    target_range: ClassVar[tuple[float, float] | None] = None
    """The lowest and the highest target of a regression. Scores cut targets and outputs to it."""
    batch_size: ClassVar[int] = 32
    evaluation_batch_size: ClassVar[int] = 256
    learning_rate: ClassVar[float] = 0.01
    momentum: ClassVar[float] = 0.9
    """The default optimiser's, as is the learning rate."""
    keep_optimiser: ClassVar[bool] = True
    """Go on with the optimiser's state (momentum) from round to round; if False, each round begins without it.

    In a run that trains only some coordinates, each round begins without it in any case.
    """
    max_gradient_norm: ClassVar[float | None] = None
    """The longest gradient, over all that is trained together; a longer one is cut to this length.

    In a run that trains only some coordinates, it is the gradient on those.
    """
    mixed_precision: ClassVar[bool] = False
    """Compute in bfloat16 where torch thinks it safe; θ stays float32."""
    device: ClassVar[str] = "auto"
    """`cuda`, `cpu`, or `auto`: the GPU where there is one."""
    threads: ClassVar[int] = 1
    """Threads of torch. More may be quicker, and change the last bits of the result."""

    def model(self) -> nn.Module:
        """Make the model, with its initial values."""
        raise NotImplementedError("say in `model` what is to be trained: return a torch.nn.Module")

    def data(self, site: Site) -> Data:
        """Return this client's data."""
        raise NotImplementedError("say in `data` what to train on: return Data(train=..., test=...)")

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the mean loss over a batch: cross-entropy, or for a regression squared error."""
        inputs, targets = batch
        outputs = model(inputs)
        if self.metrics == "binary":
            return _binary_losses(outputs, targets).mean()
        if self.metrics == "regression":
            return functional.mse_loss(_column(outputs).float(), _column(targets).float())
        return functional.cross_entropy(outputs, targets)

    def optimiser(self, parameters: Iterator[nn.Parameter]) -> torch.optim.Optimizer:
        """Make an optimiser: stochastic gradient descent with momentum."""
        return torch.optim.SGD(parameters, lr=self.learning_rate, momentum=self.momentum)

    def schedule(self, number: int, rounds: int) -> float:
        """Return the factor of the learning rate in round `number`, from 1, of `rounds`; a void round has none.

        It scales the rates of all groups of the optimiser, or the rate that the manifest asks for instead.
        """
        del number, rounds
        return 1.0

    def evaluate(self, model: nn.Module, batch: Batch) -> Scores:
        """Score a batch: for each metric the sum over its examples, and their number."""
        inputs, targets = batch
        outputs = model(inputs).float()
        if self.metrics == "binary":
            return _score_binary(outputs, targets)
        if self.metrics == "regression":
            return _score_regression(outputs, targets, find_range(self))
        losses = functional.cross_entropy(outputs, targets, reduction="none")
        return _score_classes(outputs.argmax(dim=1) == targets, losses)

    def evaluate_all(self, model: nn.Module, batches: Iterable[Batch]) -> Scores:
        """Score the whole test set: add up what `evaluate` returns for its batches.

        Override it for a metric that is no sum over examples, such as an F1 score: return its value times a
        weight, and the weight. `batches` can be gone through more than once.
        """
        sums: dict[str, NDArray[np.float64]] = {}
        weights: dict[str, float] = {}
        for batch in batches:
            for name, (some, weight) in self.evaluate(model, batch).items():
                sums[name] = sums.get(name, 0.0) + np.asarray(some, dtype=np.float64)
                weights[name] = weights.get(name, 0.0) + float(weight)
        return {name: (total.tolist(), weights[name]) for name, total in sums.items()}


def _score_classes(right: Tensor, losses: Tensor) -> Scores:
    total = len(right)
    return {"accuracy": (int(right.sum()), total), "loss": (float(losses.clamp(max=_LARGEST_LOSS).sum()), total)}


def _score_binary(outputs: Tensor, targets: Tensor) -> Scores:
    positive, logits = _column(targets) > 0, _logits(outputs)
    histogram = bin_probabilities(torch.sigmoid(logits).cpu().numpy(), positive.cpu().numpy(), _BINS)
    classes = _score_classes((logits > 0) == positive, _binary_losses(outputs, targets))
    return {"auc": (histogram, len(positive)), **classes}


def _score_regression(outputs: Tensor, targets: Tensor, bounds: tuple[float, float]) -> Scores:
    wanted, found = (_column(each).double().clamp(*bounds) for each in (targets, outputs))
    error, total = float(((found - wanted) ** 2).sum()), len(wanted)
    return {"r2": ((error, float(wanted.sum()), float((wanted**2).sum())), total), "mse": (error, total)}


def _binary_losses(outputs: Tensor, targets: Tensor) -> Tensor:
    wanted = _column(targets).float()
    if not ((wanted == 0) | (wanted == 1)).all():
        raise ValueError("the targets of a binary task must be 0 or 1")
    return functional.binary_cross_entropy_with_logits(_logits(outputs).float(), wanted, reduction="none")


def _logits(outputs: Tensor) -> Tensor:
    """Return one logit for each example; the softmax of two is the sigmoid of their difference."""
    columns = outputs.reshape(len(outputs), -1)
    if columns.shape[1] == 2:  # noqa: PLR2004  (An output for each of the two classes.)
        return columns[:, 1] - columns[:, 0]
    return _column(columns)


def _column(values: Tensor) -> Tensor:
    """Return one value for each example, from a vector or a column."""
    columns = values.reshape(len(values), -1)
    if columns.shape[1] != 1:
        raise ValueError(f"there must be one value for each example, not {columns.shape[1]}")
    return columns[:, 0]


def name_of(task: TorchTask) -> str:
    """Return the name of a task that manifests carry."""
    return task.name or default_name(type(task))


def metrics_of(task: TorchTask) -> tuple[Metric, ...]:
    """Return the metrics that a task declares; raise ConfigurationError if it cannot score them."""
    match task.metrics:
        case "classification":
            return CLASSIFICATION
        case "binary":
            return BINARY
        case "regression":
            return regression(*find_range(task))
        case tuple() as own if all(isinstance(each, Metric) for each in own):
            check_metrics(own)
        case _:
            raise ConfigurationError(
                f"`metrics` of task {name_of(task)!r} must be classification, binary, regression or some Metrics"
            )
    if own and not has_own_evaluation(task):
        raise ConfigurationError(
            f"the task {name_of(task)!r} has metrics of its own: write an `evaluate` that returns them, or an "
            "`evaluate_all`"
        )
    return own


def find_range(task: TorchTask) -> tuple[float, float]:
    """Return the bounds of a regression's targets; raise ConfigurationError if there are none."""
    if task.target_range is None:
        raise ConfigurationError(
            f"the task {name_of(task)!r} is a regression: set `target_range` to the lowest and the highest target"
        )
    return task.target_range


def has_own_evaluation(task: TorchTask) -> bool:
    """Return whether a task overrides the evaluation of a batch or of all."""
    return type(task).evaluate is not TorchTask.evaluate or evaluates_at_once(task)


def evaluates_at_once(task: TorchTask) -> bool:
    """Return whether a task overrides `evaluate_all`, and may need the whole test set for it."""
    return type(task).evaluate_all is not TorchTask.evaluate_all
