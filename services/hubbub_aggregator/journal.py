"""The journal: how each phase ended, once and for all, across crashes.

A phase of a round is *released* over one member set or *void*. The entry is committed and synced before
anything leaves this aggregator, and it is never changed: the same verdict again is accepted in silence, any
other is refused.
"""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hubbub.errors import LocalError, PeerError, RejectReason
from hubbub.ids import PartyId
from hubbub.machine.effects import Key


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a phase ended: released over members, or void if there are none."""

    members: tuple[PartyId, ...]

    @property
    def word(self) -> str:
        """Released or void."""
        return "released" if self.members else "void"


class Journal:
    """An SQLite file that syncs on every commit."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._database = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
            self._database.execute("PRAGMA journal_mode = WAL")
            self._database.execute("PRAGMA synchronous = FULL")
            self._database.execute(
                "CREATE TABLE IF NOT EXISTS verdicts ("
                " run TEXT NOT NULL, round INTEGER NOT NULL, phase TEXT NOT NULL, members TEXT NOT NULL,"
                " PRIMARY KEY (run, round, phase)) WITHOUT ROWID"
            )
        except sqlite3.Error as error:
            raise LocalError(f"the journal {path} cannot be used: {error}") from None
        self._lock = threading.Lock()

    def record(self, key: Key, members: Sequence[PartyId]) -> None:
        """Write a verdict; no members means void. It is on disk when this returns."""
        with self._lock:
            try:
                self._database.execute(
                    "INSERT INTO verdicts VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING",
                    (key.run, key.round, key.phase, json.dumps(list(members))),
                )
            except sqlite3.Error as error:
                raise LocalError(f"the journal could not be written: {error}") from None
        written = self.find(key)
        if written != Verdict(tuple(members)):
            word = written.word if written else "missing"
            raise PeerError(RejectReason.ALREADY_ENDED, f"{key} has ended as {word} already")

    def find(self, key: Key) -> Verdict | None:
        """The verdict on a phase, if there is one."""
        with self._lock:
            try:
                row = self._database.execute(
                    "SELECT members FROM verdicts WHERE run = ? AND round = ? AND phase = ?",
                    (key.run, key.round, key.phase),
                ).fetchone()
            except sqlite3.Error as error:
                raise LocalError(f"the journal could not be read: {error}") from None
        return Verdict(tuple(json.loads(row[0]))) if row else None

    def close(self) -> None:
        """Close the file."""
        self._database.close()
