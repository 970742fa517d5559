"""State folder of a party: its lock, its tombstones, and the removal of one run.

One process at a time uses the folder. It is empty only on a first start.

A tombstone is the id of a run that the party has joined. It stays for ever, also across restarts, because a run is
joined once: the same manifest run twice would give two sums that subtract to one client's difference.

`forget_run` is for a run that nobody will ever end, because its coordinator is gone or has lost its store. The
party, an aggregator or a trainer, must not be running. The tombstone stays, as does an aggregator's journal, so
that the run is never joined again and nothing of it is released a second time. Nothing is sent and nothing is
signed.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from hubbub.disk import sync_folder
from hubbub.errors import ConfigurationError, StorageFailed
from hubbub.ids import RunId
from hubbub.machine.effects import Key
from hubbub.runtime.spool import Spool
from hubbub.store.sqlite import SqliteStore
from hubbub.store.state_file import StateFile, Vault
from hubbub.trust.audit import AuditLog, read_log

STATE_FILE = "state.sqlite"
"""Events, secrets and, at an aggregator, the journal."""
AUDIT_FILE = "audit.jsonl"
TOMBSTONES = "tombstones"
SPOOL = "spool"
LOCK = "lock"
ENDED = b"ended\n"
FORGOTTEN = b"forgotten\n"
FEWEST_DIGITS = 4


def is_empty(folder: Path) -> bool:
    """Say whether nothing here tells which runs a party was in."""
    return not any((folder / name).exists() for name in (STATE_FILE, AUDIT_FILE, TOMBSTONES))


def lock_folder(folder: Path) -> int:
    """Lock a folder for this process, and return the handle that holds the lock.

    Two processes of one party would each do half of what must be done once. The lock ends with its process.
    """
    handle = os.open(folder / LOCK, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        raise ConfigurationError(
            f"another process is running in {folder}; a party has one active instance: stop it first"
        ) from None
    return handle


class Tombstones:
    """Folder with a file for each run; a run that has ended, or that its owner gave up, is marked."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        # An earlier process may have died between writing a tombstone and syncing the folder.
        sync_folder(folder)

    def __contains__(self, run: RunId) -> bool:
        return (self._folder / run).exists()

    def __iter__(self) -> Iterator[RunId]:
        return (RunId(path.name) for path in sorted(self._folder.iterdir()))

    def __len__(self) -> int:
        return sum(1 for _ in self._folder.iterdir())

    def find_open(self) -> list[RunId]:
        """List the runs that have neither ended nor been given up."""
        return [run for run in self if not self._read(run)]

    def has_ended(self, run: RunId) -> bool:
        """Say whether we know how the run ended."""
        return self._read(run) == ENDED

    def _read(self, run: RunId) -> bytes:
        try:
            return (self._folder / run).read_bytes()
        except FileNotFoundError:
            return b""

    def add(self, run: RunId) -> None:
        """Remember a run for ever; it is on disk when this returns."""
        if run not in self:
            self._write(run, b"")

    def mark_ended(self, run: RunId) -> None:
        """Remember also that the run is over."""
        self._write(run, ENDED)

    def mark_forgotten(self, run: RunId) -> None:
        """Remember also that the party's owner gave the run up, so that its end is not known here."""
        self._write(run, FORGOTTEN)

    def _write(self, run: RunId, word: bytes) -> None:
        try:
            handle = os.open(self._folder / run, os.O_CREAT | os.O_WRONLY, 0o600)
            try:
                os.write(handle, word)
                os.ftruncate(handle, len(word))
                os.fsync(handle)
            finally:
                os.close(handle)
            sync_folder(self._folder)
        except OSError as error:
            raise StorageFailed(f"{self._folder} takes no more: {error.strerror}") from None


def forget_run(folder: Path, name: str) -> RunId:
    """Remove the secrets, the events and the spool of the run whose id begins with `name`; return the id."""
    if not (folder / SPOOL).is_dir():
        raise ConfigurationError(
            f"{folder} is not the folder of an aggregator or a trainer that was started before"
        )
    lock = lock_folder(folder)
    try:
        tombstones = Tombstones(folder / TOMBSTONES)
        run = _find_run(tombstones, name)
        if tombstones.has_ended(run):
            raise ConfigurationError(f"run {run} has ended here: nothing of it is left to forget")
        # First, so that the run is not resumed if the rest fails.
        tombstones.mark_forgotten(run)
        with closing(StateFile(folder / STATE_FILE)) as file:
            SqliteStore(file).drop_run(run)
            Vault(file).forget(run)
        Spool(folder / SPOOL).drop_run(Key("run", run))
        path = folder / AUDIT_FILE
        with closing(AuditLog(path, read_log(path).party)) as audit:
            # Without this the log would look cut off beside those of others.
            if not audit.runs.get(run, False):
                audit.append("ended", run=run, outcome="forgotten")
    finally:
        os.close(lock)
    return run


def _find_run(tombstones: Tombstones, name: str) -> RunId:
    found = [run for run in tombstones if run.startswith(name)] if len(name) >= FEWEST_DIGITS else []
    if len(found) != 1:
        raise ConfigurationError(
            f"{len(found) or 'no'} runs that were joined here begin with {name!r}: give the run's id, or "
            f"{FEWEST_DIGITS} or more of its first digits"
        )
    return found[0]
