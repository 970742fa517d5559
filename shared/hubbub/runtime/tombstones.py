"""Which runs a party has ever taken part in: a run is joined once, whatever happens in between.

The same manifest run twice would give two sums that subtract to one client's difference. So the id of a run stays
at every party for ever, also across restarts.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from hubbub.disk import sync_folder
from hubbub.errors import StorageFailed
from hubbub.ids import RunId

ENDED = b"ended\n"
FORGOTTEN = b"forgotten\n"


class Tombstones:
    """A folder with a file for each run; one that has ended, or that its owner gave up, is marked."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        # The process before us may have died between writing a stone and syncing the folder.
        sync_folder(folder)

    def __contains__(self, run: RunId) -> bool:
        return (self._folder / run).exists()

    def __iter__(self) -> Iterator[RunId]:
        return (RunId(path.name) for path in sorted(self._folder.iterdir()))

    def __len__(self) -> int:
        return sum(1 for _ in self._folder.iterdir())

    def find_open(self) -> list[RunId]:
        """List the runs that have neither ended nor been given up."""
        return [run for run in self if not self._read(run)]

    def has_ended(self, run: RunId) -> bool:
        """Whether we know how the run ended."""
        return self._read(run) == ENDED

    def _read(self, run: RunId) -> bytes:
        try:
            return (self._folder / run).read_bytes()
        except FileNotFoundError:
            return b""

    def add(self, run: RunId) -> None:
        """Remember a run for ever; it is on disk when this returns."""
        if run not in self:
            self._write(run, b"")

    def mark_ended(self, run: RunId) -> None:
        """Remember also that the run is over."""
        self._write(run, ENDED)

    def mark_forgotten(self, run: RunId) -> None:
        """Remember also that the party's owner gave the run up: how it ends is not known here."""
        self._write(run, FORGOTTEN)

    def _write(self, run: RunId, word: bytes) -> None:
        try:
            handle = os.open(self._folder / run, os.O_CREAT | os.O_WRONLY, 0o600)
            try:
                os.write(handle, word)
                os.ftruncate(handle, len(word))
                os.fsync(handle)
            finally:
                os.close(handle)
            sync_folder(self._folder)
        except OSError as error:
            raise StorageFailed(f"{self._folder} takes no more: {error.strerror}") from None
