"""Chunks on disk between their arrival and their use.

A chunk is written under a temporary name, synced and renamed, so what is there is whole. Chunks of one sender
lie in one folder; memory holds none of them, however many clients there are.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from hubbub.machine.effects import Key
from hubbub.runtime.disk import sync_folder


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
        folder.mkdir(parents=True, exist_ok=True)

    def write(self, key: Key, ref: ChunkRef, payload: bytes) -> None:
        """Keep a chunk; it is on disk when this returns. One that is there already is never replaced."""
        path = self._path(key, ref)
        if path.exists():
            return
        self._make(path.parent)
        draft = path.with_suffix(".part")
        with draft.open("wb") as file:
            file.write(payload)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
        sync_folder(path.parent)

    def _make(self, folder: Path) -> None:
        """Make a folder that survives a crash: a new name is on disk once the folder above it is synced."""
        if folder == self._folder or folder.exists():
            return
        self._make(folder.parent)
        folder.mkdir(exist_ok=True)
        sync_folder(folder.parent)

    def read(self, key: Key, ref: ChunkRef) -> bytes:
        """Read a chunk back."""
        return self._path(key, ref).read_bytes()

    def drop(self, key: Key, sender: str | None = None) -> None:
        """Forget all chunks of a machine, or those of one sender."""
        folder = self._home(key)
        shutil.rmtree(folder / sender if sender else folder, ignore_errors=True)

    def drop_round(self, key: Key) -> None:
        """Forget all chunks of a round."""
        shutil.rmtree(self._folder / key.run / str(key.round), ignore_errors=True)

    def drop_run(self, key: Key) -> None:
        """Forget all chunks of a run."""
        shutil.rmtree(self._folder / key.run, ignore_errors=True)

    def _home(self, key: Key) -> Path:
        return self._folder / key.run / str(key.round) / (key.phase or "-")

    def _path(self, key: Key, ref: ChunkRef) -> Path:
        return self._home(key) / ref.sender / f"{ref.set_id}-{ref.index:08d}.chunk"
