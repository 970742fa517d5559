"""Event store in an SQLite file that syncs on every commit."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

from hubbub.ids import RunId
from hubbub.machine.effects import Key
from hubbub.store.archive_tables import ArchiveTables
from hubbub.store.base import (
    COLUMNS,
    INSERTED,
    VERSION,
    Archive,
    Draft,
    Entry,
    EventStore,
    Note,
    Snapshot,
    entry_of,
    refuse_other_version,
    row_of,
)
from hubbub.store.state_file import StateFile

SCHEMA = """
CREATE TABLE IF NOT EXISTS events (
    sequence INTEGER PRIMARY KEY AUTOINCREMENT,
    machine TEXT NOT NULL, run TEXT NOT NULL, round INTEGER NOT NULL, phase TEXT NOT NULL,
    kind TEXT NOT NULL, body TEXT NOT NULL, cause TEXT NOT NULL, done INTEGER NOT NULL DEFAULT 0
)
"""
# Statements are composed of constants only.
INSERT = f"INSERT INTO events ({INSERTED}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"  # noqa: S608
SELECT = f"SELECT {COLUMNS} FROM events ORDER BY sequence"  # noqa: S608
FINISH = "UPDATE events SET done = 1 WHERE sequence = ?"
ARCHIVE = ArchiveTables("", "?")


class SqliteStore(EventStore):
    """Event store in the party's state file; the default."""

    def __init__(self, file: StateFile | Path) -> None:
        self._file = StateFile.of(file)
        self.place = str(self._file.path)
        self._noting = threading.Lock()
        self._finished: set[int] = set()
        try:
            self._prepare()
        except BaseException:
            self._file.close()
            raise

    def _prepare(self) -> None:
        with self._file.transaction() as database:
            (version,) = database.execute("PRAGMA user_version").fetchone()
            if version == 0:
                for table in (SCHEMA, *ARCHIVE.tables):
                    database.execute(table)
                database.execute(f"PRAGMA user_version = {VERSION}")
            else:
                refuse_other_version(version, str(self._file.path))
            # Fail now, not in the middle of a run, if a table of this name has other columns.
            database.execute(f"{SELECT} LIMIT 0")

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """Open a transaction that also writes which entries were done since the last one."""
        with self._file.transaction() as database:
            finished = self._write_finished(database)
            yield database
        with self._noting:
            self._finished.difference_update(finished)

    def _write_finished(self, database: sqlite3.Connection) -> tuple[int, ...]:
        with self._noting:
            finished = tuple(self._finished)
        database.executemany(FINISH, [(sequence,) for sequence in finished])
        return finished

    def together(self) -> AbstractContextManager[object]:
        """Open one transaction for all writes inside to the party's file."""
        return nullcontext() if self._file.in_transaction() else self._transaction()

    def append(self, drafts: Sequence[Draft]) -> int:
        """Store entries, all or none; they are on disk when this returns the number of the last (0 if none)."""
        number = 0
        with self.together(), self._file.using() as database:
            for draft in drafts:
                number = int(database.execute(INSERT, row_of(draft)).lastrowid or 0)
        return number

    def mark_done(self, sequence: int) -> None:
        """Note that an entry is done; it is written with the next entry, because repeated effects are harmless."""
        with self._noting:
            self._finished.add(sequence)

    def read(self) -> list[Entry]:
        """Read all entries, in order; an entry marked done since the last write does not show it yet."""
        with self._file.using() as database:
            rows = database.execute(SELECT).fetchall()
        return [entry_of(row) for row in rows]

    def drop(self, keys: Iterable[Key]) -> None:
        """Delete machines that are over, and overwrite their data in the file."""
        with self._transaction() as database:
            ARCHIVE.drop(database.cursor(), keys)
        self._file.overwrite_deleted()

    def drop_run(self, run: RunId) -> None:
        """Delete all machines of a run, and overwrite their data in the file."""
        with self._transaction() as database:
            ARCHIVE.drop_run(database.cursor(), run)
        self._file.overwrite_deleted()

    def archive(self, archive: Archive) -> int | None:
        """Replace its machines' entries by an archive, unless an entry of its run is not done."""
        with self._transaction() as database:
            return ARCHIVE.write(database.cursor(), archive)

    def read_ongoing(self) -> list[Snapshot]:
        """Read the snapshots of all ongoing machines."""
        with self._file.using() as database:
            return ARCHIVE.read_ongoing(database.cursor())

    def find_over(self, kind: str, run: RunId, first: int = 0, last: int = 0) -> list[Snapshot]:
        """Read the machines of a kind and run that are over, from round `first` to `last`."""
        with self._file.using() as database:
            return ARCHIVE.find_over(database.cursor(), kind, run, first, last)

    def read_summaries(self, kind: str) -> list[Snapshot]:
        """Read all machines of a kind that are over, without their bodies."""
        with self._file.using() as database:
            return ARCHIVE.read_summaries(database.cursor(), kind)

    def read_notes(self, most: int) -> list[Note]:
        """Read the notes with the highest numbers, in order."""
        with self._file.using() as database:
            return ARCHIVE.read_notes(database.cursor(), most)

    def close(self) -> None:
        """Write what is pending, and close; the file is closed even if the write fails."""
        try:
            if self._finished:
                with self._transaction():
                    pass
        finally:
            # An abandoned thread may still be using the file; `close` waits for it.
            self._file.close()
