"""Local training of the paper's networks on images, in torch.

Three things keep the bits the same in the main thread, in a thread among other trainers and in a process
of its own:

- One torch thread per trainer. The setting is kept per thread, so each call makes it anew.
- No random draws in torch: the order of batches and what is flipped are numpy's, from the round's seed.
- All vectors lie where torch allocated them: it aligns to 64 bytes, numpy to 16, and a kernel may
  choose its order of summation by alignment.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import accumulate
from math import prod
from types import MappingProxyType

import numpy as np
import torch
from torch.autograd.function import FunctionCtx, once_differentiable
from torch.nn import functional

from hubbub.errors import LocalError
from hubbub.protocol.compression import Indices
from hubbub.protocol.metrics import CLASSIFICATION, Scores
from hubbub_trainer.learning.batches import order_batches
from hubbub_trainer.learning.images import Channel, LabelledImages, as_planes
from hubbub_trainer.learning.networks import ALEXNET, LENET, AlexnetTask, Hand, LenetTask, Shapes
from hubbub_trainer.learning.task import (
    AdjustableLearner,
    ProgressCallback,
    Theta,
    Training,
    check_memory,
    check_theta,
    count_elements,
    report_progress,
)

# Sets the draws of what is flipped apart from those of the order of batches, which have the same seed.
_FLIPS = 0x666C6970
_LARGEST_LOSS = CLASSIFICATION[1].high

# AlexNet's local response normalisation: the paper's size = 4, α = 0.001/9, β = 0.75, k = 1, as torch's
# LocalResponseNorm takes them. The window of a channel begins two before it and ends one after it, and α is
# divided by the window's size.
_BEFORE, _AFTER = 2, 1
_WEIGHT = 0.001 / 9 / (_BEFORE + 1 + _AFTER)
_EXPONENT = 0.75


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A network and how it is trained."""

    shapes: Shapes
    forward: Callable[[list[torch.Tensor], torch.Tensor], torch.Tensor]
    """Computes logits from parameters of these shapes and a batch of images, [n, channels, height, width]."""
    learning_rate: float
    momentum: float
    batch_size: int
    flips: bool
    """Flip each image of a batch left to right with probability 1/2."""
    evaluation_batch_size: int


class NetworkLearner(AdjustableLearner):
    """One client's images, and stochastic gradient descent on them."""

    def __init__(self, recipe: Recipe, hand: Hand) -> None:
        self._recipe = recipe
        self._parameters = count_elements(recipe.shapes)
        self._training = _Samples(hand.training, hand.channels)
        self._test = _Samples(hand.test, hand.channels)

    @property
    def samples(self) -> int:
        """The number of training images that this client holds."""
        return len(self._training.labels)

    @property
    def examples(self) -> int:
        """The number of test images that this client scores."""
        return len(self._test.labels)

    def train(
        self, theta: Theta, *, steps: int, seed: int, progress: ProgressCallback, memory: Theta | None = None
    ) -> Training:
        """Take steps of stochastic gradient descent, batches in the order that `seed` gives.

        With momentum, the memory is the velocity, one value per parameter; without a memory the velocity is
        zero. Without momentum there is no memory, nor if only some coordinates move.
        """
        recipe = self._recipe
        if self.learning_rate is not None:
            recipe = replace(recipe, learning_rate=self.learning_rate)
        check_theta(theta, self._parameters)
        check_memory(memory, self._parameters)
        if memory is not None and not recipe.momentum:
            raise LocalError(
                "descent without momentum has no memory, and was given another optimiser's: give None"
            )
        torch.set_num_threads(1)
        order = order_batches(self.samples, steps=steps, batch_size=recipe.batch_size, seed=seed)
        flips = draw_flips(order.shape, seed) if recipe.flips else None
        descent = _Descent(recipe, theta, memory, self.movable)
        for step, which in enumerate(report_progress(torch.from_numpy(order).unbind(), progress)):
            images = self._training.images.index_select(0, which)
            if flips is not None:
                images = torch.where(flips[step].view(-1, 1, 1, 1), images.flip(3), images)
            descent.step(images, self._training.labels.index_select(0, which))
        return descent.end()

    def evaluate(self, theta: Theta, *, memory: Theta | None = None) -> Scores:
        """Score `theta` on this client's slice of the test set."""
        del memory  # These networks keep nothing in it that a score depends on.
        check_theta(theta, self._parameters)
        torch.set_num_threads(1)
        total, correct, loss = self.examples, 0, 0.0
        size = self._recipe.evaluation_batch_size
        with torch.inference_mode():
            parameters = _views(torch.tensor(theta), self._recipe.shapes)
            for start in range(0, total, size):
                labels = self._test.labels[start : start + size]
                logits = self._recipe.forward(parameters, self._test.images[start : start + size])
                correct += int((logits.argmax(dim=1) == labels).sum())
                losses = functional.cross_entropy(logits, labels, reduction="none")
                loss += float(losses.clamp(max=_LARGEST_LOSS).sum())
        return {"accuracy": (correct, total), "loss": (loss, total)}


class _Samples:
    """Images as a network takes them: normalised channel by channel, in float32; and their labels."""

    def __init__(self, samples: LabelledImages, channels: tuple[Channel, ...]) -> None:
        planes = as_planes(samples.images)
        self.images = torch.empty(planes.shape)
        into = self.images.numpy()
        for number, channel in enumerate(channels):
            # A table of the 256 values that a pixel can have: a quarter of the time that arithmetic on pixels
            # takes. Images all of one shade have no deviation, and nothing to scale.
            table = (np.arange(256) / 255 - channel.mean) / (channel.deviation or 1.0)
            into[:, number] = table.astype(np.float32)[planes[:, number]]
        self.labels = torch.tensor(samples.labels.astype(np.int64))


class _Descent:
    """Stochastic gradient descent on one flat vector, of which the network's parameters are views.

    If only some coordinates move, they and their velocity are kept in short vectors of their own.
    """

    def __init__(self, recipe: Recipe, theta: Theta, memory: Theta | None, movable: Indices | None) -> None:
        self._recipe = recipe
        self._flat = torch.tensor(theta)
        self._movable = None if movable is None else torch.tensor(movable)
        self._moving = self._flat if self._movable is None else self._flat.index_select(0, self._movable)
        self._parameters = [piece.requires_grad_() for piece in _views(self._flat, recipe.shapes)]
        self._velocity: torch.Tensor | None = None
        if recipe.momentum:
            afresh = memory is None or self._movable is not None
            self._velocity = torch.zeros_like(self._moving) if afresh else torch.tensor(memory)

    def step(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        """Take one step, as torch.optim.SGD does, on all parameters that move at once."""
        loss = functional.cross_entropy(self._recipe.forward(self._parameters, images), labels)
        gradients = torch.autograd.grad(loss, self._parameters)
        with torch.no_grad():
            direction = torch.cat([gradient.reshape(-1) for gradient in gradients])
            if self._movable is not None:
                direction = direction.index_select(0, self._movable)
            if self._velocity is not None:
                direction = self._velocity.mul_(self._recipe.momentum).add_(direction)
            self._moving.add_(direction, alpha=-self._recipe.learning_rate)
            if self._movable is not None:
                self._flat.index_copy_(0, self._movable, self._moving)

    def end(self) -> Training:
        """Return the trained model and the velocity as copies, which numpy owns."""
        memory = None
        if self._velocity is not None and self._movable is None:
            memory = self._velocity.numpy().copy()
        return Training(theta=self._flat.numpy().copy(), memory=memory)


def _views(flat: torch.Tensor, shapes: Shapes) -> list[torch.Tensor]:
    """Return the parameters as views of a flat vector."""
    ends = tuple(accumulate(prod(shape) for shape in shapes.values()))
    starts = (0, *ends[:-1])
    return [flat[start:end].view(shape) for start, end, shape in zip(starts, ends, shapes.values(), strict=True)]


def draw_flips(shape: tuple[int, ...], seed: int) -> torch.Tensor:
    """Return for each image of each batch whether it is flipped."""
    return torch.from_numpy(np.random.default_rng([_FLIPS, seed]).random(shape) < 1 / 2)


def _compute_lenet(parameters: list[torch.Tensor], images: torch.Tensor) -> torch.Tensor:
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


class _Context(FunctionCtx):
    """Context that torch passes from `forward` to `backward`, with a type for `saved_tensors`."""

    saved_tensors: tuple[torch.Tensor, ...]


class _LocalResponseNorm(torch.autograd.Function):
    """Divide each x by s^0.75, where s = 1 + w · (the sum of x² over a window of channels).

    Torch's own pools in three dimensions and raises to powers, which takes a third of AlexNet's training. Sums
    of shifted channels, two square roots, and the gradient written out take a tenth of that.
    """

    @staticmethod
    def forward(context: _Context, x: torch.Tensor) -> torch.Tensor:
        s = _sum_window(x * x, before=_BEFORE, after=_AFTER).mul_(_WEIGHT).add_(1)
        root = s.sqrt()
        scale = (root * root.sqrt()).reciprocal_()
        context.save_for_backward(x, s, scale)
        return x * scale

    @staticmethod
    @once_differentiable
    def backward(context: _Context, gradient: torch.Tensor) -> torch.Tensor:
        """Return g · s^-0.75 - 2 · 0.75 · w · x · (the sum of g · x · s^-1.75 over all windows that x is in)."""
        x, s, scale = context.saved_tensors
        direct = gradient * scale
        # A channel is in the windows of those before it that it comes after, and the other way round.
        through_s = _sum_window((direct * x).div_(s), before=_AFTER, after=_BEFORE)
        return direct.sub_(through_s.mul_(x).mul_(2 * _EXPONENT * _WEIGHT))


def _sum_window(x: torch.Tensor, *, before: int, after: int) -> torch.Tensor:
    """Add to each channel the given numbers of channels before and after it; those outside are zero."""
    total = x.clone()
    for distance in range(1, before + 1):
        total[:, distance:] += x[:, :-distance]
    for distance in range(1, after + 1):
        total[:, :-distance] += x[:, distance:]
    return total


def normalise(x: torch.Tensor) -> torch.Tensor:
    """Normalise local responses over the channels of [n, channels, height, width]."""
    normalised: torch.Tensor = _LocalResponseNorm.apply(x)  # type: ignore[no-untyped-call]  # Torch's.
    return normalised


def _compute_alexnet(parameters: list[torch.Tensor], images: torch.Tensor) -> torch.Tensor:
    """Compute AlexNet's logits (the paper's appendix on architectures)."""
    kernels_1, biases_1, kernels_2, biases_2, *connected = parameters
    # Kernels in channels-last order, and the first ReLU after pooling, as in LeNet.
    hidden = functional.conv2d(images, kernels_1.to(memory_format=torch.channels_last), biases_1, padding=2)
    hidden = normalise(functional.relu(functional.max_pool2d(hidden, 3, stride=2, padding=1)))
    hidden = functional.conv2d(hidden, kernels_2.to(memory_format=torch.channels_last), biases_2, padding=2)
    hidden = normalise(functional.relu(hidden))
    hidden = functional.max_pool2d(hidden, 3, stride=2, padding=1).flatten(1)
    hidden = functional.relu(functional.linear(hidden, connected[0], connected[1]))
    hidden = functional.relu(functional.linear(hidden, connected[2], connected[3]))
    return functional.linear(hidden, connected[4], connected[5])


RECIPES: Mapping[str, Recipe] = MappingProxyType(
    {
        "lenet": Recipe(
            shapes=LENET,
            forward=_compute_lenet,
            learning_rate=LenetTask.learning_rate,
            momentum=0.9,
            batch_size=64,
            flips=False,
            evaluation_batch_size=500,
        ),
        "alexnet": Recipe(
            shapes=ALEXNET,
            forward=_compute_alexnet,
            learning_rate=AlexnetTask.learning_rate,
            momentum=0.0,
            batch_size=64,
            flips=True,
            evaluation_batch_size=100,
        ),
    }
)
"""Hyper-parameters of Beguier et al., section 5.2, by the name of the task."""
