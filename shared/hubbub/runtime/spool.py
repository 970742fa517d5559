"""Spool: chunks on disk between their arrival and their use.

A chunk fills a slot: a file that says which chunk it holds. When the chunk is no longer needed, the slot is
emptied and reused. This takes half the time of a new file, whose name has to be synced too. Memory holds no chunk,
however many clients there are.

A chunk is on disk before the event that it came with is stored. So a half-written chunk that a process finds at
its start belongs to no stored event, and is written anew when it comes again. A process never replaces a chunk
that it wrote itself.

A slot has a checksum. If the disk has changed or lost a chunk, `StorageDamaged` names the file: the sender is not
blamed for it.
"""

from __future__ import annotations

import os
import shutil
import struct
import threading
import zlib
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from hubbub.disk import sync_folder
from hubbub.errors import StorageDamaged, StorageFailed
from hubbub.machine.effects import Key

_HEAD = struct.Struct(">QHQI")
"""Head of a slot: its number in the order of filling, the lengths of name and chunk, and a CRC-32 of both.

Name and chunk follow.
"""
_SLOT = ".slot"
_OWNER_ALONE = 0o600
_NEW_SLOTS = 64
"""Most slots that are made at once."""


@dataclass(frozen=True, slots=True)
class ChunkRef:
    """Reference to a chunk: its sender, share set and index."""

    sender: str
    set_id: str
    index: int


def read_head(file: IO[bytes], size: int) -> tuple[int, str, int] | None:
    """Return a slot's number, the chunk's name and the checksum, or None if the slot of this size is not full.

    The file is read up to the chunk.
    """
    head = file.read(_HEAD.size)
    if len(head) < _HEAD.size:
        return None
    number, name_bytes, chunk_bytes, checksum = _HEAD.unpack(head)
    name = file.read(name_bytes).decode(errors="replace")
    return (number, name, checksum) if size == _HEAD.size + name_bytes + chunk_bytes else None


@dataclass(slots=True)
class _Run:
    """Index of a run's folder."""

    folder: Path
    slots: dict[str, Path] = field(default_factory=dict)
    """Slots by the name of the chunk."""
    found: set[str] = field(default_factory=set)
    """Chunks that an earlier process wrote."""
    free: list[Path] = field(default_factory=list)
    made: int = 0
    """Number of slots so far."""
    filled: int = 0
    """Number of fillings so far."""

    def number_new_slots(self) -> list[Path]:
        """Return the names of new slots: as many as there are, so that few syncs of the folder make many."""
        first, self.made = self.made, self.made + min(max(1, self.made), _NEW_SLOTS)
        return [self.folder / f"{number:08d}{_SLOT}" for number in range(first, self.made)]

    def look(self) -> None:
        """Index what an earlier process left, and sync the folder, which that process may not have done.

        A slot that was emptied may be full again after a power failure, so that a chunk is there twice. Only the
        one that was filled last can belong to a stored event.
        """
        full: list[tuple[int, str, Path]] = []
        for path in self.folder.iterdir():
            if path.suffix == _SLOT:
                self.made = max(self.made, int(path.stem) + 1)
                with path.open("rb") as file:
                    head = read_head(file, path.stat().st_size)
                if head is None:
                    self.free.append(path)
                else:
                    full.append((*head[:2], path))
        for number, name, path in sorted(full):
            self.filled = number + 1
            if name in self.slots:
                self.free.append(self.slots[name])
            self.slots[name] = path
        self.found = set(self.slots)
        sync_folder(self.folder)


class Spool:
    """Folder of chunks, by machine and sender; thread-safe."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._runs: dict[str, _Run] = {}
        self._lock = threading.Lock()
        """Guards the index of slots; never held during disk I/O."""
        folder.mkdir(parents=True, exist_ok=True)

    def write(self, key: Key, ref: ChunkRef, payload: bytes) -> None:
        """Write a chunk; it is on disk when this returns. One that this process wrote is never replaced."""
        try:
            self._fill(self._open(key), _name_chunk(key, ref), payload)
        except OSError as error:
            raise StorageFailed(f"the spool {self._folder} takes no more: {error.strerror}") from None

    def _fill(self, run: _Run, name: str, payload: bytes) -> None:
        with self._lock:
            if name in run.slots and name not in run.found:
                return
            run.found.discard(name)
            slot = run.slots.pop(name, None) or (run.free.pop() if run.free else None)
            new = run.number_new_slots() if slot is None else []
            slot, *spare = [slot] if slot else new
            number, run.filled = run.filled, run.filled + 1
        try:
            _write(slot, number, name.encode(), payload)
            for each in spare:
                each.touch(_OWNER_ALONE)
            if new:
                sync_folder(run.folder)
        except OSError:
            with self._lock:
                run.free.append(slot)
            raise
        with self._lock:
            run.slots[name] = slot
            run.free.extend(spare)

    def _find(self, key: Key) -> _Run | None:
        """Return the index of a run, or None if it has no folder."""
        known = self._runs.get(key.run)
        return known or (self._open(key) if (self._folder / key.run).is_dir() else None)

    def _open(self, key: Key) -> _Run:
        """Return the index of a run; make its folder, which survives a crash because the parent is synced."""
        with self._lock:
            run = self._runs.get(key.run)
        if run is None:
            run = _Run(self._folder / key.run)
            run.folder.mkdir(exist_ok=True)
            sync_folder(self._folder)
            run.look()
            with self._lock:
                run = self._runs.setdefault(key.run, run)
        return run

    def read(self, key: Key, ref: ChunkRef) -> bytes:
        """Read a chunk; raise `StorageDamaged` if it is missing or not as it was written."""
        name, run = _name_chunk(key, ref), self._find(key)
        slot = run.slots.get(name) if run else None
        if slot is None:
            raise StorageDamaged(self._folder / key.run, f"holds no chunk {name}")
        try:
            chunk = _read(slot, name)
        except OSError as error:
            raise StorageDamaged(slot, f"cannot be read ({error.strerror})") from None
        if chunk is None:
            raise StorageDamaged(slot, f"does not hold the chunk {name} as it was written")
        return chunk

    def drop(self, key: Key, sender: str | None = None) -> None:
        """Forget all chunks of a machine, or those of one sender."""
        self._remove(key, f"{_name_machine(key)}." if sender is None else f"{_name_machine(key)}.{sender}.")

    def drop_round(self, key: Key) -> None:
        """Forget all chunks of a round."""
        self._remove(key, f"{key.round}.")

    def drop_run(self, key: Key) -> None:
        """Forget all chunks of a run."""
        with self._lock:
            self._runs.pop(key.run, None)
        shutil.rmtree(self._folder / key.run, ignore_errors=True)

    def _remove(self, key: Key, beginning: str) -> None:
        run = self._find(key)
        if run is None:
            return
        with self._lock:
            slots = [run.slots.pop(name) for name in list(run.slots) if name.startswith(beginning)]
            run.found.intersection_update(run.slots)
        for slot in slots:
            # A slot whose file is gone is not reused: the name of a new file would not be synced.
            with suppress(FileNotFoundError):
                os.truncate(slot, 0)
                with self._lock:
                    run.free.append(slot)


def _name_machine(key: Key) -> str:
    """Return the prefix of a machine's chunk names; no name of a phase or a party contains a dot."""
    return f"{key.round}.{key.phase or '-'}"


def _name_chunk(key: Key, ref: ChunkRef) -> str:
    return f"{_name_machine(key)}.{ref.sender}.{ref.set_id}-{ref.index:08d}"


def _write(slot: Path, number: int, name: bytes, payload: bytes) -> None:
    """Fill a slot; it is on disk when this returns."""
    with os.fdopen(os.open(slot, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, _OWNER_ALONE), "wb") as file:
        file.write(_HEAD.pack(number, len(name), len(payload), _checksum(name, payload)) + name)
        file.write(payload)
        file.truncate()
        file.flush()
        os.fsync(file.fileno())


def _read(slot: Path, name: str) -> bytes | None:
    """Return the chunk of this name, or None if the slot does not hold it as it was written.

    The chunk may have been dropped since the slot was looked up.
    """
    with slot.open("rb", buffering=0) as file:
        head = read_head(file, os.fstat(file.fileno()).st_size)
        chunk = file.readall()
    return chunk if head is not None and head[1:] == (name, _checksum(name.encode(), chunk)) else None


def _checksum(name: bytes, payload: bytes) -> int:
    return zlib.crc32(payload, zlib.crc32(name))
