"""Every strategy through the services in memory, against the plaintext algorithm and Table 2."""

from pathlib import Path

import pytest

from support.strategy_runs import BASELINES, SECURE, SIZES, UNTAGGED, check_runs, draw_up
from support.thorough import part_of


@pytest.mark.parametrize(("clients", "servers"), SIZES)
async def test_secure_strategies_in_memory(tmp_path: Path, clients: int, servers: int) -> None:
    await check_runs(draw_up(SECURE, clients, servers), tmp_path, None)


@pytest.mark.parametrize(("clients", "servers"), part_of(SIZES, 1, 3, 8))
async def test_blocks_in_memory(tmp_path: Path, clients: int, servers: int) -> None:
    """203 indices are 25 blocks of 8 and one of 3."""
    await check_runs(draw_up(["sec-union"], clients, servers, block=8), tmp_path, None)


async def test_baselines_in_memory(tmp_path: Path) -> None:
    await check_runs(draw_up(BASELINES, 5, 2, wires=["paper"]), tmp_path, None)


@pytest.mark.parametrize("servers", [2, 3, 4])
async def test_prior_systems_in_memory(tmp_path: Path, servers: int) -> None:
    await check_runs(draw_up(UNTAGGED, 5, servers, wires=["paper"]), tmp_path, None)
