"""The paper's LeNet on images of handwritten digits: 61,706 parameters, trained as in section 5.2.

Here is what needs no torch: the layout of θ, the initial model, who has which data. `lenet_training` has
the rest and is imported when the first learner is made.
"""

import math
from collections.abc import Callable
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np

from hubbub_trainer.learning.batches import deal_training_samples, slice_test_samples
from hubbub_trainer.learning.datasets import check_data_name, load_images
from hubbub_trainer.learning.images import ImageData
from hubbub_trainer.learning.task import Theta, check_client

if TYPE_CHECKING:
    from hubbub_trainer.learning.lenet_training import LenetLearner

SHAPES: tuple[tuple[int, ...], ...] = (
    (6, 1, 5, 5),
    (6,),
    (16, 6, 5, 5),
    (16,),
    (120, 400),
    (120,),
    (84, 120),
    (84,),
    (10, 84),
    (10,),
)
"""Weights and biases in the order in which θ holds them: two convolutions, three fully connected layers."""

PARAMETERS = sum(math.prod(shape) for shape in SHAPES)

# Sets the draws of the initial model apart from other draws with the same public seed.
_INITIAL = 0x696E6974


class LenetTask:
    """LeNet on one of the image data sets. One object serves all learners of a process, from any thread."""

    name = "lenet"

    def __init__(self, *, data: str, cache_folder: Path, announce: Callable[[str], None]) -> None:
        check_data_name(data)
        self._data = data
        self._cache_folder = cache_folder
        self._announce = announce
        self._loading = Lock()
        self._loaded: tuple[ImageData, float, float] | None = None

    @property
    def layout(self) -> dict[str, tuple[int, ...]]:
        """The parameters that θ is made of, in order, by the names that torch users know."""
        layers = ("conv1", "conv2", "fc1", "fc2", "fc3")
        names = [f"{layer}.{kind}" for layer in layers for kind in ("weight", "bias")]
        return dict(zip(names, SHAPES, strict=True))

    def count_parameters(self) -> int:
        """Return the N that the paper gives, 61,706."""
        return PARAMETERS

    def initial_model(self, seed: int) -> Theta:
        """Draw weights and biases as PyTorch does by default: uniform in ±1/√(inputs of the layer)."""
        generator = np.random.default_rng([_INITIAL, seed])
        pieces = []
        for weights, biases in zip(SHAPES[::2], SHAPES[1::2], strict=True):
            uniform = generator.random(math.prod(weights) + math.prod(biases), dtype=np.float32)
            bound = np.float32(1 / math.sqrt(math.prod(weights[1:])))
            pieces.append((uniform * np.float32(2) - np.float32(1)) * bound)
        return np.concatenate(pieces)

    def learner(self, *, index: int, clients: int, seed: int) -> "LenetLearner":
        """Load the data if need be (the first call may take seconds, or fetch them), and torch."""
        check_client(index, clients)
        images, mean, deviation = self._load()
        training = deal_training_samples(len(images.train_labels), index=index, clients=clients, seed=seed)
        test = slice_test_samples(len(images.test_labels), index=index, clients=clients)
        from hubbub_trainer.learning.lenet_training import LabelledImages, LenetLearner  # noqa: PLC0415  # Torch.

        return LenetLearner(
            training=LabelledImages(images.train_images[training], images.train_labels[training]),
            test=LabelledImages(images.test_images[test], images.test_labels[test]),
            mean=mean,
            deviation=deviation,
        )

    def _load(self) -> tuple[ImageData, float, float]:
        with self._loading:
            if self._loaded is None:
                images = load_images(self._data, self._cache_folder, self._announce)
                self._loaded = (images, *images.pixel_mean_and_deviation())
            return self._loaded
