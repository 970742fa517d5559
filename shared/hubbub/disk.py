"""Making sure that files, and a folder's entries, are on disk."""

import os
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO


def write_whole(path: Path, fill: Callable[[BinaryIO], object]) -> None:
    """Write a file that is there as a whole or not at all; its name is on disk once its folder is synced."""
    draft = path.with_suffix(".part")
    with draft.open("wb") as file:
        fill(file)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


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
