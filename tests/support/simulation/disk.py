"""A party's disk, from which the power can be taken.

A file's content survives if the file was synced since it was written, a name if its folder was. SQLite files are
left to SQLite: what was committed is there, what was not is rolled back.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.simulation.operations import Moment, Place

Visit = Callable[[Moment, Place], None]
"""Told a moment and a place; raises if the party is to die there."""

_OPEN = "/proc/self/fd"
# What costs time on a real disk and changes nothing that is read.
_SPARED = {
    "PRAGMA synchronous = FULL": "PRAGMA synchronous = OFF",
    "PRAGMA secure_delete = ON": "PRAGMA secure_delete = OFF",
    "PRAGMA wal_checkpoint(TRUNCATE)": "SELECT 0, 0, 0",
}
_WRITES = ("INSERT", "UPDATE", "DELETE", "CREATE")


class Disk:
    """One folder, and what is certainly in it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._contents: dict[int, bytes] = {}
        self._names: dict[str, dict[str, tuple[int, bool]]] = {}
        folder.mkdir(parents=True)

    def sync(self, handle: int) -> None:
        """What `handle` is of is safe from now on: a content, or the names in a folder."""
        what = os.fstat(handle)
        if stat.S_ISDIR(what.st_mode):
            self._sync_names(os.readlink(f"{_OPEN}/{handle}"), handle)  # noqa: PTH115  (As below.)
        else:
            # The handle may be one that can only be written to.
            with open(f"{_OPEN}/{handle}", "rb", buffering=0) as file:  # noqa: PTH123  (Path is slow, and this is often.)
                self._contents[what.st_ino] = file.read()

    def _sync_names(self, folder: str, handle: int | None = None) -> None:
        with os.scandir(folder if handle is None else handle) as entries:
            self._names[folder] = {each.name: (each.inode(), each.is_dir()) for each in entries}

    def lose_power(self) -> None:
        """Lose all that is not safe; what is left is safe."""
        draft = self._folder.with_name(f"{self._folder.name}.new")
        self._copy_safe(self._folder, draft)
        for path in self._folder.glob("*.sqlite*"):
            path.rename(draft / path.name)
        shutil.rmtree(self._folder)
        draft.rename(self._folder)
        self._contents.clear()
        self._names.clear()
        for parent, _, files in os.walk(self._folder):
            self._sync_names(parent)
            for name in files:
                path = Path(parent, name)
                self._contents[path.stat().st_ino] = b"" if ".sqlite" in name else path.read_bytes()

    def _copy_safe(self, folder: Path, to: Path) -> None:
        to.mkdir()
        for name, (inode, is_folder) in self._names.get(str(folder), {}).items():
            if is_folder:
                self._copy_safe(folder / name, to / name)
            elif ".sqlite" not in name:
                (to / name).write_bytes(self._contents.get(inode, b""))

    def read_safe(self, *names: str) -> bytes | None:
        """What would be left of a file if the power failed now; None if it would not be there."""
        place, inode = str(self._folder), 0
        for name in names:
            if name not in self._names.get(place, {}):
                return None
            inode, _ = self._names[place][name]
            place = f"{place}/{name}"
        return self._contents.get(inode, b"")

    def close_files(self) -> None:
        """Close what a dead party held open."""
        begins = f"{self._folder}/"
        for handle in os.listdir(_OPEN):  # noqa: PTH208  (As above.)
            try:
                place = os.readlink(f"{_OPEN}/{handle}")  # noqa: PTH115
            except OSError:
                continue  # The listing's own.
            if place.startswith(begins):
                os.close(int(handle))


class Database(sqlite3.Connection):
    """A connection that visits every commit; the machine's own disk is spared."""

    visit: Visit

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        sql = _SPARED.get(sql, sql)
        commits = sql == "COMMIT" or (not self.in_transaction and sql.lstrip().startswith(_WRITES))
        if commits:
            self.visit("before", "commit")
        cursor = super().execute(sql, parameters)
        if commits:
            self.visit("after", "commit")
        return cursor
