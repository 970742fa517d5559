"""Durable and private files: atomic writes, fsync, and a check of who may read a secret."""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

IGNORE_FILE = ".gitignore"
_NOT_THE_OWNER = 0o077
_NOT_THE_OWNER_NOR_THE_GROUP_THAT_READS = 0o037


def create_file(path: Path, content: bytes, mode: int) -> None:
    """Create a file with its mode from the start, or leave nothing behind.

    Raises `FileExistsError` if the name is taken.
    """
    handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
    except BaseException:
        path.unlink()
        raise


@contextmanager
def replacing(path: Path, *, mode: int = 0o600, like: os.stat_result | None = None) -> Iterator[BinaryIO]:
    """Write a file that takes the place of `path` when the block ends: a crash leaves the old one or the new one.

    An exception in the block leaves the old one. `mode`, less the umask, is that of the new one, unless `like`
    gives an owner and a mode.
    """
    draft = path.with_name(f"{path.name}.part")
    # A process that was killed may have left one, with another mode.
    draft.unlink(missing_ok=True)
    try:
        with os.fdopen(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, mode), "wb") as file:
            if like is not None:
                os.fchown(file.fileno(), like.st_uid, like.st_gid)
                os.fchmod(file.fileno(), stat.S_IMODE(like.st_mode))
            yield file
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def make_secret_folder(folder: Path) -> None:
    """Create a folder for keys or tokens; if it is new or empty, a .gitignore keeps them out of git."""
    folder.mkdir(parents=True, exist_ok=True)
    if not any(folder.iterdir()):
        (folder / IGNORE_FILE).write_text("# Secrets: not for a repository.\n*\n", encoding="ascii")


def sync_folder(folder: Path) -> None:
    """Sync a folder, so that files created in it or renamed into it survive a crash."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def is_open_to_others(status: os.stat_result) -> bool:
    """Return whether anybody but its owner may read or change a secret file.

    One exception: a service that is not root may use a file that belongs to root and that a group may read.
    Kubernetes mounts secrets like this, and so do many hosts.
    """
    handed_to_us = status.st_uid == 0 and os.geteuid() != 0
    refused = _NOT_THE_OWNER_NOR_THE_GROUP_THAT_READS if handed_to_us else _NOT_THE_OWNER
    return bool(stat.S_IMODE(status.st_mode) & refused)
