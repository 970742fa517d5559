"""Forgets one run in the folder of an aggregator or a trainer that is not running.

For a run that nobody will ever end: its coordinator is gone, or has lost its store. The tombstone stays, as does
an aggregator's journal, so that the run is never joined again and nothing of it is released a second time. Nothing
is sent and nothing is signed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hubbub.errors import ConfigurationError
from hubbub.ids import RunId
from hubbub.machine.effects import Key
from hubbub.runtime.spool import Spool
from hubbub.runtime.state_folder import AUDIT_FILE, STATE_FILE, TOMBSTONES, lock_folder
from hubbub.runtime.tombstones import Tombstones
from hubbub.store.sqlite import SqliteStore
from hubbub.store.state_file import StateFile
from hubbub.store.vault import Vault
from hubbub.trust.audit import AuditLog, read_log

SPOOL = "spool"
FEWEST_DIGITS = 4


def forget_run(folder: Path, name: str) -> RunId:
    """Remove the secrets, the events and the spool of the run whose id begins so, and return the id."""
    if not (folder / SPOOL).is_dir():
        raise ConfigurationError(
            f"{folder} is not the folder of an aggregator or a trainer that was started before"
        )
    with _locked(folder):
        tombstones = Tombstones(folder / TOMBSTONES)
        run = _find_run(tombstones, name)
        if tombstones.has_ended(run):
            raise ConfigurationError(f"run {run} has ended here: nothing of it is left to forget")
        # First of all: whatever happens from here on, the run is not taken up again.
        tombstones.mark_forgotten(run)
        _drop_state(folder, run)
        Spool(folder / SPOOL).drop_run(Key("run", run))
        _record(folder, run)
    return run


def _find_run(tombstones: Tombstones, name: str) -> RunId:
    found = [run for run in tombstones if run.startswith(name)] if len(name) >= FEWEST_DIGITS else []
    if len(found) != 1:
        raise ConfigurationError(
            f"{len(found) or 'no'} runs that were joined here begin with {name!r}: give the run's id, or "
            f"{FEWEST_DIGITS} or more of its first digits"
        )
    return found[0]


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    lock = lock_folder(folder)
    try:
        yield
    finally:
        os.close(lock)


def _drop_state(folder: Path, run: RunId) -> None:
    file = StateFile(folder / STATE_FILE)
    try:
        SqliteStore(file).drop_run(run)
        Vault(file).forget(run)
    finally:
        file.close()


def _record(folder: Path, run: RunId) -> None:
    """Close the run in the audit log too: beside those of others it would look cut off."""
    path = folder / AUDIT_FILE
    audit = AuditLog(path, read_log(path).party)
    try:
        if not audit.runs.get(run, False):
            audit.append("ended", run=run, outcome="forgotten")
    finally:
        audit.close()
