"""A party's SQLite file: events, secrets and, at an aggregator, the journal.

All who use it share one connection and take turns. So what belongs together can be written in one transaction, and
one sync puts it on disk.

What a party keeps secret for a run: keys, seeds, the group secret. It dies with the run.

It lies in the same file as the party's events and, at an aggregator, the journal: who loses one loses all, and can
never go on from half of it.
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
    """Open an SQLite file in which a commit is on disk when it returns, and what is deleted is overwritten.

    Only its owner may read it.
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
    """Put into words what is wrong with a file and what to do."""
    if isinstance(error, OSError):
        what_to_do = _MAKE_ROOM if error.errno in {errno.ENOSPC, errno.EDQUOT} else _GIVE_RIGHTS
        return f"{path} cannot be used: {error.strerror}; {what_to_do}"
    # The lowest byte is the kind of error; the others, if any, say which of that kind.
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_IOERR) & 0xFF
    return f"{path} cannot be used: {error}; {_REMEDIES.get(code, 'see whether its disk is in order')}"


def _make_file(path: Path) -> None:
    """Have a file that only its owner may read, whose name is on disk; SQLite gives its log the same rights."""
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
    """An open file. Several threads may use it: they wait for each other."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.RLock()
        self._database = open_database(path)

    @classmethod
    def of(cls, place: StateFile | Path) -> StateFile:
        """The file that is open already, or the one at a path."""
        return place if isinstance(place, StateFile) else cls(place)

    @contextmanager
    def using(self) -> Iterator[sqlite3.Connection]:
        """Have the file for oneself; what SQLite says is put into words."""
        with self._lock:
            try:
                yield self._database
            except sqlite3.Error as error:
                raise StorageFailed(explain(self.path, error)) from None

    def in_transaction(self) -> bool:
        """Whether this thread has begun a transaction and not ended it."""
        with self.using() as database:
            return database.in_transaction

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """All that is written inside, by whomever, is on disk when this ends; if something raises, none of it."""
        with self.using() as database:
            database.execute("BEGIN IMMEDIATE")
            try:
                yield database
                database.execute("COMMIT")
            except BaseException:
                # SQLite itself has rolled back after some errors, not after others.
                if database.in_transaction:
                    database.execute("ROLLBACK")
                raise

    def overwrite_deleted(self) -> None:
        """Let nothing that was deleted stay behind in the write-ahead log either."""
        with self.using() as database:
            database.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def close(self) -> None:
        """Close the file, once whoever is using it is done; it may be closed already."""
        with self._lock:
            self._database.close()


SCHEMA = """
CREATE TABLE IF NOT EXISTS secrets (
    run TEXT NOT NULL, name TEXT NOT NULL, value BLOB NOT NULL, PRIMARY KEY (run, name)
) WITHOUT ROWID
"""


class Vault:
    """Named secrets of each run; what is deleted is overwritten in the file."""

    def __init__(self, file: StateFile | Path) -> None:
        self._file = StateFile.of(file)
        self._execute(SCHEMA)
        # A process before us may have died after it deleted something, and before it was overwritten.
        self._file.overwrite_deleted()

    def put(self, run: RunId, name: str, value: bytes) -> None:
        """Keep a secret, in place of the one that had this name; it is on disk when this returns.

        What it replaces is overwritten as what is deleted is.
        """
        self._execute("INSERT OR REPLACE INTO secrets VALUES (?, ?, ?)", run, name, value)

    def get(self, run: RunId, name: str) -> bytes | None:
        """Give a secret, if it is there."""
        rows = self._execute("SELECT value FROM secrets WHERE run = ? AND name = ?", run, name)
        return bytes(rows[0][0]) if rows else None

    def delete(self, run: RunId, *names: str) -> None:
        """Forget secrets, all at once. They are overwritten in the file when the store next forgets a machine.

        Secrets that go before their run does are those of a machine that is over, which is forgotten right after.
        """
        places = ", ".join("?" * len(names))
        # Only question marks are put in.
        self._execute(f"DELETE FROM secrets WHERE run = ? AND name IN ({places})", run, *names)  # noqa: S608

    def together(self) -> AbstractContextManager[object]:
        """One transaction for all that is changed inside."""
        return self._file.transaction()

    def forget(self, run: RunId) -> None:
        """Forget all secrets of a run, also in the write-ahead log."""
        self._execute("DELETE FROM secrets WHERE run = ?", run)
        self._file.overwrite_deleted()

    def _execute(self, statement: str, *values: str | bytes) -> list[tuple[bytes, ...]]:
        with self._file.using() as database:
            return database.execute(statement, values).fetchall()

    def __repr__(self) -> str:
        return "<Vault>"

    def close(self) -> None:
        """Close the file, once whoever is using it is done."""
        self._file.close()
