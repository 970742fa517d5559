"""Which runs a party has ever taken part in: a run is joined once, whatever happens in between.

The same manifest run twice would give two sums that subtract to one client's difference. So the id of a run stays
at every party for ever, also across restarts.
"""

from __future__ import annotations

import os
from pathlib import Path

from hubbub.ids import RunId
from hubbub.runtime.disk import sync_folder


class Tombstones:
    """A folder with an empty file for each run."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def __contains__(self, run: RunId) -> bool:
        return (self._folder / run).exists()

    def add(self, run: RunId) -> None:
        """Remember a run for ever; it is on disk when this returns."""
        handle = os.open(self._folder / run, os.O_CREAT | os.O_WRONLY, 0o600)
        os.close(handle)
        sync_folder(self._folder)
