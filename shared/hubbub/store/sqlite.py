"""Event store in an SQLite file that syncs on every commit."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, TypeVar

from hubbub.ids import RunId
from hubbub.machine.effects import Key
from hubbub.store.sql import SELECT, TABLES, VERSION, Cursor, SqlStore, refuse_other_version
from hubbub.store.state_file import StateFile

T = TypeVar("T")

EVENTS = """
CREATE TABLE IF NOT EXISTS events (
    sequence INTEGER PRIMARY KEY AUTOINCREMENT,
    machine TEXT NOT NULL, run TEXT NOT NULL, round INTEGER NOT NULL, phase TEXT NOT NULL,
    kind TEXT NOT NULL, body TEXT NOT NULL, cause TEXT NOT NULL, done INTEGER NOT NULL DEFAULT 0
)
"""


class SqliteStore(SqlStore):
    """Event store in the party's state file; the default."""

    prefix = ""
    mark = "?"

    def __init__(self, file: StateFile | Path) -> None:
        super().__init__()
        self._file = StateFile.of(file)
        self.place = str(self._file.path)
        try:
            self._prepare()
        except BaseException:
            self._file.close()
            raise

    def _prepare(self) -> None:
        with self._file.transaction() as database:
            (version,) = database.execute("PRAGMA user_version").fetchone()
            if version == 0:
                for table in (EVENTS, *TABLES):
                    database.execute(self._sql(table))
                database.execute(f"PRAGMA user_version = {VERSION}")
            else:
                refuse_other_version(version, self.place)
            # Fail now, not in the middle of a run, if a table of this name has other columns.
            database.execute(self._sql(f"{SELECT} LIMIT 0"))

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._file.transaction() as database:
            finished = self._write_finished(database.cursor())
            yield database
        self._settle(finished)

    def together(self) -> AbstractContextManager[object]:
        """Open one transaction for all writes inside to the party's file."""
        return nullcontext() if self._file.in_transaction() else self._transaction()

    def _write(self, work: Callable[[Cursor], T]) -> T:
        with self.together(), self._file.using() as database:
            return work(database.cursor())

    def _read(self, query: str, *values: str | int) -> list[Any]:
        with self._file.using() as database:
            return self._select(database.cursor(), query, *values)

    def drop(self, keys: Iterable[Key]) -> None:
        """Delete machines that are over, and overwrite their data in the file."""
        super().drop(keys)
        self._file.overwrite_deleted()

    def drop_run(self, run: RunId) -> None:
        """Delete all machines of a run, and overwrite their data in the file."""
        super().drop_run(run)
        self._file.overwrite_deleted()

    def close(self) -> None:
        """Write what is pending, and close; the file is closed even if the write fails."""
        try:
            if self._finished:
                self._write(lambda _: None)
        finally:
            # An abandoned thread may still be using the file; `close` waits for it.
            self._file.close()
