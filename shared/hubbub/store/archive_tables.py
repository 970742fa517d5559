"""SQL statements for archives, the same for both databases but for names and placeholders."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from hubbub.ids import RunId
from hubbub.machine.effects import Key
from hubbub.store.base import Archive, Note, Snapshot, row_of_key


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


class ArchiveTables:
    """Tables of archives, snapshots and notes. Names begin with `prefix`; `mark` is the placeholder of a value."""

    def __init__(self, prefix: str, mark: str) -> None:
        key = f"machine = {mark} AND run = {mark} AND round = {mark} AND phase = {mark}"
        archive, snapshots, notes = f"{prefix}archive", f"{prefix}snapshots", f"{prefix}notes"
        columns = (
            "machine TEXT NOT NULL, run TEXT NOT NULL, round INTEGER NOT NULL, phase TEXT NOT NULL,"
            " summary TEXT NOT NULL, body TEXT NOT NULL, PRIMARY KEY (machine, run, round, phase)"
        )
        values = ", ".join([mark] * 6)
        found = "machine, run, round, phase, summary"
        self.tables = (
            f"CREATE TABLE {archive} ({columns})",
            f"CREATE TABLE {snapshots} ({columns})",
            f"CREATE TABLE {notes} (number BIGINT PRIMARY KEY, body TEXT NOT NULL)",
        )
        # All are composed of constants only.
        self._undone = f"SELECT 1 FROM {prefix}events WHERE run = {mark} AND NOT done LIMIT 1"  # noqa: S608
        self._forget = f"DELETE FROM {prefix}events WHERE {key}"  # noqa: S608
        self._forget_run = (
            f"DELETE FROM {prefix}events WHERE run = {mark}",  # noqa: S608
            f"DELETE FROM {snapshots} WHERE run = {mark}",  # noqa: S608
        )
        self._forget_ongoing = f"DELETE FROM {snapshots} WHERE {key}"  # noqa: S608
        self._forget_over = f"DELETE FROM {archive} WHERE {key}"  # noqa: S608
        self._insert_over = f"INSERT INTO {archive} VALUES ({values})"  # noqa: S608
        self._insert_ongoing = f"INSERT INTO {snapshots} VALUES ({values})"  # noqa: S608
        self._insert_note = f"INSERT INTO {notes} VALUES ({mark}, {mark}) ON CONFLICT DO NOTHING"  # noqa: S608
        self._ongoing = f"SELECT {found}, body FROM {snapshots}"  # noqa: S608
        self._over = (
            f"SELECT {found}, body FROM {archive} WHERE machine = {mark} AND run = {mark}"  # noqa: S608
            f" AND round BETWEEN {mark} AND {mark} ORDER BY round, phase"
        )
        self._summaries = f"SELECT {found}, '' FROM {archive} WHERE machine = {mark}"  # noqa: S608
        self._notes = f"SELECT number, body FROM {notes} ORDER BY number DESC LIMIT {mark}"  # noqa: S608

    def drop(self, cursor: Cursor, keys: Iterable[Key]) -> int:
        """Delete entries and ongoing snapshots of machines, not their archives; return the number of entries."""
        rows = [row_of_key(key) for key in keys]
        cursor.executemany(self._forget, rows)
        dropped = max(cursor.rowcount, 0)
        cursor.executemany(self._forget_ongoing, rows)
        return dropped

    def drop_run(self, cursor: Cursor, run: RunId) -> None:
        """Delete entries and ongoing snapshots of all machines of a run."""
        for statement in self._forget_run:
            cursor.execute(statement, (run,))

    def write(self, cursor: Cursor, archive: Archive) -> int | None:
        """Write an archive inside a transaction, or return None if an entry of its run is not done."""
        cursor.execute(self._undone, (archive.run,))
        if cursor.fetchall():
            return None
        dropped = self.drop(cursor, (each.key for each in (*archive.over, *archive.ongoing)))
        cursor.executemany(self._forget_over, [row_of_key(each.key) for each in archive.over])
        cursor.executemany(self._insert_over, map(_row_of, archive.over))
        cursor.executemany(self._insert_ongoing, map(_row_of, archive.ongoing))
        cursor.executemany(self._insert_note, archive.notes)
        return dropped

    def read_ongoing(self, cursor: Cursor) -> list[Snapshot]:
        """Read the snapshots of all ongoing machines."""
        cursor.execute(self._ongoing)
        return [_snapshot_of(*row) for row in cursor.fetchall()]

    def find_over(self, cursor: Cursor, kind: str, run: RunId, first: int, last: int) -> list[Snapshot]:
        """Read the machines of a kind and run that are over, from round `first` to `last`."""
        cursor.execute(self._over, (kind, run, first, last))
        return [_snapshot_of(*row) for row in cursor.fetchall()]

    def read_summaries(self, cursor: Cursor, kind: str) -> list[Snapshot]:
        """Read all machines of a kind that are over, without their bodies."""
        cursor.execute(self._summaries, (kind,))
        return [_snapshot_of(*row) for row in cursor.fetchall()]

    def read_notes(self, cursor: Cursor, most: int) -> list[Note]:
        """Read the notes with the highest numbers, in order."""
        cursor.execute(self._notes, (most,))
        return cursor.fetchall()[::-1]


def _row_of(snapshot: Snapshot) -> tuple[str | int, ...]:
    return (*row_of_key(snapshot.key), snapshot.summary, snapshot.body)


def _snapshot_of(machine: str, run: str, number: int, phase: str, summary: str, body: str) -> Snapshot:
    return Snapshot(Key(machine, RunId(run), number, phase), body, summary)
