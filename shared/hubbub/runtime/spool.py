"""Chunks on disk between their arrival and their use.

A chunk fills a slot: a file that says which chunk it holds, and is emptied and filled again when the chunk is no
longer needed. To fill one takes half the time that a new file takes, whose name has to be on disk too.
Memory holds no chunk, however many clients there are.

Whoever writes a chunk has not kept the event that it came with: that happens next, and at once if the chunk is on
disk. So what a process finds when it starts may be half written only if nobody relies on it, and is written anew
when it comes again. What a process wrote itself is never replaced.

A slot has a checksum. A chunk that the disk has changed or lost is a `StorageDamaged` that names the file, and is
never taken for a chunk that its sender broke.
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
"""How many slots were filled before, the lengths of the chunk's name and of the chunk, and a CRC-32 of both.

Name and chunk follow.
"""
_SLOT = ".slot"
_OWNER_ALONE = 0o600


@dataclass(frozen=True, slots=True)
class ChunkRef:
    """Which chunk of whose set."""

    sender: str
    set_id: str
    index: int


def read_head(file: IO[bytes], size: int) -> tuple[int, str, int] | None:
    """When a slot of this size was filled, with which chunk and its checksum; none if it is not full.

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
    """What a run's folder holds."""

    folder: Path
    slots: dict[str, Path] = field(default_factory=dict)
    """By the name of the chunk."""
    found: set[str] = field(default_factory=set)
    """Chunks that were there before us."""
    free: list[Path] = field(default_factory=list)
    made: int = 0
    """Slots so far."""
    filled: int = 0
    """How often any of them was filled so far."""

    def look(self) -> None:
        """See what a process before us has left; of a name in the folder it may not have made sure.

        A slot that was emptied may be full again after a power failure, so that a chunk is there twice. The one
        that was filled last is the one that somebody may rely on.
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
    """A folder of chunks, by machine and sender; several threads may use it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._runs: dict[str, _Run] = {}
        self._lock = threading.Lock()
        """Held by who looks up or changes which slot holds what, and not while a disk is waited for."""
        folder.mkdir(parents=True, exist_ok=True)

    def write(self, key: Key, ref: ChunkRef, payload: bytes) -> None:
        """Keep a chunk; it is on disk when this returns. One that this process wrote is never replaced."""
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
            if slot is None:
                slot, new = run.folder / f"{run.made:08d}{_SLOT}", True
                run.made += 1
            else:
                new = False
            number, run.filled = run.filled, run.filled + 1
        try:
            _write(slot, number, name.encode(), payload)
            if new:
                sync_folder(run.folder)
        except OSError:
            with self._lock:
                run.free.append(slot)
            raise
        with self._lock:
            run.slots[name] = slot

    def _find(self, key: Key) -> _Run | None:
        """What a run has here, if anything."""
        known = self._runs.get(key.run)
        return known or (self._open(key) if (self._folder / key.run).is_dir() else None)

    def _open(self, key: Key) -> _Run:
        """What a run has here; its folder survives a crash, because the one above it is synced."""
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
        """Read a chunk back; `StorageDamaged` if it is not there, or no longer, or not as it was written."""
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
            # One that is gone is empty enough, and is not filled again: its name would not be on disk.
            with suppress(FileNotFoundError):
                os.truncate(slot, 0)
                with self._lock:
                    run.free.append(slot)


def _name_machine(key: Key) -> str:
    """What the names of a machine's chunks begin with; no name of a phase or a party has a point in it."""
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
    """The chunk of this name, if the slot holds it as it was written.

    Between our looking up the slot and our reading it, the chunk may have been dropped.
    """
    with slot.open("rb", buffering=0) as file:
        head = read_head(file, os.fstat(file.fileno()).st_size)
        chunk = file.readall()
    return chunk if head is not None and head[1:] == (name, _checksum(name.encode(), chunk)) else None


def _checksum(name: bytes, payload: bytes) -> int:
    return zlib.crc32(payload, zlib.crc32(name))
