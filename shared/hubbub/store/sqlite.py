"""Events in an SQLite file that syncs on every commit."""

from __future__ import annotations

import errno
import os
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from hubbub.disk import sync_folder
from hubbub.errors import StorageFailed
from hubbub.ids import RunId
from hubbub.machine.effects import Key
from hubbub.store.base import (
    COLUMNS,
    INSERTED,
    VERSION,
    Draft,
    Entry,
    EventStore,
    entry_of,
    refuse_later_version,
    row_of,
    row_of_key,
)

SCHEMA = """
CREATE TABLE IF NOT EXISTS events (
    sequence INTEGER PRIMARY KEY AUTOINCREMENT,
    machine TEXT NOT NULL, run TEXT NOT NULL, round INTEGER NOT NULL, phase TEXT NOT NULL,
    kind TEXT NOT NULL, body TEXT NOT NULL, cause TEXT NOT NULL, done INTEGER NOT NULL DEFAULT 0
)
"""
# Statements are put together from constants only.
INSERT = f"INSERT INTO events ({INSERTED}) VALUES (?, ?, ?, ?, ?, ?, ?)"  # noqa: S608
SELECT = f"SELECT {COLUMNS} FROM events ORDER BY sequence"  # noqa: S608
DELETE = "DELETE FROM events WHERE machine = ? AND run = ? AND round = ? AND phase = ?"
DELETE_RUN = "DELETE FROM events WHERE run = ?"
FINISH = "UPDATE events SET done = 1 WHERE sequence = ?"

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


def overwrite_deleted(database: sqlite3.Connection) -> None:
    """Let nothing that was deleted stay behind in the write-ahead log either."""
    database.execute("PRAGMA wal_checkpoint(TRUNCATE)")


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


class SqliteStore(EventStore):
    """The default: a file in the party's folder."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._finished: set[int] = set()
        self._database = open_database(path)
        try:
            self._prepare()
        except BaseException:
            self._database.close()
            raise

    def _prepare(self) -> None:
        with self._transaction() as database:
            (version,) = database.execute("PRAGMA user_version").fetchone()
            refuse_later_version(version, str(self._path))
            if version < VERSION:
                database.execute(SCHEMA)
                database.execute(f"PRAGMA user_version = {VERSION}")
            # A table of this name that is somebody else's is found out now, not in the middle of a run.
            database.execute(f"{SELECT} LIMIT 0")

    @contextmanager
    def _using(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            try:
                yield self._database
            except sqlite3.Error as error:
                raise StorageFailed(explain(self._path, error)) from None

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """One commit for all, with what was done since the last."""
        with self._using() as database:
            database.execute("BEGIN IMMEDIATE")
            try:
                for sequence in self._finished:
                    database.execute(FINISH, (sequence,))
                yield database
                database.execute("COMMIT")
            except BaseException:
                # SQLite itself has rolled back after some errors, not after others.
                if database.in_transaction:
                    database.execute("ROLLBACK")
                raise
            self._finished.clear()

    def append(self, drafts: Sequence[Draft]) -> int:
        """Keep entries, all or none; they are on disk when this returns the number of the last (0 of none)."""
        number = 0
        with self._transaction() as database:
            for draft in drafts:
                number = int(database.execute(INSERT, row_of(draft)).lastrowid or 0)
        return number

    def mark_done(self, sequence: int) -> None:
        """Note it; it is written with the next entry, because to do something twice is harmless."""
        with self._lock:
            self._finished.add(sequence)

    def read(self) -> list[Entry]:
        """All entries, in order; what was marked done since the last write does not show yet."""
        with self._using() as database:
            rows = database.execute(SELECT).fetchall()
        return [entry_of(row) for row in rows]

    def drop(self, keys: Iterable[Key]) -> None:
        """Forget machines that are over, and overwrite what they knew."""
        self._delete(DELETE, [row_of_key(key) for key in keys])

    def drop_run(self, run: RunId) -> None:
        """Forget all machines of a run, and overwrite what they knew."""
        self._delete(DELETE_RUN, [(run,)])

    def _delete(self, statement: str, rows: list[tuple[str | int, ...]]) -> None:
        with self._transaction() as database:
            database.executemany(statement, rows)
        with self._using() as database:
            overwrite_deleted(database)

    def close(self) -> None:
        """Write what is still to be written, and close; it is closed also if that fails."""
        try:
            if self._finished:
                with self._transaction():
                    pass
        finally:
            # A thread that nobody waits for any more may be in the middle of something.
            with self._lock:
                self._database.close()
