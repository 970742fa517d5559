"""The paper's networks as tasks: LeNet on grey images and AlexNet on colour images, trained as in section 5.2.

This module does not import torch, since other services load tasks to read N. `network_training` does, and is
imported when the first learner is made.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from hubbub.protocol.metrics import CLASSIFICATION, Metric
from hubbub_trainer.learning.batches import HELD_OUT_ONE_IN, Partition, slice_test_samples
from hubbub_trainer.learning.datasets import COLOUR, GREY, Choice
from hubbub_trainer.learning.images import Channel, ImageData, LabelledImages
from hubbub_trainer.learning.task import Theta, check_client, count_elements, require

if TYPE_CHECKING:
    from hubbub_trainer.learning.network_training import NetworkLearner

Shapes = Mapping[str, tuple[int, ...]]
"""Shapes of a network's weights and biases by the names that torch's users know, in the order of θ."""

LENET: Shapes = MappingProxyType(
    {
        "conv1.weight": (6, 1, 5, 5),
        "conv1.bias": (6,),
        "conv2.weight": (16, 6, 5, 5),
        "conv2.bias": (16,),
        "fc1.weight": (120, 400),
        "fc1.bias": (120,),
        "fc2.weight": (84, 120),
        "fc2.bias": (84,),
        "fc3.weight": (10, 84),
        "fc3.bias": (10,),
    }
)
"""61,706 parameters."""

ALEXNET: Shapes = MappingProxyType(
    {
        "conv1.weight": (64, 3, 5, 5),
        "conv1.bias": (64,),
        "conv2.weight": (64, 64, 5, 5),
        "conv2.bias": (64,),
        "fc1.weight": (384, 4096),
        "fc1.bias": (384,),
        "fc2.weight": (192, 384),
        "fc2.bias": (192,),
        "fc3.weight": (10, 192),
        "fc3.bias": (10,),
    }
)
"""1,756,426 parameters."""

# Sets the draws of the initial model apart from other draws with the same public seed.
_INITIAL = 0x696E6974


def draw_initial_model(shapes: Shapes, seed: int) -> Theta:
    """Draw weights and biases as PyTorch does by default: uniform in ±1/√(inputs of the layer)."""
    generator = np.random.default_rng([_INITIAL, seed])
    sizes = list(shapes.values())
    pieces = []
    for weights, biases in zip(sizes[::2], sizes[1::2], strict=True):
        uniform = generator.random(math.prod(weights) + math.prod(biases), dtype=np.float32)
        bound = np.float32(1 / math.sqrt(math.prod(weights[1:])))
        pieces.append((uniform * np.float32(2) - np.float32(1)) * bound)
    return np.concatenate(pieces)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Hand:
    """Data of one client; `channels` are those of the whole training set, the same at all clients."""

    training: LabelledImages
    test: LabelledImages
    channels: tuple[Channel, ...]


class ImageTask:
    """A network on one of the image data sets. One object serves all learners of a process, in any thread."""

    name: ClassVar[str]
    layout: ClassVar[Shapes]
    choice: ClassVar[Choice]
    learning_rate: ClassVar[float]
    held_out_one_in: ClassVar[int] = HELD_OUT_ONE_IN
    metrics: ClassVar[tuple[Metric, ...]] = CLASSIFICATION

    def __init__(
        self,
        *,
        data: str,
        cache_folder: Path,
        announce: Callable[[str], None],
        partition: Partition = Partition(),  # noqa: B008  # Frozen: no call can change it for the next.
    ) -> None:
        self.choice.check_name(data)
        self._data = data
        self._cache_folder = cache_folder
        self._announce = announce
        self._partition = partition
        self._loading = Lock()
        self._loaded: tuple[ImageData, tuple[Channel, ...]] | None = None

    def count_parameters(self) -> int:
        """Return the N that the paper gives."""
        return count_elements(self.layout)

    def find_learning_rate(self) -> float:
        """Return the rate that the paper trains with."""
        return self.learning_rate

    def initial_model(self, seed: int) -> Theta:
        """Draw the model that a run starts from."""
        return draw_initial_model(self.layout, seed)

    def learner(self, *, index: int, clients: int, seed: int) -> NetworkLearner:
        """Deal out the client's data, and import torch."""
        require("torch", wanted_by=f"task {self.name}", extra="trainer")
        hand = self.deal(index=index, clients=clients, seed=seed)
        from hubbub_trainer.learning.network_training import RECIPES, NetworkLearner  # noqa: PLC0415  # Torch.

        return NetworkLearner(RECIPES[self.name], hand)

    def deal(self, *, index: int, clients: int, seed: int) -> Hand:
        """Choose a client's data. The first call loads them, which may take seconds, and may fetch them."""
        check_client(index, clients)
        with self._loading:
            if self._loaded is None:
                data = self.choice.load(self._data, self._cache_folder, self._announce)
                self._loaded = (data, data.measure_channels())
            data, channels = self._loaded
        training = self._partition.deal(
            data.train.labels, index=index, clients=clients, seed=seed, held_out_one_in=self.held_out_one_in
        )
        test = slice_test_samples(len(data.test.labels), index=index, clients=clients)
        return Hand(training=data.train.pick(training), test=data.test.pick(test), channels=channels)


class LenetTask(ImageTask):
    """LeNet on MNIST, or on other grey images of 28×28 pixels."""

    name = "lenet"
    layout = LENET
    choice = GREY
    learning_rate = 0.01


class AlexnetTask(ImageTask):
    """AlexNet on CIFAR-10, or on other colour images of 32×32 pixels."""

    name = "alexnet"
    layout = ALEXNET
    choice = COLOUR
    learning_rate = 0.1
    # The paper trains on 40k of CIFAR-10's 50k training images, 8k per client of five (section 5.1).
    held_out_one_in = 5
