"""Durable and private files: atomic writes, fsync, and a check of who may read a secret."""

import os
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

_NOT_THE_OWNER = 0o077
_NOT_THE_OWNER_NOR_THE_GROUP_THAT_READS = 0o037


def write_whole(path: Path, fill: Callable[[BinaryIO], object]) -> None:
    """Write a file atomically; its name is durable once its folder is synced (`sync_folder`)."""
    draft = path.with_suffix(".part")
    with draft.open("wb") as file:
        fill(file)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


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


def replace_file(path: Path, content: bytes, like: os.stat_result | None = None) -> None:
    """Create or replace a file atomically: a crash leaves the old one or the new one.

    Only this process's user can read it, unless `like` gives another owner and mode.
    """
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as stream:
            if like is not None:
                os.fchown(handle, like.st_uid, like.st_gid)
                os.fchmod(handle, stat.S_IMODE(like.st_mode))
            stream.write(content)
            stream.flush()
            os.fsync(handle)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


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
