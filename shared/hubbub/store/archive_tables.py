"""Statements that change or read archives: the same for both databases, but for names and placeholders."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from hubbub.ids import RunId
from hubbub.machine.effects import Key
from hubbub.store.base import Archive, Note, Snapshot, row_of_key


class Cursor(Protocol):
    """As far as both databases have the same."""

    @property
    def rowcount(self) -> int:
        """How many rows the last statement changed, all of its executions together."""

    def execute(self, query: str, values: Sequence[str | int] = ..., /) -> object:
        """Execute a statement."""

    def executemany(self, query: str, rows: Iterable[Sequence[str | int]], /) -> object:
        """Execute a statement once for each row."""

    # Rows are as wide as the statement says, which no type knows.
    def fetchall(self) -> list[Any]:
        """The rows that were found."""


class ArchiveTables:
    """The tables beside that of events. Names begin with `prefix`, and `mark` stands for a value."""

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
        # All are put together from constants only.
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
        """Forget machines, whatever is kept of those that are over; gives the number of entries that went."""
        rows = [row_of_key(key) for key in keys]
        cursor.executemany(self._forget, rows)
        dropped = max(cursor.rowcount, 0)
        cursor.executemany(self._forget_ongoing, rows)
        return dropped

    def drop_run(self, cursor: Cursor, run: RunId) -> None:
        """Forget all machines of a run."""
        for statement in self._forget_run:
            cursor.execute(statement, (run,))

    def write(self, cursor: Cursor, archive: Archive) -> int | None:
        """Write an archive inside a transaction, or nothing if something of its run is not done."""
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
        """Snapshots of all machines that go on."""
        cursor.execute(self._ongoing)
        return [_snapshot_of(*row) for row in cursor.fetchall()]

    def find_over(self, cursor: Cursor, kind: str, run: RunId, first: int, last: int) -> list[Snapshot]:
        """Machines of a kind that are over, of one run, from one round to another."""
        cursor.execute(self._over, (kind, run, first, last))
        return [_snapshot_of(*row) for row in cursor.fetchall()]

    def read_summaries(self, cursor: Cursor, kind: str) -> list[Snapshot]:
        """All machines of a kind that are over, without their bodies."""
        cursor.execute(self._summaries, (kind,))
        return [_snapshot_of(*row) for row in cursor.fetchall()]

    def read_notes(self, cursor: Cursor, most: int) -> list[Note]:
        """The last notes."""
        cursor.execute(self._notes, (most,))
        return cursor.fetchall()[::-1]


def _row_of(snapshot: Snapshot) -> tuple[str | int, ...]:
    return (*row_of_key(snapshot.key), snapshot.summary, snapshot.body)


def _snapshot_of(machine: str, run: str, number: int, phase: str, summary: str, body: str) -> Snapshot:
    return Snapshot(Key(machine, RunId(run), number, phase), body, summary)
