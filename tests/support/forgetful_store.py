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
from hubbub.store.base import Archive, Draft, Entry, EventStore, Note, Snapshot


@dataclass(slots=True)
class Disk:
    """All that is there after a crash: entries by their numbers, the last number that was given, and archives."""

    entries: dict[int, Entry] = field(default_factory=dict)
    last: int = 0
    over: dict[Key, Snapshot] = field(default_factory=dict)
    snapshots: dict[Key, Snapshot] = field(default_factory=dict)
    notes: dict[int, str] = field(default_factory=dict)


class ForgetfulStore(EventStore):
    """Synced entries are on the disk; all else is lost when this crashes."""

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

    def archive(self, archive: Archive) -> int | None:
        for text in dict(archive.notes).values():
            text.encode()
        over = {each.key: each for each in archive.over}
        ongoing = {each.key: each for each in archive.ongoing}
        with self._lock:
            self._check_open()
            self._before_sync()
            self._sync()
            if any(entry.key.run == archive.run and not entry.done for entry in self._disk.entries.values()):
                return None
            dropped = self._forget_synced(lambda key: key in over or key in ongoing)
            self._disk.over |= over
            self._disk.snapshots |= ongoing
            self._disk.notes = {**dict(archive.notes), **self._disk.notes}
            return dropped

    def read_ongoing(self) -> list[Snapshot]:
        self._check_open()
        return [*self._disk.snapshots.values()]

    def find_over(self, kind: str, run: RunId, first: int = 0, last: int = 0) -> list[Snapshot]:
        self._check_open()
        found = [
            each
            for key, each in self._disk.over.items()
            if (key.kind, key.run) == (kind, run) and first <= key.round <= last
        ]
        return sorted(found, key=lambda each: (each.key.round, each.key.phase))

    def read_summaries(self, kind: str) -> list[Snapshot]:
        self._check_open()
        return [replace(each, body="") for key, each in self._disk.over.items() if key.kind == kind]

    def read_notes(self, most: int) -> list[Note]:
        self._check_open()
        return sorted(self._disk.notes.items())[-most:]

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
            self._forget_synced(is_over)

    def _forget_synced(self, is_over: Callable[[Key], bool]) -> int:
        disk, before = self._disk, len(self._disk.entries)
        disk.entries = {number: each for number, each in disk.entries.items() if not is_over(each.key)}
        disk.snapshots = {key: each for key, each in disk.snapshots.items() if not is_over(key)}
        return before - len(disk.entries)

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
    return Entry(
        sequence=sequence, key=draft.key, kind=draft.kind, body=draft.body, cause=draft.cause, done=draft.done
    )
