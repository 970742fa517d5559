"""Labelled images of ten classes, in pixels of 8 bits: the shape that all image data sets come in here.

Grey images are of shape [n, height, width], as MNIST's four IDX files hold them. Colour images have their
planes apart, red, green and blue: [n, 3, height, width].
"""

from dataclasses import dataclass
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
    """How bright one channel's pixels are, on a scale of 0 to 1."""

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
