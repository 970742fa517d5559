"""LeNet's local training in torch."""

import torch
from torch.nn import functional

from hubbub_trainer.learning.image_task import Hand
from hubbub_trainer.learning.lenet import SHAPES
from hubbub_trainer.learning.network_training import NetworkLearner, Recipe


class LenetLearner(NetworkLearner):
    """One client's images, and stochastic gradient descent with momentum on them."""

    def __init__(self, hand: Hand) -> None:
        super().__init__(_RECIPE, hand)


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


# Beguier et al., section 5.2.
_RECIPE = Recipe(
    shapes=SHAPES,
    forward=_forward,
    learning_rate=0.01,
    momentum=0.9,
    batch_size=64,
    flips=False,
    evaluation_batch_size=500,
)
