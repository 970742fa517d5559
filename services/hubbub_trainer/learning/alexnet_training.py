"""AlexNet's local training in torch, with a faster local response normalisation than torch's."""

import torch
from torch.autograd.function import FunctionCtx, once_differentiable
from torch.nn import functional

from hubbub_trainer.learning.alexnet import SHAPES
from hubbub_trainer.learning.image_task import Hand
from hubbub_trainer.learning.network_training import NetworkLearner, Recipe

# The paper's size = 4, α = 0.001/9, β = 0.75, k = 1, as torch's LocalResponseNorm takes them: the window of a
# channel begins two before it and ends one after it, and α is divided by the window's size.
_BEFORE, _AFTER = 2, 1
_WEIGHT = 0.001 / 9 / (_BEFORE + 1 + _AFTER)
_EXPONENT = 0.75


class AlexnetLearner(NetworkLearner):
    """One client's images, and plain stochastic gradient descent on them."""

    def __init__(self, hand: Hand) -> None:
        super().__init__(_RECIPE, hand)


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


def _forward(parameters: list[torch.Tensor], images: torch.Tensor) -> torch.Tensor:
    """Compute AlexNet's logits (the paper's appendix on architectures)."""
    kernels_1, biases_1, kernels_2, biases_2, *connected = parameters
    # Kernels in channels-last order, and the first ReLU after pooling, for LeNet's reasons.
    hidden = functional.conv2d(images, kernels_1.to(memory_format=torch.channels_last), biases_1, padding=2)
    hidden = normalise(functional.relu(functional.max_pool2d(hidden, 3, stride=2, padding=1)))
    hidden = functional.conv2d(hidden, kernels_2.to(memory_format=torch.channels_last), biases_2, padding=2)
    hidden = normalise(functional.relu(hidden))
    hidden = functional.max_pool2d(hidden, 3, stride=2, padding=1).flatten(1)
    hidden = functional.relu(functional.linear(hidden, connected[0], connected[1]))
    hidden = functional.relu(functional.linear(hidden, connected[2], connected[3]))
    return functional.linear(hidden, connected[4], connected[5])


# Beguier et al., section 5.2.
_RECIPE = Recipe(
    shapes=SHAPES,
    forward=_forward,
    learning_rate=0.1,
    momentum=0.0,
    batch_size=64,
    flips=True,
    evaluation_batch_size=100,
)
