"""Chunks on disk between their arrival and their use.

A chunk is written under a temporary name, synced and renamed, so what is there is whole. Chunks of one run lie in
one folder, since a new folder costs about as much as a chunk; memory holds none of them, however many clients
there are.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from hubbub.disk import sync_folder, write_whole
from hubbub.errors import StorageFailed
from hubbub.machine.effects import Key

Payload = bytes | Path
"""What a delivery carries: here, or in a file beside the spool that nobody else uses."""


@dataclass(frozen=True, slots=True)
class ChunkRef:
    """Which chunk of whose set."""

    sender: str
    set_id: str
    index: int


class Spool:
    """A folder of chunks, by machine and sender."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made = {folder}
        """Folders that this process knows to be on disk."""
        folder.mkdir(parents=True, exist_ok=True)

    def write(self, key: Key, ref: ChunkRef, payload: Payload) -> None:
        """Keep a chunk; it is on disk when this returns. One that is there already is never replaced.

        A payload in a file, which must be synced, is moved from there.
        """
        path = self._path(key, ref)
        try:
            self._make(path.parent)
            if not path.exists():
                _put(path, payload)
            # Also if it was there: a process before us may have died before it came to this.
            sync_folder(path.parent)
        except OSError as error:
            raise StorageFailed(f"the spool {self._folder} takes no more: {error.strerror}") from None

    def stage(self, corner: str, name: str, payload: bytes) -> Path:
        """Put a payload on this disk, synced, from where `write` can move it: nothing is decided about it yet."""
        path = self._corner(corner) / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, lambda file: file.write(payload))
        except OSError as error:
            raise StorageFailed(f"{path.parent} takes no more: {error.strerror}") from None
        return path

    def staged(self, corner: str, name: str) -> Path:
        """Where a payload was staged."""
        return self._corner(corner) / name

    def clear(self, corner: str) -> None:
        """Forget all that was staged in a corner."""
        shutil.rmtree(self._corner(corner), ignore_errors=True)

    def _corner(self, name: str) -> Path:
        return self._folder.with_name("staged") / name

    def _make(self, folder: Path) -> None:
        """Make a folder that survives a crash: a new name is on disk once the folder above it is synced."""
        if folder in self._made:
            return
        self._make(folder.parent)
        folder.mkdir(exist_ok=True)
        sync_folder(folder.parent)
        self._made.add(folder)

    def read(self, key: Key, ref: ChunkRef) -> bytes:
        """Read a chunk back."""
        return self._path(key, ref).read_bytes()

    def drop(self, key: Key, sender: str | None = None) -> None:
        """Forget all chunks of a machine, or those of one sender."""
        self._remove(key, f"{_name(key)}." if sender is None else f"{_name(key)}.{sender}.")

    def drop_round(self, key: Key) -> None:
        """Forget all chunks of a round."""
        self._remove(key, f"{key.round}.")

    def drop_run(self, key: Key) -> None:
        """Forget all chunks of a run."""
        folder = self._home(key)
        self._made.discard(folder)
        shutil.rmtree(folder, ignore_errors=True)

    def _remove(self, key: Key, beginning: str) -> None:
        try:
            chunks = [path for path in self._home(key).iterdir() if path.name.startswith(beginning)]
        except FileNotFoundError:
            return
        for path in chunks:
            path.unlink(missing_ok=True)

    def _home(self, key: Key) -> Path:
        return self._folder / key.run

    def _path(self, key: Key, ref: ChunkRef) -> Path:
        return self._home(key) / f"{_name(key)}.{ref.sender}.{ref.set_id}-{ref.index:08d}.chunk"


def _name(key: Key) -> str:
    """What the names of a machine's chunks begin with; no name of a phase or a party has a point in it."""
    return f"{key.round}.{key.phase or '-'}"


def _put(path: Path, payload: Payload) -> None:
    if isinstance(payload, Path):
        payload.replace(path)
    else:
        write_whole(path, lambda file: file.write(payload))
