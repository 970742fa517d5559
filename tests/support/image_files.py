"""Small IDX files that look like MNIST's, for tests that need images and no network."""

import gzip
import hashlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

TRAIN_IMAGES = "train-images-idx3-ubyte"
TRAIN_LABELS = "train-labels-idx1-ubyte"
TEST_IMAGES = "t10k-images-idx3-ubyte"
TEST_LABELS = "t10k-labels-idx1-ubyte"


def pack_idx(values: NDArray[np.uint8]) -> bytes:
    header = bytes([0, 0, 8, values.ndim]) + np.array(values.shape, dtype=">u4").tobytes()
    return header + values.tobytes()


def draw_samples(count: int, seed: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Return images whose class is where their bright square is, and their labels."""
    generator = np.random.default_rng(seed)
    labels = (np.arange(count) % 10).astype(np.uint8)
    images = generator.integers(0, 64, size=(count, 28, 28), dtype=np.uint8)
    for image, label in zip(images, labels, strict=True):
        row, column = divmod(int(label), 4)
        image[2 + 8 * row : 8 + 8 * row, 1 + 7 * column : 7 + 7 * column] += 160
    return images, labels


def pack_image_files(*, train: int = 300, test: int = 50) -> dict[str, bytes]:
    """Return the contents of the four files of a data set, by file name."""
    train_images, train_labels = draw_samples(train, seed=1)
    test_images, test_labels = draw_samples(test, seed=2)
    return {
        TRAIN_IMAGES: pack_idx(train_images),
        TRAIN_LABELS: pack_idx(train_labels),
        TEST_IMAGES: pack_idx(test_images),
        TEST_LABELS: pack_idx(test_labels),
    }


def write_image_folder(folder: Path, files: dict[str, bytes], *, zipped: bool = False) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        path = folder / (f"{name}.gz" if zipped else name)
        path.write_bytes(gzip.compress(content) if zipped else content)
    return folder


def md5_of_files(files: dict[str, bytes]) -> dict[str, str]:
    return {name: hashlib.md5(content, usedforsecurity=False).hexdigest() for name, content in files.items()}
