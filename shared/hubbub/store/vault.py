"""What a party keeps secret for a run: keys, seeds, the group secret. It dies with the run.

It lies in the same file as the party's events and, at an aggregator, the journal: who loses one loses all, and can
never go on from half of it.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

from hubbub.ids import RunId
from hubbub.store.state_file import StateFile

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
