"""A run that was joined once is known for ever."""

import errno
import os
from pathlib import Path

import pytest

from hubbub.errors import StorageFailed
from hubbub.ids import RunId
from hubbub.runtime.state_folder import Tombstones

RUN, OTHER = RunId("ab" * 32), RunId("cd" * 32)


def test_a_run_is_remembered_once_and_its_end_too_across_restarts(tmp_path: Path) -> None:
    tombstones = Tombstones(tmp_path / "tombstones")
    assert (RUN in tombstones, len(tombstones), tombstones.has_ended(RUN)) == (False, 0, False)
    for run in (RUN, OTHER, RUN):
        tombstones.add(run)
    tombstones = Tombstones(tmp_path / "tombstones")
    assert (list(tombstones), len(tombstones)) == ([RUN, OTHER], 2)
    assert tombstones.find_open() == [RUN, OTHER]

    tombstones.mark_ended(RUN)
    tombstones.add(RUN)
    tombstones.mark_forgotten(OTHER)

    tombstones = Tombstones(tmp_path / "tombstones")
    assert (RUN in tombstones, OTHER in tombstones, len(tombstones)) == (True, True, 2)
    assert (tombstones.has_ended(RUN), tombstones.has_ended(OTHER)) == (True, False)
    assert tombstones.find_open() == [], "what was given up is neither open nor ended until its end is heard of"
    tombstones.mark_ended(OTHER)
    assert tombstones.has_ended(OTHER)


def test_a_disk_that_is_full_is_a_storage_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(handle: int) -> None:
        del handle
        raise OSError(errno.ENOSPC, "No space left on device")

    tombstones = Tombstones(tmp_path)
    monkeypatch.setattr(os, "fsync", fail)

    with pytest.raises(StorageFailed, match="takes no more: No space left on device"):
        tombstones.add(RUN)
