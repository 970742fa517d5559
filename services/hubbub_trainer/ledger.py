"""Ledger of models: the runs that this trainer ever began from each model, and the void rounds of each model.

If two runs begin from one model, in cohorts with and without a client, the difference of their sums is that
client's update. So a trainer begins one run from a model, unless its owner allows more. A run has a claim on its
model from the moment the model is known. The claim counts for ever once a share set of the run was sent; a run
that ends before that gives it up.

Runs that continue the same run begin from the same model, even if that model is not here yet.

The file outlives all runs and the party's other state.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hubbub.errors import ConfigurationError, LocalError
from hubbub.ids import PartyId, RunId
from hubbub.store.state_file import StateFile
from hubbub_trainer.fingerprint import Fingerprint

LEDGER_FILE = "ledger.sqlite"
COST = "two runs from one model, in cohorts with and without you, subtract to your update and to your scores"
SHOWN_DIGITS = 12
"""Digits of a digest that are shown to people."""

SCHEMA = """
CREATE TABLE IF NOT EXISTS models (model TEXT PRIMARY KEY, parts BLOB NOT NULL, allowed INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS runs (
    run TEXT PRIMARY KEY, model TEXT, predecessor TEXT, cohort TEXT NOT NULL, counted INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS voids (
    model TEXT NOT NULL, run TEXT NOT NULL, round INTEGER NOT NULL, PRIMARY KEY (model, run, round)
)
"""
FORGET_UNUSED = """
DELETE FROM models WHERE NOT allowed AND model NOT IN (SELECT model FROM runs WHERE model IS NOT NULL)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class BegunRun:
    """A run that began, or is about to begin, from a model."""

    run: RunId
    model: str | None
    """None while a successor waits for it."""
    cohort: tuple[PartyId, ...]
    counted: bool
    """True if a share set of the run was sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerEntry:
    """One model: its runs, its void rounds, and how many runs the owner allows beyond the policy."""

    model: str
    runs: tuple[BegunRun, ...]
    voids: int
    allowed: int
    """0 if the policy alone decides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The ledger's answer to a run that wants to begin from a model."""

    granted: bool
    limit: int
    """The most runs that may begin from the model."""
    earlier: tuple[BegunRun, ...]
    voids: int
    """Void rounds of the model, in any run."""


def explain_refusal(claim: Claim, max_voids: int) -> str:
    """Explain to the data owner why a run may not begin from its model, and the remedy; empty if it may."""
    if claim.granted and claim.voids <= max_voids:
        return ""
    if claim.granted:
        return (
            f"{claim.voids} rounds of the model that this run begins from were void or did not move it, and the "
            f"policy allows {max_voids}: ask for a manifest with a fresh seed, or edit max_void_rounds_per_model "
            "in the policy file"
        )
    runs = "; ".join(f"run {each.run[:SHOWN_DIGITS]} of {', '.join(each.cohort)}" for each in claim.earlier)
    known = next((each.model for each in claim.earlier if each.model), None)
    allow = f"`hubbub ledger allow {known[:SHOWN_DIGITS]}`" if known else "max_runs_per_model in the policy file"
    return (
        f"this run begins from the same model as {runs}, and {claim.limit} may begin there, since {COST}. Ask for "
        f"a manifest with a fresh seed. If the task's model ignores the seed (pretrained weights), {allow} lets "
        "another run begin from it"
    )


class Ledger:
    """The ledger of one trainer, in an SQLite file of its own."""

    def __init__(self, path: Path) -> None:
        self._file = StateFile(path)
        with self._file.transaction() as database:
            for statement in SCHEMA.split(";"):
                database.execute(statement)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    # Runs -----------------------------------------------------------------------------------------------

    def claim(
        self,
        run: RunId,
        model: Fingerprint | None,
        *,
        cohort: Sequence[PartyId],
        predecessor: RunId | None,
        limit: int,
    ) -> Claim:
        """Let a run begin from a model if fewer than `limit` others do; the model may still be unknown.

        A run may claim again: with the model, or after a restart.
        """
        with self._file.transaction() as database:
            same = set() if model is None else _find_same(database, model)
            runs = [each for each in _list_runs(database, same, predecessor) if each.run != run]
            limit = max(limit, _read_allowed(database, same | {each.model for each in runs if each.model}))
            granted = len(runs) < limit
            if granted:
                _write_claim(database, run, model, cohort, predecessor)
            return Claim(granted=granted, limit=limit, earlier=tuple(runs), voids=len(_find_voids(database, same)))

    def count(self, run: RunId) -> None:
        """Count a run for ever: its first share set is about to be sent."""
        with self._file.using() as database:
            row = database.execute("SELECT counted FROM runs WHERE run = ?", (run,)).fetchone()
            if row is None:
                raise LocalError("the ledger of models does not know this run: nothing is sent")
            if not row[0]:
                database.execute("UPDATE runs SET counted = 1 WHERE run = ?", (run,))

    def give_up(self, run: RunId) -> None:
        """Delete the claim of a run that is over, unless it counts."""
        self._forget([run])

    def keep_only(self, open_runs: Collection[RunId]) -> None:
        """Delete the claims of all runs that do not count and are no longer open."""
        with self._file.using() as database:
            claims = [RunId(run) for (run,) in database.execute("SELECT run FROM runs WHERE NOT counted")]
        self._forget(run for run in claims if run not in open_runs)

    def _forget(self, runs: Iterable[RunId]) -> None:
        with self._file.transaction() as database:
            database.executemany("DELETE FROM runs WHERE run = ? AND NOT counted", [(run,) for run in runs])
            database.execute(FORGET_UNUSED)

    # Void rounds ----------------------------------------------------------------------------------------

    def count_voids(self, model: str, *, run: RunId, but_not: int) -> int:
        """Count the void rounds of a model in all runs, without one round of this run."""
        with self._file.using() as database:
            return len(_find_voids(database, [model]) - {(run, but_not)})

    def note_void(self, models: Sequence[str], *, run: RunId, number: int | None) -> None:
        """Note a void round of models that count as the same; void rounds of any of them count for all.

        Without a number there is no new round to note.
        """
        with self._file.transaction() as database:
            rounds = _find_voids(database, models) | (set() if number is None else {(run, number)})
            rows = [(model, *each) for model in models for each in sorted(rounds)]
            database.executemany("INSERT OR IGNORE INTO voids VALUES (?, ?, ?)", rows)

    # The owner's side -----------------------------------------------------------------------------------

    def list_entries(self) -> list[LedgerEntry]:
        """List all models, by name."""
        with self._file.using() as database:
            names = [name for (name,) in database.execute("SELECT model FROM models ORDER BY model")]
            return [
                LedgerEntry(
                    model=name,
                    runs=tuple(_list_runs(database, {name})),
                    voids=len(_find_voids(database, [name])),
                    allowed=_read_allowed(database, {name}),
                )
                for name in names
            ]

    def allow(self, model: str, runs: int | None = None) -> LedgerEntry:
        """Set the number of runs allowed from a model, named by the start of its digest; by default one more."""
        entries = self.list_entries()
        found = [entry for entry in entries if entry.model.startswith(model.lower())]
        if len(found) != 1:
            known = ", ".join(entry.model[:SHOWN_DIGITS] for entry in entries) or "none"
            problem = f"{len(found)} models begin with {model!r}" if found else f"no model begins with {model!r}"
            raise ConfigurationError(f"{problem}: the ledger has {known}")
        (entry,) = found
        with self._file.transaction() as database:
            (parts,) = database.execute("SELECT parts FROM models WHERE model = ?", (entry.model,)).fetchone()
            same = _find_same(database, Fingerprint.unpack(entry.model, parts))
            allowed = runs or len([*_list_runs(database, same)]) + 1
            database.execute("UPDATE models SET allowed = ? WHERE model = ?", (allowed, entry.model))
        return replace(entry, allowed=allowed)


def _find_same(database: sqlite3.Connection, model: Fingerprint) -> set[str]:
    """Return the names of all models in the ledger that are the same as this one, and its own."""
    rows = database.execute("SELECT model, parts FROM models")
    return {model.model, *(name for name, parts in rows if Fingerprint.unpack(name, parts).is_same(model))}


def _list_runs(
    database: sqlite3.Connection, models: Collection[str], predecessor: RunId | None = None
) -> Iterator[BegunRun]:
    """List the runs that began from one of these models, or continue this run, in the order of their claims."""
    for run, model, before, cohort, counted in database.execute("SELECT * FROM runs ORDER BY rowid"):
        if model in models or (before is not None and before == predecessor):
            clients = tuple(PartyId(name) for name in json.loads(cohort))
            yield BegunRun(run=RunId(run), model=model, cohort=clients, counted=bool(counted))


def _read_allowed(database: sqlite3.Connection, models: Collection[str]) -> int:
    """Return the largest number of runs that the owner allows from any of these models; 0 if none is set."""
    return max(
        (count for name, count in database.execute("SELECT model, allowed FROM models") if name in models),
        default=0,
    )


def _write_claim(
    database: sqlite3.Connection,
    run: RunId,
    model: Fingerprint | None,
    cohort: Sequence[PartyId],
    predecessor: RunId | None,
) -> None:
    if model is not None:
        database.execute("INSERT OR IGNORE INTO models VALUES (?, ?, 0)", (model.model, model.pack()))
    database.execute(
        "INSERT INTO runs VALUES (?, ?, ?, ?, 0) ON CONFLICT (run) DO UPDATE SET model = excluded.model",
        (run, model.model if model else None, predecessor, json.dumps(list(cohort))),
    )


def _find_voids(database: sqlite3.Connection, models: Iterable[str]) -> set[tuple[str, int]]:
    found = (database.execute("SELECT run, round FROM voids WHERE model = ?", (model,)) for model in models)
    return {(run, number) for rows in found for run, number in rows}
