"""Image data by name: `mnist`, `digits`, `auto`, or a folder of IDX files."""

import os
from collections.abc import Callable
from pathlib import Path

from hubbub.errors import DataError
from hubbub_trainer.learning.digits import load_digits_images
from hubbub_trainer.learning.images import ImageData, read_image_folder
from hubbub_trainer.learning.mnist import FetchError, load_mnist

NAMES = ("auto", "mnist", "digits")


def default_cache_folder() -> Path:
    """Return where fetched data are kept: `$HUBBUB_CACHE`, or `~/.cache/hubbub`."""
    configured = os.environ.get("HUBBUB_CACHE")
    return Path(configured) if configured else Path.home() / ".cache" / "hubbub"


def load_images(data: str, cache_folder: Path, announce: Callable[[str], None]) -> ImageData:
    """Load a data set.

    `auto` is MNIST, or `digits` where MNIST cannot be fetched, which is announced. A damaged file is an
    error also with `auto`: somebody should know.
    """
    check_data_name(data)
    if data == "digits":
        return load_digits_images()
    if data == "mnist":
        return load_mnist(cache_folder, announce)
    if data == "auto":
        return _load_what_can_be_had(cache_folder, announce)
    return read_image_folder(Path(data), data)


def check_data_name(data: str) -> None:
    """Refuse, without loading anything, what names neither a data set nor a folder."""
    if data not in NAMES and not Path(data).is_dir():
        raise DataError(
            f"there is no data set and no folder {data!r}: choose {', '.join(NAMES)} or a folder of IDX files"
        )


def _load_what_can_be_had(cache_folder: Path, announce: Callable[[str], None]) -> ImageData:
    try:
        return load_mnist(cache_folder, announce)
    except FetchError as error:
        announce(f"Using the small data set 'digits' instead of MNIST: {error}")
        return load_digits_images()
