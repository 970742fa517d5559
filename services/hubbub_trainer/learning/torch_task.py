"""Bring your own model: a PyTorch model and this client's data, as a small class.

    class Hospital(TorchTask):
        def model(self):
            return torch.nn.Linear(30, 2)

        def data(self, site):
            return Data(train=(inputs, labels), test=(more_inputs, more_labels))

Only these two methods must be there. The loss, the optimiser and the evaluation have defaults, for classes; the
attributes say how to train. The class is the trainer's operator's own code: it is found by where the operator says
it is (`--task hospital.py`), and nothing of it ever comes from the coordinator.

What is shared, and what is not
    *Parameters that require gradients* are θ, in the order of `model.named_parameters()`: summed, and the same at
    all clients. *Parameters that do not* (the frozen part of a network) are neither trained nor sent: every client
    must make the same ones, from a file or from the seed. *Buffers* (BatchNorm's running means) stay with the
    client: they start as the model makes them, go on from round to round with the optimiser's state, and are in no
    digest. A round that is void leaves no trace in either.

Randomness
    `model` is called with torch's generator set from the manifest's public seed, so that all clients make the same
    initial model; one whose torch makes another is told so when it joins. Training, dropout and augmentation draw
    from the round's secret seed. The class need not be safe for threads: one thing is asked of it at a time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset

Batch: TypeAlias = Any
"""What the data set gives, collated: mostly a pair of inputs and targets. The task alone looks into it."""
Samples: TypeAlias = tuple[Tensor, ...] | Dataset[Any]
"""Tensors with a row for each sample, which is quick, or any data set with a length."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Where the data is to be had."""

    data: str
    """What the operator gave as `--data`: a folder, a file, an address; whatever the task makes of it."""
    index: int
    """Which client of the cohort this is, from 0, and of how many: for examples that deal out one data set."""
    clients: int
    seed: int
    """The manifest's, which everybody knows."""


@dataclass(frozen=True, slots=True)
class Data:
    """This client's samples; they do not print."""

    train: Samples
    test: Samples

    def __repr__(self) -> str:
        return "<Data>"


@dataclass(frozen=True, slots=True)
class BatchScore:
    """How a model does on a batch: how many it gets right, of how many, and the sum of their losses."""

    correct: int
    total: int
    loss: float


class TorchTask:
    """What a user fills in."""

    name: ClassVar[str] = ""
    """What manifests call it; the name of the class in lower case, with hyphens, if nothing is said."""
    batch_size: ClassVar[int] = 32
    evaluation_batch_size: ClassVar[int] = 256
    learning_rate: ClassVar[float] = 0.01
    momentum: ClassVar[float] = 0.9
    """Of the default optimiser, and so is the learning rate."""
    max_gradient_norm: ClassVar[float | None] = None
    """Gradients that are longer, all parameters together, are cut to this length."""
    mixed_precision: ClassVar[bool] = False
    """Compute in bfloat16 where torch thinks it safe; θ stays float32."""
    device: ClassVar[str] = "auto"
    """`cuda`, `cpu`, or `auto`: the GPU where there is one."""
    threads: ClassVar[int] = 1
    """Of torch. More may be quicker, and change the last bits of what is learnt."""

    def model(self) -> nn.Module:
        """Make the model, with its initial values."""
        raise NotImplementedError("say in `model` what is to be trained: return a torch.nn.Module")

    def data(self, site: Site) -> Data:
        """Get this client's data."""
        raise NotImplementedError("say in `data` what to train on: return Data(train=..., test=...)")

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """The mean loss over a batch: cross-entropy of classes."""
        inputs, targets = batch
        return functional.cross_entropy(model(inputs), targets)

    def optimiser(self, parameters: Iterator[nn.Parameter]) -> torch.optim.Optimizer:
        """Make an optimiser: stochastic gradient descent with momentum."""
        return torch.optim.SGD(parameters, lr=self.learning_rate, momentum=self.momentum)

    def evaluate(self, model: nn.Module, batch: Batch) -> BatchScore:
        """Score a batch: the most likely class counts as the answer."""
        inputs, targets = batch
        outputs = model(inputs)
        right = int((outputs.argmax(dim=1) == targets).sum())
        return BatchScore(right, len(targets), float(functional.cross_entropy(outputs, targets, reduction="sum")))


def name_of(task: TorchTask) -> str:
    """What manifests call a task."""
    return task.name or re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", type(task).__name__).lower()
