"""Journal of phase outcomes, written once and kept across crashes.

A phase is *released* over one member set, or *void*. All phases of a round have the same member set, but a phase
that may lose members has a subset of those before; all scores phases of a run have one of their own. A phase takes
one share set of each client. An entry is committed and synced before anything leaves this aggregator, and never
changes: the same entry again is accepted, any other is refused.
The state machines enforce the same rules; the journal still enforces them after a crash.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hubbub.errors import PeerError, RejectReason
from hubbub.ids import PartyId, SetId
from hubbub.machine.effects import Key
from hubbub.store.state_file import StateFile
from hubbub.strategies.scores import SCORES


@dataclass(frozen=True, slots=True)
class PhaseOutcome:
    """Outcome of a phase: released over members, or void if there are none."""

    members: tuple[PartyId, ...]

    @property
    def word(self) -> str:
        """Released or void."""
        return "released" if self.members else "void"


VERDICTS = """
CREATE TABLE IF NOT EXISTS verdicts (
    run TEXT NOT NULL, round INTEGER NOT NULL, phase TEXT NOT NULL, members TEXT NOT NULL,
    PRIMARY KEY (run, round, phase)
) WITHOUT ROWID
"""
SETS = """
CREATE TABLE IF NOT EXISTS sets (
    run TEXT NOT NULL, round INTEGER NOT NULL, phase TEXT NOT NULL, client TEXT NOT NULL, set_id TEXT NOT NULL,
    PRIMARY KEY (run, round, phase, client)
) WITHOUT ROWID
"""


class Journal:
    """Journal in two tables of the party's state file, which syncs on every commit."""

    def __init__(self, file: StateFile | Path) -> None:
        self._file = StateFile.of(file)
        for table in (VERDICTS, SETS):
            self._write(table, ())

    def record(self, key: Key, members: Sequence[PartyId], *, may_lose: bool = False) -> None:
        """Write a verdict; no members means void. It is on disk when this returns."""
        self.check(key, members, may_lose=may_lose)
        row = (key.run, key.round, key.phase, json.dumps(list(members)))
        self._write("INSERT INTO verdicts VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING", row)
        self.check(key, members, may_lose=may_lose)

    def check(self, key: Key, members: Sequence[PartyId], *, may_lose: bool = False) -> None:
        """Raise `PeerError` if a verdict contradicts the journal.

        All phases of a round end alike, or over fewer if the phase may lose members. Scores are released over one
        member set in a run: two sums that differ by one client reveal its scores.
        """
        written = self.find(key)
        if written == PhaseOutcome(tuple(members)):
            return
        if written is not None:
            raise PeerError(RejectReason.ALREADY_ENDED, f"{key} has ended as {written.word} already")
        if key.phase == SCORES.name:
            why = "scores were released over other members before in this run"
            rows = self._read(
                "SELECT members FROM verdicts WHERE run = ? AND phase = ? AND members != '[]'",
                (key.run, key.phase),
            )
        else:
            why = f"a phase of round {key.round} has ended void or over other members"
            rows = self._read(
                "SELECT members FROM verdicts WHERE run = ? AND round = ? AND phase != ?",
                (key.run, key.round, SCORES.name),
            )
        named, others = frozenset(members), [frozenset[PartyId](json.loads(row[0])) for row in rows]
        if named and not all(named == each or (may_lose and named < each) for each in others):
            raise PeerError(RejectReason.DIFFERENT_MEMBERS, why)

    def record_set(self, key: Key, client: PartyId, set_id: SetId) -> None:
        """Write which set of a client this phase takes; it is on disk when this returns."""
        row = (key.run, key.round, key.phase, client, set_id)
        self._write("INSERT INTO sets VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING", row)
        if self.find_set(key, client) != set_id:
            raise PeerError(RejectReason.SECOND_SET, f"{client} has sent another share set in this phase")

    def find(self, key: Key) -> PhaseOutcome | None:
        """Return the verdict on a phase, if there is one."""
        rows = self._read(
            "SELECT members FROM verdicts WHERE run = ? AND round = ? AND phase = ?",
            (key.run, key.round, key.phase),
        )
        return PhaseOutcome(tuple(json.loads(rows[0][0]))) if rows else None

    def find_set(self, key: Key, client: PartyId) -> SetId | None:
        """Return the id of the set that a phase took of a client, if it took one."""
        rows = self._read(
            "SELECT set_id FROM sets WHERE run = ? AND round = ? AND phase = ? AND client = ?",
            (key.run, key.round, key.phase, client),
        )
        return SetId(rows[0][0]) if rows else None

    def _write(self, statement: str, row: tuple[str | int, ...]) -> None:
        with self._file.using() as database:
            database.execute(statement, row)

    def _read(self, query: str, row: tuple[str | int, ...]) -> list[tuple[str, ...]]:
        with self._file.using() as database:
            return database.execute(query, row).fetchall()

    def close(self) -> None:
        """Close the file, once nobody is using it."""
        self._file.close()
