"""A saboteur at a party's event store: it holds the party at chosen points, where a test then kills it."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from hubbub.errors import StorageFailed
from hubbub.machine.effects import Key
from hubbub.store.base import Archive, Draft, EventStore
from support.wrapping import WrappedStore


@dataclass(frozen=True, slots=True)
class Point:
    """A point to kill a party at: before or after an event is kept, or machines are forgotten or archived."""

    when: Literal["before", "after"]
    what: str
    """The event's name; "forgotten"; "archived"; "beginning", if a machine waits for its first event."""
    key: Key
    told: str = ""
    """Content of a run's event, but for the time: there are several of a kind. A round's have their keys."""


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


class DoomedStore(WrappedStore):
    """A store at which a saboteur waits."""

    def __init__(self, inner: EventStore, saboteur: Saboteur) -> None:
        super().__init__(inner)
        self._saboteur = saboteur

    def append(self, drafts: Sequence[Draft]) -> int:
        last = drafts[-1]
        told = _say_without_time(last.body) if last.key.kind in {"admission", "run"} else ""
        self._saboteur.pass_by(Point("before", last.kind, last.key, told))
        sequence = self._inner.append(drafts)
        self._saboteur.pass_by(Point("after", last.kind, last.key, told))
        return sequence

    def drop(self, keys: Iterable[Key]) -> None:
        keys = list(keys)
        self._saboteur.pass_by(Point("before", "forgotten", keys[0]))
        self._inner.drop(keys)
        self._saboteur.pass_by(Point("after", "forgotten", keys[0]))

    def archive(self, archive: Archive) -> int | None:
        key = (*archive.over, *archive.ongoing)[0].key
        self._saboteur.pass_by(Point("before", "archived", key))
        dropped = self._inner.archive(archive)
        self._saboteur.pass_by(Point("after", "archived", key))
        return dropped


def _say_without_time(body: str) -> str:
    (said,) = json.loads(body)  # As a store keeps it.
    said.pop("at_s", None)
    return json.dumps(said)
