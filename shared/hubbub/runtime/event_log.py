"""The machines of one party, and the entries in its event store that made them what they are.

Every entry is one event of one machine, but for two kinds: `BEGINNING` sets a machine up, and `RESUMED` moves its
timers after a restart.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from hubbub.errors import LocalError
from hubbub.ids import RunId
from hubbub.machine.effects import Key, SetTimer
from hubbub.machine.table import Kind, Step
from hubbub.runtime.clock import Clock
from hubbub.store.base import Archive, Draft, EventStore, Snapshot
from hubbub.store.event_codec import EventCodec

BEGINNING = "beginning"
"""The kind of the entry that sets a machine up; what it holds is the machine's data."""
RESUMED = "resumed"
"""The kind of the entry by which a restart moves a machine's timers: when that was, and by how many seconds."""
NEWEST = Key("newest", RunId(""))
"""The snapshot of no machine, which says when the newest event happened whose entry may be gone."""


@dataclass(slots=True)
class RunningMachine:
    """A machine that is running. Its kind is typed where it is declared; here all machines mix."""

    kind: Kind[Any, Any]
    state: Enum
    data: Any
    kept: bool = False
    """True once the store knows of it."""
    entries: int = field(default=0, compare=False)
    """The number of its entries there."""
    moved_s: float = field(default=0.0, compare=False)
    """The time by which restarts have moved the timers that it set last."""


@dataclass(frozen=True, slots=True)
class Transition:
    """One step, as an observer sees it."""

    sequence: int
    """The number of the event's entry in the store: it goes up, and stays the same across restarts."""
    key: Key
    before: Enum
    event: object
    after: Enum
    data: object
    at_s: float
    earlier: object
    """The machine's data before the event."""


Observer = Callable[[Transition], None]


class EventLog:
    """The machines of one party with their entries. `timed` is told how many seconds a write to the store took."""

    def __init__(
        self, store: EventStore, kinds: Mapping[str, Kind[Any, Any]], clock: Clock, timed: Callable[[float], None]
    ) -> None:
        self.store = store
        self.machines: dict[Key, RunningMachine] = {}
        self.codec = EventCodec(shape for kind in kinds.values() for shape in (kind.data, *kind.events))
        self.entries = 0
        """The number of entries of all machines."""
        self.newest_s = 0.0
        """The time of the newest event in the store, as far as events say."""
        self._kinds = kinds
        self._clock = clock
        self._timed = timed
        self._finished: list[int] = []

    def find_kind(self, key: Key) -> Kind[Any, Any]:
        """Find the kind of a machine that the store holds."""
        kind = self._kinds.get(key.kind)
        if kind is None:
            raise LocalError(f"the store holds a machine {key}, which this service does not have")
        return kind

    def add(self, key: Key, data: object) -> None:
        """Set a machine up in its initial state; it is kept with its first event."""
        if key in self.machines:
            raise LocalError(f"machine {key} is running already")
        kind = self._kinds[key.kind]
        self.machines[key] = RunningMachine(kind, kind.initial, data)

    def draft_beginning(self, key: Key, live: RunningMachine) -> Draft:
        """Draft the entry that sets a machine up as it is now."""
        return Draft(key, BEGINNING, self.codec.dump(live.data), done=True)

    def draft(self, key: Key, live: RunningMachine, event: object, cause: str) -> list[Draft]:
        """Draft the entry of an event, after the machine's beginning if that is not kept yet."""
        entry = Draft(key, self.codec.name_of(event), self.codec.dump(event), cause)
        return [entry] if live.kept else [self.draft_beginning(key, live), entry]

    def write(self, drafts: Sequence[Draft], relied_on: Sequence[Callable[[], None]]) -> int:
        """Keep entries together with what they rely on; if that refuses, none of it has happened.

        It gives the number of the last entry.
        """
        if not relied_on:
            return self.store.append(drafts)
        with self.store.together():
            for persist in relied_on:
                persist()
            return self.store.append(drafts)

    async def append(self, drafts: Sequence[Draft]) -> None:
        """Keep entries that rely on nothing."""
        began_s = time.monotonic()
        await asyncio.to_thread(self.write, drafts, ())
        self._timed(time.monotonic() - began_s)

    def count(self, live: RunningMachine, entries: int) -> None:
        """Count entries that were kept of a machine."""
        live.kept = True
        live.entries += entries
        self.entries += entries

    def enter(
        self, sequence: int, key: Key, live: RunningMachine, event: object, result: Step[Any, Any]
    ) -> Transition:
        """Take a step that is kept, and say what it was."""
        self.newest_s = max(self.newest_s, getattr(event, "at_s", 0.0))
        if any(isinstance(effect, SetTimer) for effect in result.effects):
            live.moved_s = 0.0
        before, earlier = live.state, live.data
        live.state, live.data = result.state, result.data
        return Transition(sequence, key, before, event, live.state, live.data, self._clock.now_s(), earlier)

    def finish(self, sequence: int) -> None:
        """Have an entry marked by the next `mark_done`: all is done that it asks for, but for what it told."""
        self._finished.append(sequence)

    def mark_done(self) -> None:
        """Mark the entries as done that were finished."""
        for sequence in self._finished:
            self.store.mark_done(sequence)
        self._finished.clear()

    def snapshot(self, key: Key) -> Snapshot:
        """Make a snapshot of a machine, for an archive that takes the place of all its entries."""
        live = self.machines[key]
        return Snapshot(key, json.dumps([live.state.value, live.moved_s, self.codec.dump(live.data)]))

    async def archive(self, draw_up: Callable[[], Archive]) -> bool:
        """Put an archive, drawn up in a thread, in the place of entries; say whether all of it was done."""
        newest = Snapshot(NEWEST, json.dumps(self.newest_s))

        def write() -> tuple[Archive, int | None]:
            archive = draw_up()
            return archive, self.store.archive(replace(archive, ongoing=(*archive.ongoing, newest)))

        archive, dropped = await asyncio.to_thread(write)
        if dropped is None:
            return False
        self.entries -= dropped
        for snapshot in archive.ongoing:
            self.machines[snapshot.key].entries = 0
        return True
