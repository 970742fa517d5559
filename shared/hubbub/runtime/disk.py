"""Making sure that a folder's entries are on disk."""

import os
from pathlib import Path


def sync_folder(folder: Path) -> None:
    """Return when files created in, or renamed into, this folder will be there after a crash."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
