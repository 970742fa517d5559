"""A run that is given up in a party's folder: what goes, what stays, and what the party says of it later."""

from __future__ import annotations

import asyncio
import errno
import os
import sqlite3
from pathlib import Path

import pytest

from hubbub.errors import Code, ConfigurationError, StorageFailed
from hubbub.ids import RunId
from hubbub.messages.rounds import VoidPhase
from hubbub.messages.runs import PartyFailed, RunEnded, RunProposed, RunRefused
from hubbub.runtime.state_folder import STATE_FILE, Tombstones, forget_run, lock_folder
from hubbub.trust.audit import read_log
from support.aggregator_scene import CLIENTS, MANIFEST, scene_of

RUN, OTHER = MANIFEST.run_id, RunId("f" * 64)


def count_rows(folder: Path, table: str) -> int:
    database = sqlite3.connect(folder / STATE_FILE)
    try:
        return int(database.execute(f"SELECT count(*) FROM {table}").fetchone()[0])  # noqa: S608  (Our own words.)
    finally:
        database.close()


async def leave_open(folder: Path) -> None:
    """An aggregator ends, one round after the start of a run, with a share on its disk."""
    async with scene_of(folder) as scene, scene.start():
        await scene.join()
        await scene.play_good_round(1)
        await scene.send_chunk(CLIENTS[0], 0, round_number=2)
        await scene.empty_inbox()
        assert scene.spooled()


async def test_secrets_events_and_spool_go_and_tombstone_and_journal_stay(tmp_path: Path) -> None:
    await leave_open(tmp_path)
    assert count_rows(tmp_path, "secrets") > 0
    assert count_rows(tmp_path, "verdicts") == 1

    assert forget_run(tmp_path, RUN[:8]) == RUN

    assert [count_rows(tmp_path, table) for table in ("secrets", "events", "verdicts")] == [0, 0, 1]
    assert list((tmp_path / "spool").iterdir()) == []
    assert [path.name for path in (tmp_path / "tombstones").iterdir()] == [RUN]
    last = read_log(tmp_path / "audit.jsonl").entries[-1]
    assert (last.kind, last.fields) == ("ended", {"run": RUN, "outcome": "forgotten"})


async def test_a_forgotten_run_is_not_spoken_of_until_somebody_asks_and_never_joined_again(tmp_path: Path) -> None:
    await leave_open(tmp_path)
    forget_run(tmp_path, RUN)
    async with scene_of(tmp_path) as scene, scene.start() as aggregator:
        assert aggregator.runner.machines == {}
        await asyncio.gather(*aggregator.runner.effects.jobs)
        assert scene.coordinator.heard == []
        await scene.order(VoidPhase(), 2)
        ((_, failed),) = await scene.coordinator.hear(PartyFailed)
        assert failed.code is Code.DISK_LOST
        await scene.command(RunProposed(manifest=MANIFEST))
        ((_, refusal),) = await scene.coordinator.hear(RunRefused)
        assert refusal.code is Code.PROTOCOL_JOINED_BEFORE


async def test_forgetting_again_is_fine_until_the_run_has_ended(tmp_path: Path) -> None:
    await leave_open(tmp_path)
    forget_run(tmp_path, RUN)
    lines = (tmp_path / "audit.jsonl").read_bytes()
    assert forget_run(tmp_path, RUN) == RUN
    assert (tmp_path / "audit.jsonl").read_bytes() == lines

    async with scene_of(tmp_path) as scene, scene.start():
        await scene.command(RunEnded(outcome="failed", reason="a party lost its state"))
        await scene.empty_inbox()

    with pytest.raises(ConfigurationError, match="has ended here: nothing of it is left to forget"):
        forget_run(tmp_path, RUN)


async def test_what_cannot_be_forgotten_is_left_alone(tmp_path: Path) -> None:
    await leave_open(tmp_path / "party")
    lock = lock_folder(tmp_path / "party")
    try:
        with pytest.raises(ConfigurationError, match="another process is running in"):
            forget_run(tmp_path / "party", RUN)
    finally:
        os.close(lock)
    for name in (OTHER, RUN[:3], ""):
        with pytest.raises(ConfigurationError, match="no runs that were joined here begin with"):
            forget_run(tmp_path / "party", name)
    with pytest.raises(ConfigurationError, match="is not the folder of an aggregator or a trainer"):
        forget_run(tmp_path, RUN)

    assert count_rows(tmp_path / "party", "secrets") > 0


# Tombstones: a run that was joined once is known for ever --------------------------------------------------


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
