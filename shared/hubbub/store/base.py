"""The interface of an event store.

A machine is what its events made of it, so a party that keeps every event can be rebuilt by taking the same steps
again. An entry is on disk when `append` returns, before anything that follows from the event leaves the party. An
entry is *done* when all that its step asked for has happened; those that are not are done again after a restart.

What cannot be kept or read is a `StorageFailed` that says what to do. Nothing of that call is then in the store,
and it can be used again as soon as there is room, or a database that answers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from hubbub.errors import ConfigurationError
from hubbub.ids import RunId
from hubbub.machine.effects import Key


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One event of one machine, or its beginning."""

    sequence: int
    key: Key
    kind: str
    body: str
    cause: str
    """Of an event that another machine told: which entry's effect it was, so that it is told once."""
    done: bool


@dataclass(frozen=True, slots=True)
class Draft:
    """An entry that is to be kept."""

    key: Key
    kind: str
    body: str
    cause: str = ""


class EventStore(ABC):
    """Events in the order in which they were taken. Several threads may call it: they wait for each other."""

    place = "the event store"
    """Where the events are, in words for an operator."""

    @abstractmethod
    def append(self, drafts: Sequence[Draft]) -> int:
        """Keep entries, all or none; they are on disk when this returns the number of the last (0 of none)."""

    def together(self) -> AbstractContextManager[object]:
        """What is appended inside, once, is kept together with what others write to the same file, or none of it.

        A store in a place of its own has nothing to keep it together with.
        """
        return nullcontext()

    @abstractmethod
    def mark_done(self, sequence: int) -> None:
        """Note that all is done that an event asked for; it may be on disk only with the next entry."""

    @abstractmethod
    def read(self) -> list[Entry]:
        """All entries, in order; what was marked done since the last write may not show yet."""

    @abstractmethod
    def drop(self, keys: Iterable[Key]) -> None:
        """Forget machines that are over; their entries' numbers are never given again."""

    @abstractmethod
    def drop_run(self, run: RunId) -> None:
        """Forget all machines of a run."""

    @abstractmethod
    def close(self) -> None:
        """Write what is still to be written, and close."""


# Both databases have one table of the same columns.
VERSION = 1
"""Of the tables; a store of a later version is refused, because what is not understood must not be written to."""
INSERTED = "machine, run, round, phase, kind, body, cause"
COLUMNS = f"sequence, {INSERTED}, done"


def row_of(draft: Draft) -> tuple[str | int, ...]:
    """A draft as the columns `INSERTED`."""
    return (*row_of_key(draft.key), draft.kind, draft.body, draft.cause)


def row_of_key(key: Key) -> tuple[str | int, ...]:
    """A machine's key as the columns that name a machine."""
    return (key.kind, key.run, key.round, key.phase)


def entry_of(row: tuple[int, str, str, int, str, str, str, str, int]) -> Entry:
    """Read an entry from its `COLUMNS`."""
    sequence, machine, run, number, phase, kind, body, cause, done = row
    return Entry(
        sequence=sequence,
        key=Key(machine, RunId(run), number, phase),
        kind=kind,
        body=body,
        cause=cause,
        done=bool(done),
    )


def refuse_later_version(version: int, place: str) -> None:
    """Leave alone what a later version wrote."""
    if version > VERSION:
        raise ConfigurationError(
            f"the event store {place} has version {version}, and this Hubbub knows {VERSION} at most:"
            " start the Hubbub that wrote it, or name another store"
        )
