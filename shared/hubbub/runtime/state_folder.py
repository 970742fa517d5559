"""A party's folder of state: one process at a time, and empty only on a first start."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from hubbub.errors import ConfigurationError

STATE_FILE = "state.sqlite"
"""Events, secrets and, at an aggregator, the journal."""
AUDIT_FILE = "audit.jsonl"
TOMBSTONES = "tombstones"


def is_empty(folder: Path) -> bool:
    """Whether no party has kept anything here that tells which runs it was in."""
    return not any((folder / name).exists() for name in (STATE_FILE, AUDIT_FILE, TOMBSTONES))


def lock_folder(folder: Path) -> int:
    """Lock a folder for this process, and return the handle that holds the lock.

    Two processes of one party would each do half of what must be done once. A dead one's lock is free.
    """
    handle = os.open(folder / "lock", os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        raise ConfigurationError(
            f"another process is running in {folder}; a party has one active instance: stop it first"
        ) from None
    return handle
