"""Disks of aggregators that damage every share set once: the run and its models are those of sound disks."""

from pathlib import Path

import pytest

from hubbub.runtime.spool import ChunkRef
from support.damage import DAMAGES, Damage, damage_members, damage_writes
from support.strategy_runs import check_runs, draw_up

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
