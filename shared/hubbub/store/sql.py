"""Event store in an SQL database: statements and tables, the same for SQLite and PostgreSQL.

In a statement `@` stands for the prefix of the tables' names, and `?` for a value.
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, Protocol, TypeVar

from hubbub.errors import ConfigurationError
from hubbub.ids import RunId
from hubbub.machine.effects import Key
from hubbub.store.base import Archive, Draft, Entry, EventStore, Note, Snapshot

T = TypeVar("T")

VERSION = 2
"""Version of the tables; a store of another version is refused, because its meaning is not known."""
SELECT = "SELECT sequence, machine, run, round, phase, kind, body, cause, done FROM @events ORDER BY sequence"
LAST = "SELECT coalesce(max(sequence), 0) FROM @events"
_INSERT = (
    "INSERT INTO @events (machine, run, round, phase, kind, body, cause, done) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
)
_FORGET_ENTRIES = "DELETE FROM @events WHERE (machine, run, round, phase) = (?, ?, ?, ?)"
_FORGET_ONGOING = "DELETE FROM @snapshots WHERE (machine, run, round, phase) = (?, ?, ?, ?)"
_FORGET_OVER = "DELETE FROM @archive WHERE (machine, run, round, phase) = (?, ?, ?, ?)"
_INSERT_OVER = "INSERT INTO @archive VALUES (?, ?, ?, ?, ?, ?)"
_INSERT_ONGOING = "INSERT INTO @snapshots VALUES (?, ?, ?, ?, ?, ?)"
_INSERT_NOTE = "INSERT INTO @notes VALUES (?, ?) ON CONFLICT DO NOTHING"
_SNAPSHOT = (
    "(machine TEXT NOT NULL, run TEXT NOT NULL, round INTEGER NOT NULL, phase TEXT NOT NULL,"
    " summary TEXT NOT NULL, body TEXT NOT NULL, PRIMARY KEY (machine, run, round, phase))"
)
TABLES = (
    f"CREATE TABLE @archive {_SNAPSHOT}",
    f"CREATE TABLE @snapshots {_SNAPSHOT}",
    "CREATE TABLE @notes (number BIGINT PRIMARY KEY, body TEXT NOT NULL)",
)
"""Tables beside that of the events, whose types the two databases name differently."""


class Cursor(Protocol):
    """Database cursor: the part that both databases share."""

    @property
    def rowcount(self) -> int:
        """Number of rows that the last statement changed, in all of its executions."""

    def execute(self, query: str, values: Sequence[str | int] = ..., /) -> object:
        """Execute a statement."""

    def executemany(self, query: str, rows: Iterable[Sequence[str | int]], /) -> object:
        """Execute a statement once for each row."""

    # The columns depend on the statement, so the rows have no static type.
    def fetchall(self) -> list[Any]:
        """Return the rows that were found."""


class SqlStore(EventStore):
    """Event store of which a subclass opens the transactions."""

    prefix: ClassVar[str]
    mark: ClassVar[str]
    """Placeholder of a value."""

    def __init__(self) -> None:
        self._noting = threading.Lock()
        self._finished: set[int] = set()

    @abstractmethod
    def _write(self, work: Callable[[Cursor], T]) -> T:
        """Do work in one transaction that also writes which entries were done since the last one."""

    def _read(self, query: str, *values: str | int) -> list[Any]:
        """Return the rows that a query finds."""
        return self._write(lambda cursor: self._select(cursor, query, *values))

    def _sql(self, statement: str) -> str:
        """Write a statement as this database reads it."""
        return statement.replace("@", self.prefix).replace("?", self.mark)

    def _select(self, cursor: Cursor, query: str, *values: str | int) -> list[Any]:
        cursor.execute(self._sql(query), values)
        return cursor.fetchall()

    def _write_finished(self, cursor: Cursor) -> tuple[int, ...]:
        """Write which entries are done; `_settle` them once the transaction is committed."""
        with self._noting:
            finished = tuple(self._finished)
        update = self._sql("UPDATE @events SET done = TRUE WHERE sequence = ?")
        cursor.executemany(update, [(sequence,) for sequence in finished])
        return finished

    def _settle(self, finished: tuple[int, ...]) -> None:
        with self._noting:
            self._finished.difference_update(finished)

    def append(self, drafts: Sequence[Draft]) -> int:
        """Store entries, all or none; they are on disk when this returns the number of the last (0 if none)."""
        rows = [(*_row_of(each.key), each.kind, each.body, each.cause, each.done) for each in drafts]

        def insert(cursor: Cursor) -> int:
            cursor.executemany(self._sql(_INSERT), rows)
            return int(self._select(cursor, LAST)[0][0])

        return self._write(insert) if rows else 0

    def mark_done(self, sequence: int) -> None:
        """Note that an entry is done; it is written with the next entry, because repeated effects are harmless."""
        with self._noting:
            self._finished.add(sequence)

    def read(self) -> list[Entry]:
        """Read all entries, in order; an entry marked done since the last write may not show it yet."""
        return [
            Entry(
                sequence=sequence,
                key=Key(machine, RunId(run), number, phase),
                kind=kind,
                body=body,
                cause=cause,
                done=bool(done),
            )
            for sequence, machine, run, number, phase, kind, body, cause, done in self._read(SELECT)
        ]

    def drop(self, keys: Iterable[Key]) -> None:
        """Delete machines that are over, with their ongoing snapshots; entry numbers are never reused."""
        rows = [_row_of(key) for key in keys]
        self._write(lambda cursor: self._drop(cursor, rows))

    def _drop(self, cursor: Cursor, rows: Sequence[Sequence[str | int]]) -> int:
        """Delete entries and ongoing snapshots of machines, not their archives; return the number of entries."""
        cursor.executemany(self._sql(_FORGET_ENTRIES), rows)
        dropped = max(cursor.rowcount, 0)
        cursor.executemany(self._sql(_FORGET_ONGOING), rows)
        return dropped

    def drop_run(self, run: RunId) -> None:
        """Delete entries and ongoing snapshots of all machines of a run."""

        def delete(cursor: Cursor) -> None:
            cursor.execute(self._sql("DELETE FROM @events WHERE run = ?"), (run,))
            cursor.execute(self._sql("DELETE FROM @snapshots WHERE run = ?"), (run,))

        self._write(delete)

    def archive(self, archive: Archive) -> int | None:
        """Replace its machines' entries by an archive, unless an entry of its run is not done."""

        def write(cursor: Cursor) -> int | None:
            if self._select(cursor, "SELECT 1 FROM @events WHERE run = ? AND NOT done LIMIT 1", archive.run):
                return None
            over, ongoing = ([_row_of(each.key) for each in part] for part in (archive.over, archive.ongoing))
            dropped = self._drop(cursor, over + ongoing)
            cursor.executemany(self._sql(_FORGET_OVER), over)
            for insert, part in ((_INSERT_OVER, archive.over), (_INSERT_ONGOING, archive.ongoing)):
                rows = [(*_row_of(each.key), each.summary, each.body) for each in part]
                cursor.executemany(self._sql(insert), rows)
            cursor.executemany(self._sql(_INSERT_NOTE), archive.notes)
            return dropped

        return self._write(write)

    def read_ongoing(self) -> list[Snapshot]:
        """Read the snapshots of all ongoing machines; `read` returns the entries that followed."""
        return _snapshots(self._read("SELECT machine, run, round, phase, summary, body FROM @snapshots"))

    def find_over(self, kind: str, run: RunId, first: int = 0, last: int = 0) -> list[Snapshot]:
        """Read the machines of a kind and run that are over, from round `first` to `last`."""
        query = (
            "SELECT machine, run, round, phase, summary, body FROM @archive WHERE machine = ? AND run = ?"
            " AND round BETWEEN ? AND ? ORDER BY round, phase"
        )
        return _snapshots(self._read(query, kind, run, first, last))

    def read_summaries(self, kind: str) -> list[Snapshot]:
        """Read all machines of a kind that are over, without their bodies."""
        query = "SELECT machine, run, round, phase, summary, '' FROM @archive WHERE machine = ?"
        return _snapshots(self._read(query, kind))

    def read_notes(self, most: int) -> list[Note]:
        """Read the notes with the highest numbers, in order."""
        return self._read("SELECT number, body FROM @notes ORDER BY number DESC LIMIT ?", most)[::-1]


def _row_of(key: Key) -> tuple[str | int, ...]:
    """Return a machine's key as the columns that name a machine."""
    return (key.kind, key.run, key.round, key.phase)


def _snapshots(rows: Iterable[tuple[str, str, int, str, str, str]]) -> list[Snapshot]:
    return [
        Snapshot(Key(machine, RunId(run), number, phase), body, summary)
        for machine, run, number, phase, summary, body in rows
    ]


def refuse_other_version(version: int, place: str) -> None:
    """Raise `ConfigurationError` if another version of Hubbub wrote the store."""
    if version != VERSION:
        raise ConfigurationError(
            f"the event store {place} has version {version}, and this Hubbub knows {VERSION} alone:"
            " start the Hubbub that wrote it, or name another store"
        )
