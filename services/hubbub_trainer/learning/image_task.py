"""Base class of the tasks on images: loads the data once, deals them out, and draws the initial model.

It does not import torch, since other services load tasks to read N. A task's learner imports it.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import ClassVar

import numpy as np

from hubbub.protocol.metrics import CLASSIFICATION, Metric
from hubbub_trainer.learning.batches import HELD_OUT_ONE_IN, Partition, slice_test_samples
from hubbub_trainer.learning.datasets import Choice
from hubbub_trainer.learning.images import Channel, ImageData, LabelledImages
from hubbub_trainer.learning.task import Theta, check_client

Shapes = tuple[tuple[int, ...], ...]
"""Shapes of a network's weights and biases, layer by layer, in the order in which θ holds them."""

# Channels out and in, height, width.
_KERNEL_DIMENSIONS = 4

# Sets the draws of the initial model apart from other draws with the same public seed.
_INITIAL = 0x696E6974


def count_parameters(shapes: Shapes) -> int:
    """Return N."""
    return sum(math.prod(shape) for shape in shapes)


def draw_initial_model(shapes: Shapes, seed: int) -> Theta:
    """Draw weights and biases as PyTorch does by default: uniform in ±1/√(inputs of the layer)."""
    generator = np.random.default_rng([_INITIAL, seed])
    pieces = []
    for weights, biases in zip(shapes[::2], shapes[1::2], strict=True):
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
    shapes: ClassVar[Shapes]
    choice: ClassVar[Choice]
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

    @property
    def layout(self) -> dict[str, tuple[int, ...]]:
        """The parameters that θ is made of, in order, by names that torch's users know."""
        convolutions = sum(len(shape) == _KERNEL_DIMENSIONS for shape in self.shapes)
        connected = len(self.shapes) // 2 - convolutions
        layers = [f"conv{number + 1}" for number in range(convolutions)]
        layers += [f"fc{number + 1}" for number in range(connected)]
        names = [f"{layer}.{kind}" for layer in layers for kind in ("weight", "bias")]
        return dict(zip(names, self.shapes, strict=True))

    def count_parameters(self) -> int:
        """Return the N that the paper gives."""
        return count_parameters(self.shapes)

    def initial_model(self, seed: int) -> Theta:
        """Draw the model that a run starts from."""
        return draw_initial_model(self.shapes, seed)

    def deal(self, *, index: int, clients: int, seed: int) -> Hand:
        """Choose a client's data. The first call loads them, which may take seconds, and may fetch them."""
        check_client(index, clients)
        data, channels = self._load()
        training = self._partition.deal(
            data.train_labels, index=index, clients=clients, seed=seed, held_out_one_in=self.held_out_one_in
        )
        test = slice_test_samples(len(data.test_labels), index=index, clients=clients)
        return Hand(
            training=LabelledImages(data.train_images[training], data.train_labels[training]),
            test=LabelledImages(data.test_images[test], data.test_labels[test]),
            channels=channels,
        )

    def _load(self) -> tuple[ImageData, tuple[Channel, ...]]:
        with self._loading:
            if self._loaded is None:
                data = self.choice.load(self._data, self._cache_folder, self._announce)
                self._loaded = (data, data.measure_channels())
            return self._loaded
