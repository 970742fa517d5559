"""Interface of an event store.

A machine's state follows from its events, so a party that stores every event can be rebuilt by replaying them. An
entry is on disk when `append` returns, before anything that follows from the event leaves the party. An entry is
*done* when all effects of its step have happened; effects of entries that are not done are repeated after a
restart.

Entries of what is over need not be replayed for ever: an `Archive` replaces them in one transaction. It has
snapshots of machines that are over, snapshots of ongoing machines, and notes, which are numbered texts.

A call that fails raises `StorageFailed`, which says what to do. Nothing of that call is then in the store, and it
can be used again as soon as there is room, or the database answers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from hubbub.ids import RunId
from hubbub.machine.effects import Key


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """Stored event of one machine, or its beginning."""

    sequence: int
    key: Key
    kind: str
    body: str
    cause: str
    """Entry whose effect sent this event from another machine, so that it is sent once; else empty."""
    done: bool


@dataclass(frozen=True, slots=True)
class Draft:
    """Entry to be stored."""

    key: Key
    kind: str
    body: str
    cause: str = ""
    done: bool = False
    """True if the event has no effects, and so is done at once."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """State of a machine: how it ended, or how far it has come."""

    key: Key
    body: str
    summary: str = ""
    """Short text that is read for all machines of a kind that are over."""


Note = tuple[int, str]
"""Unique number and text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Archive:
    """Replacement of a run's entries."""

    run: RunId
    over: tuple[Snapshot, ...] = ()
    """Machines that are over; earlier snapshots of them are replaced."""
    ongoing: tuple[Snapshot, ...] = ()
    """Machines that go on from here."""
    notes: tuple[Note, ...] = ()
    """Notes to add; a note that is there already stays as it is."""


class EventStore(ABC):
    """Events in the order in which they were taken. Thread-safe: callers wait for each other."""

    place = "the event store"
    """Location of the events, for messages to an operator."""

    @abstractmethod
    def append(self, drafts: Sequence[Draft]) -> int:
        """Store entries, all or none; they are on disk when this returns the number of the last (0 if none)."""

    def together(self) -> AbstractContextManager[object]:
        """Make one `append` inside atomic with other writes to the same file.

        A store that shares its file with nothing has nothing to do.
        """
        return nullcontext()

    @abstractmethod
    def mark_done(self, sequence: int) -> None:
        """Note that all effects of an event have happened; it may be on disk only with the next entry."""

    @abstractmethod
    def read(self) -> list[Entry]:
        """Read all entries, in order; an entry marked done since the last write may not show it yet."""

    @abstractmethod
    def drop(self, keys: Iterable[Key]) -> None:
        """Delete machines that are over, with their ongoing snapshots; entry numbers are never reused."""

    @abstractmethod
    def drop_run(self, run: RunId) -> None:
        """Delete entries and ongoing snapshots of all machines of a run."""

    @abstractmethod
    def archive(self, archive: Archive) -> int | None:
        """Replace its machines' entries by an archive in one transaction; return the number of deleted entries.

        If an entry of the run is not done, return None and change nothing: its effects, or its event to another
        machine, would be lost or happen twice.
        """

    @abstractmethod
    def read_ongoing(self) -> list[Snapshot]:
        """Read the snapshots of all ongoing machines; `read` returns the entries that followed."""

    @abstractmethod
    def find_over(self, kind: str, run: RunId, first: int = 0, last: int = 0) -> list[Snapshot]:
        """Read the machines of a kind and run that are over, from round `first` to `last`."""

    @abstractmethod
    def read_summaries(self, kind: str) -> list[Snapshot]:
        """Read all machines of a kind that are over, without their bodies."""

    @abstractmethod
    def read_notes(self, most: int) -> list[Note]:
        """Read the notes with the highest numbers, in order."""

    @abstractmethod
    def close(self) -> None:
        """Write what is pending, and close."""
