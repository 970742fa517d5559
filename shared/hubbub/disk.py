"""Files of a party: on disk when we say so, and for its own eyes where they are secret."""

import os
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

_NOT_THE_OWNER = 0o077
_NOT_THE_OWNER_NOR_THE_GROUP_THAT_READS = 0o037


def write_whole(path: Path, fill: Callable[[BinaryIO], object]) -> None:
    """Write a file that is there as a whole or not at all; its name is on disk once its folder is synced."""
    draft = path.with_suffix(".part")
    with draft.open("wb") as file:
        fill(file)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


def create_file(path: Path, content: bytes, mode: int) -> None:
    """Create a file that has its mode from the first moment; if it cannot be finished, it is not there.

    `FileExistsError` if something of that name is.
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
    """Put a file in the place of one that may be there: a crash leaves the old one or the new one.

    It is for ourselves alone, or has the owner and the mode of the one that it is to be like.
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
    """Return when files created in, or renamed into, this folder will be there after a crash."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def is_open_to_others(status: os.stat_result) -> bool:
    """Whether somebody whom a secret in this file is not meant for may read or change it.

    Nobody but its owner may. One exception: a service that is not root may be handed a file that belongs to root
    and that a group may read; so Kubernetes mounts a secret, and so does many a host.
    """
    handed_to_us = status.st_uid == 0 and os.geteuid() != 0
    refused = _NOT_THE_OWNER_NOR_THE_GROUP_THAT_READS if handed_to_us else _NOT_THE_OWNER
    return bool(stat.S_IMODE(status.st_mode) & refused)
