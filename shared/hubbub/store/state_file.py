"""State file of a party: an SQLite file with its events, its secrets and, at an aggregator, the journal.

All users of the file share one connection and take turns. So what belongs together can be written in one
transaction, and one sync puts it on disk.

The vault holds the secrets of each run: keys, seeds, the group secret. They are deleted with the run. They are in
the same file as the events and the journal so that a party that loses one loses all, and can never go on from
half.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from hubbub.disk import sync_folder
from hubbub.errors import StorageFailed
from hubbub.ids import RunId

_MAKE_ROOM = "make room on its disk"
_GIVE_RIGHTS = "let this user write to the file and its folder, on a disk that is not mounted read-only"
_MOVE_AWAY = (
    "it is damaged, or something else: move it away to begin without it; runs that were open are lost, and an"
    " older copy must not take its place"
)
_REMEDIES = {
    sqlite3.SQLITE_FULL: _MAKE_ROOM,
    sqlite3.SQLITE_IOERR: "see whether its disk is full or failing",
    sqlite3.SQLITE_READONLY: _GIVE_RIGHTS,
    sqlite3.SQLITE_CANTOPEN: _GIVE_RIGHTS,
    sqlite3.SQLITE_BUSY: "stop the other process that is using it",
    sqlite3.SQLITE_CORRUPT: _MOVE_AWAY,
    sqlite3.SQLITE_NOTADB: _MOVE_AWAY,
    sqlite3.SQLITE_ERROR: _MOVE_AWAY,
}


def open_database(path: Path) -> sqlite3.Connection:
    """Open an SQLite file that only its owner may read.

    A commit is on disk when it returns, and deleted data is overwritten.
    """
    # A path that begins with a slash cannot be mistaken for one of SQLite's special names.
    path = path.absolute()
    try:
        _make_file(path)
    except OSError as error:
        raise StorageFailed(explain(path, error)) from None
    database = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
    try:
        (mode,) = database.execute("PRAGMA journal_mode = WAL").fetchone()
        database.execute("PRAGMA synchronous = FULL")
        database.execute("PRAGMA secure_delete = ON")
        (health,) = database.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.Error as error:
        database.close()
        raise StorageFailed(explain(path, error)) from None
    if mode != "wal" or health != "ok":
        database.close()
        what = _MOVE_AWAY if mode == "wal" else "its disk does not allow a write-ahead log: take a local disk"
        raise StorageFailed(f"{path} cannot be used: {what}")
    return database


def explain(path: Path, error: sqlite3.Error | OSError) -> str:
    """Return a message that says what is wrong with a file and what to do."""
    if isinstance(error, OSError):
        what_to_do = _MAKE_ROOM if error.errno in {errno.ENOSPC, errno.EDQUOT} else _GIVE_RIGHTS
        return f"{path} cannot be used: {error.strerror}; {what_to_do}"
    # The lowest byte is the primary error code; the others, if any, extend it.
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_IOERR) & 0xFF
    return f"{path} cannot be used: {error}; {_REMEDIES.get(code, 'see whether its disk is in order')}"


def _make_file(path: Path) -> None:
    """Create a file that only its owner may read, and sync its name; SQLite gives its log the same rights."""
    _make_folder(path.parent)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    sync_folder(path.parent)


def _make_folder(folder: Path) -> None:
    if folder.is_dir():
        return
    _make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    sync_folder(folder.parent)


class StateFile:
    """Open state file. Thread-safe: callers wait for each other."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.RLock()
        self._database = open_database(path)

    @classmethod
    def of(cls, place: StateFile | Path) -> StateFile:
        """Return the file that is open already, or open the one at a path."""
        return place if isinstance(place, StateFile) else cls(place)

    @contextmanager
    def using(self) -> Iterator[sqlite3.Connection]:
        """Lock the file; errors of SQLite are raised as `StorageFailed`."""
        with self._lock:
            try:
                yield self._database
            except sqlite3.Error as error:
                raise StorageFailed(explain(self.path, error)) from None

    def in_transaction(self) -> bool:
        """Say whether this thread has an open transaction."""
        with self.using() as database:
            return database.in_transaction

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Commit all that is written inside, by any user of the file; if something raises, none of it."""
        with self.using() as database:
            database.execute("BEGIN IMMEDIATE")
            try:
                yield database
                database.execute("COMMIT")
            except BaseException:
                # SQLite itself rolls back after some errors only.
                if database.in_transaction:
                    database.execute("ROLLBACK")
                raise

    def overwrite_deleted(self) -> None:
        """Remove deleted data from the write-ahead log, too."""
        with self.using() as database:
            database.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def close(self) -> None:
        """Close the file when no thread is using it; closing twice is harmless."""
        with self._lock:
            self._database.close()


SCHEMA = """
CREATE TABLE IF NOT EXISTS secrets (
    run TEXT NOT NULL, name TEXT NOT NULL, value BLOB NOT NULL, PRIMARY KEY (run, name)
) WITHOUT ROWID
"""


class Vault:
    """Named secrets of each run; deleted secrets are overwritten in the file."""

    def __init__(self, file: StateFile | Path) -> None:
        self._file = StateFile.of(file)
        self._execute(SCHEMA)
        # An earlier process may have died between deleting something and overwriting it.
        self._file.overwrite_deleted()

    def put(self, run: RunId, name: str, value: bytes) -> None:
        """Store a secret, replacing one of this name; it is on disk when this returns.

        The replaced secret is overwritten as a deleted one is.
        """
        self._execute("INSERT OR REPLACE INTO secrets VALUES (?, ?, ?)", run, name, value)

    def get(self, run: RunId, name: str) -> bytes | None:
        """Return a secret, or None."""
        rows = self._execute("SELECT value FROM secrets WHERE run = ? AND name = ?", run, name)
        return bytes(rows[0][0]) if rows else None

    def delete(self, run: RunId, *names: str) -> None:
        """Delete secrets in one statement. They are overwritten in the file when the store next drops a machine.

        Secrets that are deleted before their run ends belong to a machine that is over, which is dropped right
        after.
        """
        places = ", ".join("?" * len(names))
        # Only question marks are interpolated.
        self._execute(f"DELETE FROM secrets WHERE run = ? AND name IN ({places})", run, *names)  # noqa: S608

    def together(self) -> AbstractContextManager[object]:
        """Open one transaction for all changes inside."""
        return self._file.transaction()

    def forget(self, run: RunId) -> None:
        """Delete all secrets of a run, also from the write-ahead log."""
        self._execute("DELETE FROM secrets WHERE run = ?", run)
        self._file.overwrite_deleted()

    def _execute(self, statement: str, *values: str | bytes) -> list[tuple[bytes, ...]]:
        with self._file.using() as database:
            return database.execute(statement, values).fetchall()

    def __repr__(self) -> str:
        return "<Vault>"

    def close(self) -> None:
        """Close the file when no thread is using it."""
        self._file.close()
