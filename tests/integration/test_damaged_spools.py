"""Disks of aggregators that damage every share set once: the run and its models are those of sound disks."""

from dataclasses import replace
from pathlib import Path

import pytest

from hubbub.machine.effects import Key, Persist
from hubbub.runtime.spool import ChunkRef
from hubbub_aggregator.phases.accumulation import RecordVerdict
from hubbub_aggregator.service import Aggregator
from hubbub_coordinator.phases import run as runs
from hubbub_local.federation import start_federation
from support.damage import DAMAGES, Damage, damage_members, damage_spooled, damage_writes
from support.parties import parties_of
from support.strategy_runs import DEMO_SEED, TASK, check_runs, draw_up

CLIENTS, SERVERS = 2, 2
SET_ID_LENGTH = 32


def count_requests(caplog: pytest.LogCaptureFixture) -> int:
    return sum("is asked for its share set again" in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize("damage", DAMAGES)
async def test_shares_that_are_damaged_when_they_are_written_come_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, damage: Damage
) -> None:
    damaged: set[ChunkRef] = set()

    def is_bad(ref: ChunkRef) -> bool:
        """Choose the first chunk of each share set, once; whatever else is spooled has no set id."""
        first = len(ref.set_id) == SET_ID_LENGTH and ref.index == 0 and ref not in damaged
        damaged.update([ref] if first else [])
        return first

    damage_writes(monkeypatch, damage, is_bad)
    await check_runs(draw_up(["sec-union"], CLIENTS, SERVERS), tmp_path, None)
    assert count_requests(caplog) >= len(damaged) > 0


@pytest.mark.parametrize("damage", DAMAGES)
async def test_shares_that_are_damaged_after_the_order_to_close_come_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, damage: Damage
) -> None:
    damage_members(monkeypatch, damage)
    manifests = draw_up(["sec-union", "no-union"], CLIENTS, SERVERS)
    await check_runs(manifests, tmp_path, None)
    # Of each phase a client's set lies in full at every aggregator, or on the compact wire at one.
    phases = sum(manifest.rounds * (2 + (manifest.strategy == "sec-union")) for manifest in manifests) // 2
    assert count_requests(caplog) == phases * CLIENTS * (SERVERS + 1)


@pytest.mark.parametrize("damage", DAMAGES)
async def test_what_is_kept_of_a_phase_comes_again_until_the_phase_is_closed_and_then_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: Damage
) -> None:
    """Bonawitz's server reads the masked numbers again when it has the shares to unmask them."""
    with monkeypatch.context() as patch:
        damage_members(patch, damage)
        await check_runs(draw_up(["bonawitz"], CLIENTS, SERVERS, wires=["paper"]), tmp_path / "before", None)
    persist = Aggregator.persist

    def persist_and_damage(aggregator: Aggregator, key: Key, effect: Persist, payload: bytes) -> None:
        persist(aggregator, key, effect, payload)
        if isinstance(effect, RecordVerdict) and key.phase == "unmask":
            damage_spooled(aggregator._spool, replace(key, phase="masked"), damage, lambda _: True)

    monkeypatch.setattr(Aggregator, "persist", persist_and_damage)
    (manifest,) = draw_up(["bonawitz"], CLIENTS, SERVERS, wires=["paper"])
    parties = parties_of(manifest)
    async with start_federation(
        manifest, parties=parties, folder=tmp_path / "after", load_task=lambda _: TASK, demo_seed=DEMO_SEED
    ) as federation:
        state, run = await federation.run(manifest)
    assert state is runs.State.FAILED
    assert f"{manifest.aggregators[0]} left the run (disk-failed)" in run.reason
