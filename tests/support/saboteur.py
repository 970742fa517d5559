"""A saboteur at a party's event store: it holds the party at chosen points, where a test then kills it."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from hubbub.errors import StorageFailed
from hubbub.ids import RunId
from hubbub.machine.effects import Key
from hubbub.store.base import Archive, Draft, Entry, EventStore, Note, Snapshot


@dataclass(frozen=True, slots=True)
class Point:
    """Where a party can be killed: before or after an event is kept, or machines are forgotten or archived."""

    when: Literal["before", "after"]
    what: str
    """The event's name; "forgotten"; "archived"; "beginning", if a machine waits for its first event."""
    key: Key
    told: str = ""
    """What the event of a run says, but for the time: there are several of a kind. A round's have their keys."""


class Saboteur:
    """Holds a party at chosen points, once at each, until it is dead."""

    def __init__(self, chosen: Callable[[Point], bool]) -> None:
        self._chosen = chosen
        self._loop = asyncio.get_running_loop()
        self._gate = threading.Event()
        self.struck = asyncio.Event()
        self.points: list[Point] = []

    def pass_by(self, point: Point) -> None:
        """In the thread that is to come no further."""
        if point in self.points or not self._chosen(point):
            return
        self.points.append(point)
        gate = self._gate
        self._loop.call_soon_threadsafe(self.struck.set)
        gate.wait()
        raise StorageFailed("this party is dead")

    def retire(self) -> None:
        """Hold nobody any more."""
        self._chosen = lambda _: False
        self.let_go()

    def let_go(self) -> None:
        """It is dead: its threads may end."""
        self.struck.clear()
        gate, self._gate = self._gate, threading.Event()
        gate.set()


class DoomedStore(EventStore):
    """A store at which a saboteur waits."""

    def __init__(self, inner: EventStore, saboteur: Saboteur) -> None:
        self._inner = inner
        self._saboteur = saboteur

    def append(self, drafts: Sequence[Draft]) -> int:
        last = drafts[-1]
        told = _say_without_time(last.body) if last.key.kind in {"admission", "run"} else ""
        self._saboteur.pass_by(Point("before", last.kind, last.key, told))
        sequence = self._inner.append(drafts)
        self._saboteur.pass_by(Point("after", last.kind, last.key, told))
        return sequence

    def mark_done(self, sequence: int) -> None:
        self._inner.mark_done(sequence)

    def read(self) -> list[Entry]:
        return self._inner.read()

    def drop(self, keys: Iterable[Key]) -> None:
        keys = list(keys)
        self._saboteur.pass_by(Point("before", "forgotten", keys[0]))
        self._inner.drop(keys)
        self._saboteur.pass_by(Point("after", "forgotten", keys[0]))

    def drop_run(self, run: RunId) -> None:
        self._inner.drop_run(run)

    def archive(self, archive: Archive) -> int | None:
        key = (*archive.over, *archive.ongoing)[0].key
        self._saboteur.pass_by(Point("before", "archived", key))
        dropped = self._inner.archive(archive)
        self._saboteur.pass_by(Point("after", "archived", key))
        return dropped

    def read_ongoing(self) -> list[Snapshot]:
        return self._inner.read_ongoing()

    def find_over(self, kind: str, run: RunId, first: int = 0, last: int = 0) -> list[Snapshot]:
        return self._inner.find_over(kind, run, first, last)

    def read_summaries(self, kind: str) -> list[Snapshot]:
        return self._inner.read_summaries(kind)

    def read_notes(self, most: int) -> list[Note]:
        return self._inner.read_notes(most)

    def close(self) -> None:
        self._inner.close()


def _say_without_time(body: str) -> str:
    (said,) = json.loads(body)  # As a store keeps it.
    said.pop("at_s", None)
    return json.dumps(said)
