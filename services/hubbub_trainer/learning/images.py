"""Labelled images of ten classes, in pixels of 8 bits, and the built-in data set `digits`.

Grey images are of shape [n, height, width]. Colour images are in planes, red, green and blue, of shape
[n, 3, height, width].

`digits` needs no fetching: 1,797 handwritten digits from scikit-learn's wheel. They are 8×8 pixels of
17 grey levels, scaled here to 28×28 pixels of 8 bits by bilinear interpolation between pixel centres (the border
repeats outwards). Pixel i of 28 has its centre at (4i - 5)/14 of the eight, so the weights are fourteenths and the
result is exact in integers.
"""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hubbub.errors import DataError

Bytes = NDArray[np.uint8]

CLASSES = 10

_GREY_DIMENSIONS = 3
_SIDE_PIXELS = 28
_SMALL_SIDE_PIXELS = 8
_SMALL_WHITE = 16
_WHITE = 255
_WEIGHT_SUM = 14
_TEST_ONE_IN = 5


@dataclass(frozen=True, slots=True, eq=False)
class LabelledImages:
    """Images, grey or in planes, and their labels, which are below 10."""

    images: Bytes
    labels: Bytes

    def pick(self, which: NDArray[np.int64] | NDArray[np.bool_] | slice) -> LabelledImages:
        """Return some of the images."""
        return LabelledImages(self.images[which], self.labels[which])


@dataclass(frozen=True, slots=True)
class Channel:
    """Brightness of one channel's pixels, on a scale of 0 to 1."""

    mean: float
    deviation: float


@dataclass(frozen=True, slots=True, eq=False)
class ImageData:
    """A data set."""

    name: str
    train: LabelledImages
    test: LabelledImages

    def measure_channels(self) -> tuple[Channel, ...]:
        """Return mean and standard deviation of the training set's pixels, for each channel."""
        planes = as_planes(self.train.images)
        return tuple(_measure(planes[:, number]) for number in range(planes.shape[1]))


def as_planes(images: Bytes) -> Bytes:
    """Return images as [n, channels, height, width]; grey ones have one channel."""
    return images[:, np.newaxis] if images.ndim == _GREY_DIMENSIONS else images


def _measure(plane: Bytes) -> Channel:
    histogram = np.zeros(256, dtype=np.int64)
    # In pieces, because bincount makes eight bytes of each pixel.
    for piece in np.array_split(plane, max(1, len(plane) // 1_000)):
        histogram += np.bincount(piece.reshape(-1), minlength=256)
    values: NDArray[np.float64] = np.arange(256) / 255
    mean = float(np.average(values, weights=histogram))
    return Channel(mean, float(np.sqrt(np.average((values - mean) ** 2, weights=histogram))))


def check_labels(labels: Bytes, path: Path) -> None:
    """Refuse classes that do not exist; `path` is named in the error."""
    if labels.max() >= CLASSES:
        raise DataError(f"{path} has the label {labels.max()}: labels go from 0 to {CLASSES - 1}")


def load_digits_images() -> ImageData:
    """Return `digits`; every fifth image belongs to the test set."""
    table = _read_table()
    images = enlarge(table[:, :-1].reshape(-1, _SMALL_SIDE_PIXELS, _SMALL_SIDE_PIXELS))
    digits = LabelledImages(images, table[:, -1].astype(np.uint8))
    test = np.arange(len(images)) % _TEST_ONE_IN == _TEST_ONE_IN - 1
    return ImageData("digits", digits.pick(~test), digits.pick(test))


def enlarge(small: NDArray[np.int64]) -> Bytes:
    """Scale images of 8×8 pixels from 0 to 16 to 28×28 pixels from 0 to 255."""
    # How many fourteenths of each of 8 pixels make up each of 28.
    last = _SMALL_SIDE_PIXELS - 1
    rows = np.arange(_SIDE_PIXELS)
    left, part = np.divmod(np.clip(4 * rows - 5, 0, last * _WEIGHT_SUM), _WEIGHT_SUM)
    weights = np.zeros((_SIDE_PIXELS, _SMALL_SIDE_PIXELS), dtype=np.int64)
    weights[rows, left] += _WEIGHT_SUM - part
    weights[rows, np.minimum(left + 1, last)] += part
    sums = weights @ small @ weights.T
    whole = _WEIGHT_SUM**2 * _SMALL_WHITE
    # Half of the divisor is added to round to nearest.
    return ((sums * _WHITE + whole // 2) // whole).astype(np.uint8)


def _read_table() -> NDArray[np.int64]:
    """Return one row per digit: 64 pixels, then the label."""
    specification = find_spec("sklearn")
    if specification is None or specification.origin is None:
        raise DataError(
            "the data set 'digits' comes with scikit-learn, which is missing: pip install 'hubbub[demo]'"
        )
    path = Path(specification.origin).parent / "datasets" / "data" / "digits.csv.gz"
    if path.is_file():
        # Read directly, because importing the package takes two seconds, in every trainer.
        with gzip.open(path, "rt", encoding="ascii") as file:
            return np.loadtxt(file, delimiter=",").astype(np.int64)
    return _import_table()


def _import_table() -> NDArray[np.int64]:
    """Return the same table from scikit-learn's own function."""
    from sklearn.datasets import load_digits  # noqa: PLC0415  # Slow to import, and rarely needed.

    digits = load_digits()
    return np.column_stack([digits.data, digits.target]).astype(np.int64)
