"""The latest news, held in memory for whoever asks or reads along."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import takewhile

from hubbub.runtime.runner import Moment
from hubbub_coordinator.telling import Item, tell

KEPT = 20_000
"""How many are held; whoever asks for older ones is told to begin anew."""


class News:
    """The latest news, oldest first."""

    def __init__(self, kept: int = KEPT) -> None:
        self.over = False
        """Whether there will be none any more, because the coordinator ends."""
        self._kept = kept
        self._items: list[Item] = []
        self._by_run: dict[str, list[Item]] = {}
        """The same, so that nobody who asks about one run looks through all that happened in others."""
        self._forgotten = 0
        self._load: Callable[[], Iterable[Item]] | None = None
        """What happened before a restart, until it is loaded."""
        self._listeners: list[Callable[[], None]] = []

    @property
    def newest(self) -> int:
        """The id of the last thing that happened; 0 before anything has."""
        items = self._items or self._all()
        return items[-1].id if items else self._forgotten

    @property
    def forgotten(self) -> int:
        """The highest id that is not held any more; 0 if all are."""
        self._all()
        return self._forgotten

    def knows(self, after: int) -> bool:
        """Whether everything is held that happened after this id, and the id can be one of ours."""
        return self.forgotten <= after <= self.newest

    def since(self, after: int) -> list[Item]:
        """What is held of all that happened after this id."""
        items = self._all()
        return items[bisect_right(items, after, key=lambda item: item.id) :]

    def newest_first(self, run: str | None = None) -> Iterator[Item]:
        """All that is held, or all of a run, the last first; what happens meanwhile is left out."""
        items = self._all()
        return reversed(items if run is None else self._by_run.get(run, []))

    def restore(self, load: Callable[[], Iterable[Item]]) -> None:
        """Have what happened before a restart, beside what the steps tell that were taken again.

        It is loaded when somebody asks for it: a start should not wait for that.
        """
        self._load = load

    def _all(self) -> list[Item]:
        if self._load is not None:
            found = {item.id: item for item in (*self._load(), *self._items)}
            self._load = None
            self._items, self._by_run = [found[number] for number in sorted(found)], {}
            for item in self._items:
                self._by_run.setdefault(item.run, []).append(item)
            if len(self._items) > self._kept:
                self._forget(len(self._items) - self._kept)
        return self._items

    def list_unloaded(self, run: str, after: int) -> list[Item]:
        """What has happened in a run after an id, the last first, as far as it need not be loaded."""
        return list(takewhile(lambda item: item.id > after, reversed(self._by_run.get(run, []))))

    def note(self, moment: Moment) -> None:
        """Take in a step."""
        found = tell(moment)
        if not found:
            return
        self._items += found
        self._by_run.setdefault(moment.key.run, []).extend(found)
        # Not one by one: moving the rest each time would cost more than holding a few too many.
        if len(self._items) > self._kept + self._kept // 10:
            # What was not loaded by now is older than all of these.
            self._load = None
            self._forget(len(self._items) - self._kept)
        self._call()

    def _forget(self, surplus: int) -> None:
        gone = self._items[:surplus]
        self._forgotten = gone[-1].id
        del self._items[:surplus]
        for run, count in Counter(item.run for item in gone).items():
            del self._by_run[run][:count]
            if not self._by_run[run]:
                del self._by_run[run]

    def listen(self, listener: Callable[[], None]) -> None:
        """Have a function called whenever something happened; it must be quick, for the runner waits for it."""
        self._listeners.append(listener)

    def close(self) -> None:
        """Let those who follow know that this is the end."""
        self.over = True
        self._call()

    def _call(self) -> None:
        for listener in self._listeners:
            listener()
