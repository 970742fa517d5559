"""Image data sets by name, or from a folder of the user's own: grey images and colour images."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from hubbub.errors import DataError
from hubbub_trainer.learning.cifar10 import FOLDER_NAME, holds_cifar10, load_cifar10, read_cifar10_folder
from hubbub_trainer.learning.fetching import Announce, FetchError
from hubbub_trainer.learning.images import ImageData, load_digits_images
from hubbub_trainer.learning.mnist import load_mnist, read_image_folder


def default_cache_folder() -> Path:
    """Return where fetched data are kept: `$HUBBUB_CACHE`, or `~/.cache/hubbub`."""
    configured = os.environ.get("HUBBUB_CACHE")
    return Path(configured) if configured else Path.home() / ".cache" / "hubbub"


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Data sets to choose from where images of one kind are needed."""

    by_name: Mapping[str, Callable[[Path, Announce], ImageData]]
    """Functions that load a data set from a cache folder, and fetch it if it is not there."""
    folder: str
    """The kind of folder that can be given instead of a name, in words."""
    read_folder: Callable[[Path, str], ImageData]

    def check_name(self, data: str) -> None:
        """Raise `DataError` if this names neither a data set nor a folder; nothing is loaded."""
        if data not in self.by_name and not Path(data).is_dir():
            raise DataError(
                f"there is no data set and no folder {data!r} to use here: "
                f"choose {', '.join(self.by_name)} or {self.folder}"
            )

    def load(self, data: str, cache_folder: Path, announce: Announce) -> ImageData:
        """Load a data set. A damaged file is an error with `auto` too: nothing else is loaded instead."""
        self.check_name(data)
        if data in self.by_name:
            return self.by_name[data](cache_folder, announce)
        return self.read_folder(Path(data), data)


def _load_grey(cache_folder: Path, announce: Announce) -> ImageData:
    """Load MNIST; if it cannot be fetched, announce that and load `digits`."""
    try:
        return load_mnist(cache_folder, announce)
    except FetchError as error:
        announce(f"Using the small data set 'digits' instead of MNIST: {error}")
        return load_digits_images()


def _load_colour(cache_folder: Path, announce: Announce) -> ImageData:
    try:
        return load_cifar10(cache_folder, announce)
    except FetchError as error:
        raise FetchError(f"{error} (no smaller set of colour images could stand in for CIFAR-10)") from error


def _read_any_folder(folder: Path, name: str) -> ImageData:
    return read_cifar10_folder(folder, name) if holds_cifar10(folder) else read_image_folder(folder, name)


GREY = Choice(
    by_name=MappingProxyType(
        {"auto": _load_grey, "mnist": load_mnist, "digits": lambda _cache, _say: load_digits_images()}
    ),
    folder="a folder of IDX files",
    read_folder=read_image_folder,
)
COLOUR = Choice(
    by_name=MappingProxyType({"auto": _load_colour, "cifar10": load_cifar10}),
    folder=f"a folder that holds {FOLDER_NAME}",
    read_folder=read_cifar10_folder,
)
_ANY = Choice(
    by_name=MappingProxyType({**GREY.by_name, "cifar10": load_cifar10}),
    folder=f"{GREY.folder} or {COLOUR.folder}",
    read_folder=_read_any_folder,
)


def load_images(data: str, cache_folder: Path, announce: Announce) -> ImageData:
    """Load a data set of any kind, for callers without a task; `auto` is that of grey images."""
    return _ANY.load(data, cache_folder, announce)
