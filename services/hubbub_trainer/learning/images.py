"""Labelled images of ten classes, in pixels of 8 bits: the form of all image data sets here.

Grey images are of shape [n, height, width], as MNIST's four IDX files hold them. Colour images have their
planes apart, red, green and blue: [n, 3, height, width].

The data set `digits` needs no fetching: 1,797 handwritten digits from scikit-learn's wheel. They are 8×8 pixels of
17 grey levels, scaled here to 28×28 pixels of 8 bits by bilinear interpolation between pixel centres (the border
repeats outwards). Pixel i of 28 has its centre at (4i - 5)/14 of the eight, so the weights are fourteenths and all
is computed in integers, exactly.
"""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hubbub.errors import DataError
from hubbub_trainer.learning.idx import Bytes, parse_idx, read_bytes

SIDE_PIXELS = 28
CLASSES = 10

TRAIN_IMAGES = "train-images-idx3-ubyte"
TRAIN_LABELS = "train-labels-idx1-ubyte"
TEST_IMAGES = "t10k-images-idx3-ubyte"
TEST_LABELS = "t10k-labels-idx1-ubyte"
FILE_NAMES = (TRAIN_IMAGES, TRAIN_LABELS, TEST_IMAGES, TEST_LABELS)

_GREY_DIMENSIONS = 3


@dataclass(frozen=True, slots=True, eq=False)
class LabelledImages:
    """Some images with their labels."""

    images: Bytes
    labels: Bytes


@dataclass(frozen=True, slots=True)
class Channel:
    """Brightness of one channel's pixels, on a scale of 0 to 1."""

    mean: float
    deviation: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ImageData:
    """A data set: images are uint8 arrays, grey or in planes, labels of shape [n] are below 10."""

    name: str
    train_images: Bytes
    train_labels: Bytes
    test_images: Bytes
    test_labels: Bytes

    def measure_channels(self) -> tuple[Channel, ...]:
        """Return mean and standard deviation of the training set's pixels, for each channel."""
        planes = as_planes(self.train_images)
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


def read_image_folder(folder: Path, name: str) -> ImageData:
    """Read the four IDX files, plain or gzipped, in a folder of torchvision's layout or flat."""
    raw = find_raw_folder(folder)
    contents = {file_name: read_bytes(find_file(raw, file_name)) for file_name in FILE_NAMES}
    return parse_images(contents, raw, name)


def find_raw_folder(folder: Path) -> Path:
    """Find the IDX files: in `MNIST/raw` of a folder (as torchvision keeps them), in `raw`, or in itself."""
    for candidate in (folder / "MNIST" / "raw", folder / "raw", folder):
        if any((candidate / f"{TRAIN_IMAGES}{suffix}").is_file() for suffix in ("", ".gz")):
            return candidate
    raise DataError(
        f"{folder} has no {TRAIN_IMAGES} (or .gz), neither by itself nor in MNIST/raw: "
        f"give a folder that holds {', '.join(FILE_NAMES)}"
    )


def find_file(raw: Path, file_name: str) -> Path:
    """Return the path of an IDX file, the plain one if both are there."""
    for path in (raw / file_name, raw / f"{file_name}.gz"):
        if path.is_file():
            return path
    raise DataError(f"{raw / file_name} (or .gz) is missing: put it beside {TRAIN_IMAGES}")


def parse_images(contents: dict[str, bytes], folder: Path, name: str) -> ImageData:
    """Read a data set out of the contents of its four files; `folder` is named in errors."""
    train = _parse_part(contents, folder, TRAIN_IMAGES, TRAIN_LABELS)
    test = _parse_part(contents, folder, TEST_IMAGES, TEST_LABELS)
    return ImageData(
        name=name, train_images=train[0], train_labels=train[1], test_images=test[0], test_labels=test[1]
    )


def _parse_part(
    contents: dict[str, bytes], folder: Path, images_name: str, labels_name: str
) -> tuple[Bytes, Bytes]:
    images = parse_idx(contents[images_name], folder / images_name, dimensions=3)
    labels = parse_idx(contents[labels_name], folder / labels_name, dimensions=1)
    if images.shape[1:] != (SIDE_PIXELS, SIDE_PIXELS) or len(images) == 0:
        raise DataError(f"{folder / images_name} has the shape {images.shape}: images of 28x28 pixels are needed")
    if len(images) != len(labels):
        raise DataError(
            f"{folder / images_name} has {len(images)} images, {labels_name} has {len(labels)} labels: "
            "they do not belong together; get both again"
        )
    check_labels(labels, folder / labels_name)
    return images, labels


def check_labels(labels: Bytes, path: Path) -> None:
    """Refuse classes that do not exist; `path` is named in the error."""
    if labels.max() >= CLASSES:
        raise DataError(f"{path} has the label {labels.max()}: labels go from 0 to {CLASSES - 1}")


# `digits` -----------------------------------------------------------------------------------------------

_SMALL_SIDE_PIXELS = 8
_SMALL_WHITE = 16
_WHITE = 255
_WEIGHT_SUM = 14
_TEST_ONE_IN = 5


def load_digits_images() -> ImageData:
    """Return the data set; every fifth image belongs to the test set."""
    table = _read_table()
    images = enlarge(table[:, :-1].reshape(-1, _SMALL_SIDE_PIXELS, _SMALL_SIDE_PIXELS))
    labels = table[:, -1].astype(np.uint8)
    test = np.arange(len(labels)) % _TEST_ONE_IN == _TEST_ONE_IN - 1
    return ImageData(
        name="digits",
        train_images=images[~test],
        train_labels=labels[~test],
        test_images=images[test],
        test_labels=labels[test],
    )


def enlarge(small: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Scale images of 8×8 pixels from 0 to 16 to 28×28 pixels from 0 to 255."""
    weights = _interpolation_weights()
    sums = weights @ small @ weights.T
    whole = _WEIGHT_SUM**2 * _SMALL_WHITE
    # Half of the divisor is added to round to nearest.
    return ((sums * _WHITE + whole // 2) // whole).astype(np.uint8)


def _interpolation_weights() -> NDArray[np.int64]:
    """Return how many fourteenths of each of 8 pixels make up each of 28."""
    last = _SMALL_SIDE_PIXELS - 1
    centres = np.clip(4 * np.arange(SIDE_PIXELS) - 5, 0, last * _WEIGHT_SUM)
    left, part = np.divmod(centres, _WEIGHT_SUM)
    weights = np.zeros((SIDE_PIXELS, _SMALL_SIDE_PIXELS), dtype=np.int64)
    rows = np.arange(SIDE_PIXELS)
    weights[rows, left] += _WEIGHT_SUM - part
    weights[rows, np.minimum(left + 1, last)] += part
    return weights


def _read_table() -> NDArray[np.int64]:
    """Return one row per digit: 64 pixels, then the label."""
    specification = find_spec("sklearn")
    if specification is None or specification.origin is None:
        raise DataError(
            "the data set 'digits' comes with scikit-learn, which is missing: pip install 'hubbub[demo]'"
        )
    path = Path(specification.origin).parent / "datasets" / "data" / "digits.csv.gz"
    if path.is_file():
        # Read past the package, because importing it takes two seconds, in every trainer.
        with gzip.open(path, "rt", encoding="ascii") as file:
            return np.loadtxt(file, delimiter=",").astype(np.int64)
    return _import_table()


def _import_table() -> NDArray[np.int64]:
    """Return the same table from scikit-learn's own function."""
    from sklearn.datasets import load_digits  # noqa: PLC0415  # Slow to import, and rarely needed.

    digits = load_digits()
    return np.column_stack([digits.data, digits.target]).astype(np.int64)
