"""LeNet's local training in torch. The only module that imports torch.

Three things keep the bits the same in the main thread, in a thread among other trainers and in a process
of its own:

- One torch thread per trainer. The setting is kept per thread, so each call makes it anew.
- No random draws in torch: the order of batches is numpy's, from the round's seed.
- All vectors lie where torch allocated them: it aligns to 64 bytes, numpy to 16, and a kernel may
  choose its order of summation by alignment.
"""

from dataclasses import dataclass
from itertools import accumulate
from math import prod

import numpy as np
import torch
from torch.nn import functional

from hubbub_trainer.learning.batches import order_batches
from hubbub_trainer.learning.idx import Bytes
from hubbub_trainer.learning.lenet import PARAMETERS, SHAPES
from hubbub_trainer.learning.task import (
    ProgressCallback,
    Score,
    Theta,
    Training,
    check_memory,
    check_theta,
    report_interval_steps,
)

# Beguier et al., section 5.2.
_LEARNING_RATE = 0.01
_MOMENTUM = 0.9
_BATCH_SIZE = 64

_EVALUATION_BATCH_SIZE = 500
_ENDS = tuple(accumulate(prod(shape) for shape in SHAPES))


@dataclass(frozen=True, slots=True, eq=False)
class LabelledImages:
    """Images of 28×28 pixels of 8 bits, with their labels."""

    images: Bytes
    labels: Bytes


class _Tensors:
    """The same as what LeNet takes: normalised, in float32, of shape [n, 1, 28, 28]."""

    def __init__(self, samples: LabelledImages, mean: float, deviation: float) -> None:
        # A table of the 256 values that a pixel can have: a quarter of the time that arithmetic on pixels
        # takes.
        normalised = ((np.arange(256) / 255 - mean) / deviation).astype(np.float32)
        self.images = torch.tensor(normalised[samples.images]).unsqueeze(1)
        self.labels = torch.tensor(samples.labels.astype(np.int64))


class LenetLearner:
    """One client's images, and stochastic gradient descent with momentum on them."""

    def __init__(self, *, training: LabelledImages, test: LabelledImages, mean: float, deviation: float) -> None:
        # Images all of one shade have no deviation, and nothing to scale.
        self._training = _Tensors(training, mean, deviation or 1.0)
        self._test = _Tensors(test, mean, deviation or 1.0)

    @property
    def samples(self) -> int:
        """The number of training images that this client holds."""
        return len(self._training.labels)

    def train(
        self, theta: Theta, *, steps: int, seed: int, progress: ProgressCallback, memory: Theta | None = None
    ) -> Training:
        """Take steps of stochastic gradient descent with momentum, batches in the order that `seed` gives.

        The memory is the velocity, one value per parameter; without it the velocity is zero.
        """
        check_theta(theta, PARAMETERS)
        check_memory(memory, PARAMETERS)
        torch.set_num_threads(1)
        order = torch.from_numpy(order_batches(self.samples, steps=steps, batch_size=_BATCH_SIZE, seed=seed))
        flat = torch.tensor(theta)
        parameters = [piece.requires_grad_() for piece in _views(flat)]
        velocity = torch.zeros_like(flat) if memory is None else torch.tensor(memory)
        interval = report_interval_steps(steps)
        for done, which in enumerate(order.unbind(), start=1):
            images, labels = (
                self._training.images.index_select(0, which),
                self._training.labels.index_select(0, which),
            )
            loss = functional.cross_entropy(_forward(parameters, images), labels)
            gradients = torch.autograd.grad(loss, parameters)
            # What torch.optim.SGD computes, on all parameters at once: they are views of `flat`.
            with torch.no_grad():
                velocity.mul_(_MOMENTUM).add_(torch.cat([gradient.reshape(-1) for gradient in gradients]))
                flat.add_(velocity, alpha=-_LEARNING_RATE)
            if done % interval == 0 or done == steps:
                progress(done, steps)
        return Training(theta=flat.numpy().copy(), memory=velocity.numpy().copy())

    def evaluate(self, theta: Theta, *, memory: Theta | None = None) -> Score:
        """Score `theta` on this client's slice of the test set."""
        del memory  # Only the optimiser's, and a score needs none.
        check_theta(theta, PARAMETERS)
        torch.set_num_threads(1)
        total, correct, loss = len(self._test.labels), 0, 0.0
        with torch.inference_mode():
            parameters = _views(torch.tensor(theta))
            for start in range(0, total, _EVALUATION_BATCH_SIZE):
                labels = self._test.labels[start : start + _EVALUATION_BATCH_SIZE]
                logits = _forward(parameters, self._test.images[start : start + _EVALUATION_BATCH_SIZE])
                correct += int((logits.argmax(dim=1) == labels).sum())
                loss += float(functional.cross_entropy(logits, labels, reduction="sum"))
        return Score(correct=correct, total=total, loss=loss / total)


def _views(flat: torch.Tensor) -> list[torch.Tensor]:
    """Return the parameters as views of a flat vector."""
    starts = (0, *_ENDS[:-1])
    return [flat[start:end].view(shape) for start, end, shape in zip(starts, _ENDS, SHAPES, strict=True)]


def _forward(parameters: list[torch.Tensor], images: torch.Tensor) -> torch.Tensor:
    """Compute LeNet's logits (the paper's appendix on architectures)."""
    kernels_1, biases_1, kernels_2, biases_2, *connected = parameters
    # Kernels in channels-last order make convolution and pooling a quarter faster. ReLU after pooling
    # instead of before gives the same values and gradients, because it is monotone, on a quarter of the
    # elements.
    hidden = functional.conv2d(images, kernels_1.to(memory_format=torch.channels_last), biases_1, padding=2)
    hidden = functional.relu(functional.max_pool2d(hidden, 2))
    hidden = functional.conv2d(hidden, kernels_2.to(memory_format=torch.channels_last), biases_2)
    hidden = functional.relu(functional.max_pool2d(hidden, 2)).flatten(1)
    hidden = functional.relu(functional.linear(hidden, connected[0], connected[1]))
    hidden = functional.relu(functional.linear(hidden, connected[2], connected[3]))
    return functional.linear(hidden, connected[4], connected[5])
