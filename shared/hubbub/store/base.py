"""The interface of an event store.

A machine is what its events made of it, so a party that keeps every event can be rebuilt by taking the same steps
again. An entry is on disk when `append` returns, before anything that follows from the event leaves the party. An
entry is *done* when all that its step asked for has happened; those that are not are done again after a restart.

Entries of what is over need not be replayed for ever: an `Archive` takes their place in one transaction. It has
snapshots of machines, of those that are over and of those that go on, and notes, which are numbered texts.

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
    done: bool = False
    """Whether it asks for nothing, and so is done at once."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A machine as its entries made it: how it ended, or how far it has come."""

    key: Key
    body: str
    summary: str = ""
    """What is read at once of all machines of a kind that are over; short."""


Note = tuple[int, str]
"""A number, which no other note has, and a text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Archive:
    """What takes the place of a run's entries."""

    run: RunId
    over: tuple[Snapshot, ...] = ()
    """Of machines that are over; what was there of them is replaced."""
    ongoing: tuple[Snapshot, ...] = ()
    """Of machines that go on from here."""
    notes: tuple[Note, ...] = ()
    """Those that are there already stay as they are."""


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
        """Forget machines that are over, snapshots too; their entries' numbers are never given again."""

    @abstractmethod
    def drop_run(self, run: RunId) -> None:
        """Forget all machines of a run."""

    @abstractmethod
    def archive(self, archive: Archive) -> int | None:
        """Put an archive in the place of its machines' entries, at once; gives the number of entries that went.

        While an entry of the run is not done, nothing happens and this gives None: it, or what it told another
        machine, would be lost or be done twice.
        """

    @abstractmethod
    def read_ongoing(self) -> list[Snapshot]:
        """Snapshots of all machines that go on; entries that followed are read as all others."""

    @abstractmethod
    def find_over(self, kind: str, run: RunId, first: int = 0, last: int = 0) -> list[Snapshot]:
        """Machines of a kind that are over, of one run, from one round to another."""

    @abstractmethod
    def read_summaries(self, kind: str) -> list[Snapshot]:
        """All machines of a kind that are over, without their bodies."""

    @abstractmethod
    def read_notes(self, most: int) -> list[Note]:
        """The notes with the highest numbers, in order."""

    @abstractmethod
    def close(self) -> None:
        """Write what is still to be written, and close."""


# Both databases have tables of the same columns.
VERSION = 2
"""Of the tables; a store of another version is refused, because what is not understood must not be written to."""
INSERTED = "machine, run, round, phase, kind, body, cause, done"
COLUMNS = f"sequence, {INSERTED}"


def row_of(draft: Draft) -> tuple[str | int, ...]:
    """A draft as the columns `INSERTED`."""
    return (*row_of_key(draft.key), draft.kind, draft.body, draft.cause, draft.done)


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


def refuse_other_version(version: int, place: str) -> None:
    """Leave alone what another version wrote."""
    if version != VERSION:
        raise ConfigurationError(
            f"the event store {place} has version {version}, and this Hubbub knows {VERSION} alone:"
            " start the Hubbub that wrote it, or name another store"
        )
