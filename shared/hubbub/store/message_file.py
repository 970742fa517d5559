"""Messages that wait at a broker inside the process, in a file, for when that process ends."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hubbub.store.state_file import StateFile

SCHEMA = """
CREATE TABLE IF NOT EXISTS messages (
    number INTEGER PRIMARY KEY, queue TEXT NOT NULL, user TEXT NOT NULL, body BLOB NOT NULL
)
"""


class MessageFile:
    """Waiting messages by queue. What was added is on disk, and what was removed never comes back."""

    def __init__(self, path: Path) -> None:
        self._file = StateFile(path)
        with self._file.using() as database:
            database.execute(SCHEMA)

    def add(self, queue: str, user: str, body: bytes) -> int:
        """Add a message, and return its number."""
        with self._file.using() as database:
            found = database.execute(
                "INSERT INTO messages (queue, user, body) VALUES (?, ?, ?)", (queue, user, body)
            )
            return found.lastrowid or 0

    def remove(self, number: int) -> None:
        """Remove a message."""
        with self._file.using() as database:
            database.execute("DELETE FROM messages WHERE number = ?", (number,))

    def read(self, queue: str) -> Sequence[tuple[int, str, bytes]]:
        """Return number, user and body of a queue's messages, the oldest first."""
        with self._file.using() as database:
            query = "SELECT number, user, body FROM messages WHERE queue = ? ORDER BY number"
            return database.execute(query, (queue,)).fetchall()

    def close(self) -> None:
        """Close the file."""
        self._file.close()
