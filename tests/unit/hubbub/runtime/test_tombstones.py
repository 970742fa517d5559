"""A run that was joined once is known for ever."""

import errno
import os
from pathlib import Path

import pytest

from hubbub.errors import StorageFailed
from hubbub.ids import RunId
from hubbub.runtime.state_folder import Tombstones

RUN = RunId("ab" * 32)


def test_a_run_is_remembered_across_a_restart(tmp_path: Path) -> None:
    Tombstones(tmp_path / "tombstones").add(RUN)

    again = Tombstones(tmp_path / "tombstones")

    assert RUN in again
    assert RunId("cd" * 32) not in again


def test_remembering_twice_is_fine(tmp_path: Path) -> None:
    tombstones = Tombstones(tmp_path)
    tombstones.add(RUN)
    tombstones.add(RUN)

    assert RUN in tombstones
    assert len(tombstones) == 1


def test_runs_are_counted_across_a_restart(tmp_path: Path) -> None:
    tombstones = Tombstones(tmp_path)
    assert len(tombstones) == 0
    tombstones.add(RUN)
    tombstones.add(RunId("cd" * 32))

    assert len(Tombstones(tmp_path)) == 2


def test_that_a_run_has_ended_is_remembered_across_a_restart_and_of_that_run_alone(tmp_path: Path) -> None:
    other = RunId("cd" * 32)
    tombstones = Tombstones(tmp_path)
    tombstones.add(RUN)
    tombstones.add(other)
    assert not tombstones.has_ended(RUN)

    tombstones.mark_ended(RUN)
    tombstones.add(RUN)

    again = Tombstones(tmp_path)
    assert again.has_ended(RUN)
    assert not again.has_ended(other)
    assert (RUN in again, other in again, len(again)) == (True, True, 2)


def test_a_run_that_was_given_up_is_neither_open_nor_ended_until_its_end_is_heard_of(tmp_path: Path) -> None:
    other = RunId("cd" * 32)
    tombstones = Tombstones(tmp_path)
    tombstones.add(RUN)
    tombstones.add(other)

    tombstones.mark_forgotten(RUN)

    assert (RUN in tombstones, tombstones.has_ended(RUN)) == (True, False)
    assert tombstones.find_open() == [other]
    tombstones.mark_ended(RUN)
    assert tombstones.has_ended(RUN)


def test_a_run_that_it_never_knew_has_not_ended(tmp_path: Path) -> None:
    assert not Tombstones(tmp_path).has_ended(RUN)


def test_a_disk_that_is_full_is_a_storage_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(handle: int) -> None:
        del handle
        raise OSError(errno.ENOSPC, "No space left on device")

    tombstones = Tombstones(tmp_path)
    monkeypatch.setattr(os, "fsync", fail)

    with pytest.raises(StorageFailed, match="takes no more: No space left on device"):
        tombstones.add(RUN)
