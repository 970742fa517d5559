"""Every strategy through the services over RabbitMQ, against the plaintext algorithm and Table 2."""

from pathlib import Path

import pytest

from support.strategy_runs import BASELINES, SECURE, SIZES, UNTAGGED, check_runs, connections, draw_up

pytestmark = pytest.mark.broker


@pytest.mark.parametrize(("clients", "servers"), SIZES)
async def test_secure_strategies_over_rabbitmq(tmp_path: Path, amqp_url: str, clients: int, servers: int) -> None:
    manifests = draw_up(SECURE, clients, servers, wires=["compact"])
    async with connections(amqp_url, manifests[0]) as connect:
        await check_runs(manifests, tmp_path, connect)


async def test_blocks_over_rabbitmq(tmp_path: Path, amqp_url: str) -> None:
    """203 indices are 25 blocks of 8 and one of 3."""
    manifests = draw_up(["sec-union"], 5, 2, wires=["compact"], block=8)
    async with connections(amqp_url, manifests[0]) as connect:
        await check_runs(manifests, tmp_path, connect)


async def test_baselines_over_rabbitmq(tmp_path: Path, amqp_url: str) -> None:
    manifests = draw_up(BASELINES, 5, 2, wires=["compact"])
    async with connections(amqp_url, manifests[0]) as connect:
        await check_runs(manifests, tmp_path, connect)


async def test_prior_systems_over_rabbitmq(tmp_path: Path, amqp_url: str) -> None:
    manifests = draw_up(UNTAGGED, 5, 3, wires=["compact"])
    async with connections(amqp_url, manifests[0]) as connect:
        await check_runs(manifests, tmp_path, connect)
