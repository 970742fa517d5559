"""An event store in memory that forgets, in a crash, what was not synced: what a disk does when the power goes.

It makes visible in which order a party syncs and speaks. `append` writes, syncs and returns; in between, when the
entries are with the operating system but not on disk, it calls `before_sync`: raise there, and crash, and they are
gone. A store that is `careless` syncs only when something is dropped or it is closed: a party on it says things
that it does not know any more after a crash, and a test that cannot tell the two apart proves nothing.

    disk = Disk()
    store = ForgetfulStore(disk)
    ...
    store.crash()
    store = ForgetfulStore(disk)  # The party starts again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from hubbub.errors import StorageFailed
from hubbub.ids import RunId
from hubbub.machine.effects import Key
from hubbub.store.base import Draft, Entry, EventStore


@dataclass(slots=True)
class Disk:
    """What is there after a crash: entries by their numbers, and the last number that was given."""

    entries: dict[int, Entry] = field(default_factory=dict)
    last: int = 0


class ForgetfulStore(EventStore):
    """What is synced is on the disk; all else is lost when this crashes."""

    def __init__(
        self, disk: Disk, *, before_sync: Callable[[], None] = lambda: None, careless: bool = False
    ) -> None:
        self._disk = disk
        self._before_sync = before_sync
        self._careless = careless
        self._lock = threading.Lock()
        self._last = disk.last
        self._written: list[Entry] = []
        self._finished: set[int] = set()
        self._gone = False

    def append(self, drafts: Sequence[Draft]) -> int:
        with self._lock:
            self._check_open()
            entries = [_entry(number, draft) for number, draft in enumerate(drafts, self._last + 1)]
            if not self._careless:
                self._before_sync()
            self._written += entries
            self._last += len(entries)
            if not self._careless:
                self._sync()
            return entries[-1].sequence if entries else 0

    def mark_done(self, sequence: int) -> None:
        with self._lock:
            self._check_open()
            self._finished.add(sequence)

    def read(self) -> list[Entry]:
        with self._lock:
            self._check_open()
            return [*self._disk.entries.values(), *self._written]

    def drop(self, keys: Iterable[Key]) -> None:
        over = set(keys)
        self._forget(lambda key: key in over)

    def drop_run(self, run: RunId) -> None:
        self._forget(lambda key: key.run == run)

    def close(self) -> None:
        with self._lock:
            self._check_open()
            self._sync()
            self._gone = True

    def crash(self) -> None:
        """Lose what is not synced; whoever still holds this store cannot use it any more."""
        self._gone = True

    def _forget(self, is_over: Callable[[Key], bool]) -> None:
        with self._lock:
            self._check_open()
            self._before_sync()
            self._sync()
            for sequence in [each.sequence for each in self._disk.entries.values() if is_over(each.key)]:
                del self._disk.entries[sequence]

    def _sync(self) -> None:
        self._disk.entries |= {entry.sequence: entry for entry in self._written}
        for sequence in self._finished & self._disk.entries.keys():
            self._disk.entries[sequence] = replace(self._disk.entries[sequence], done=True)
        self._disk.last = self._last
        self._written.clear()
        self._finished.clear()

    def _check_open(self) -> None:
        if self._gone:
            raise StorageFailed("this store has crashed or was closed")


def _entry(sequence: int, draft: Draft) -> Entry:
    # A disk takes bytes: what is no text fails here as it does there.
    draft.body.encode()
    return Entry(sequence=sequence, key=draft.key, kind=draft.kind, body=draft.body, cause=draft.cause, done=False)
