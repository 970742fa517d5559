"""Round rates while somebody disturbs: readers of large views, and a flood of messages that are refused.

All parties are in this process. Readers are another one. Runs without a disturbance come before and after each one
with it, and each rate is compared with the mean of those two.
"""

from __future__ import annotations

import asyncio
import http.client
import multiprocessing
import secrets
import statistics
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from urllib.parse import urlsplit

from benchmarks.interface import Stage
from benchmarks.steps import CLIENTS, SERVERS
from hubbub.ids import PartyId, Role, RunId
from hubbub.transport.memory import MemoryBroker, MemoryTransport
from hubbub.transport.topology import route, topology_for
from hubbub_local.federation import make_parties
from hubbub_trainer.learning.synthetic import SyntheticTask

READERS = 20
MESSAGES_PER_S = 10_000 / 60
FLOODED, SENDER = PartyId("aggregator-1"), PartyId("client-1")
PATHS = ("/api/v1/runs/{run}/cost?limit=200", "/api/v1/runs/{run}/export")


@dataclass(frozen=True, slots=True, kw_only=True)
class DisturbedRate:
    """Round rate with one disturbance: rounds a second, and the ratio to the rate without it, in each turn."""

    disturbance: str
    per_s: float
    ratios: list[float]
    answered: int
    """Large views that were answered, or messages that were sent."""

    @property
    def ratio(self) -> float:
        """Median of the ratios."""
        return statistics.median(self.ratios)


async def measure_disturbances(
    parameters: int, rounds: int, turns: int, rounds_read: int = 100
) -> list[DisturbedRate]:
    """Run rounds alone and disturbed by turns; readers ask for a run of `rounds_read` rounds."""
    broker = MemoryBroker()
    stage = Stage(
        SyntheticTask(parameters),
        make_parties(clients=CLIENTS, servers=SERVERS),
        connect=lambda _, topology: MemoryTransport(broker, topology),
    )
    async with stage.open():
        known = await stage.run(rounds_read)
        disturbances: dict[str, Callable[[], AbstractAsyncContextManager[list[int]]]] = {
            f"{READERS} readers of costs and exports": lambda: _reading(stage, known),
            "10,000 refused messages a minute": lambda: _flooding(broker),
        }
        found = []
        for name, disturb in disturbances.items():
            rates, alone, answered = list[float](), [await _rate(stage, rounds)], 0
            for _ in range(turns):
                async with disturb() as counted:
                    rates.append(await _rate(stage, rounds))
                answered += sum(counted)
                alone.append(await _rate(stage, rounds))
            ratios = [
                rate / ((before + after) / 2) for rate, before, after in zip(rates, alone, alone[1:], strict=False)
            ]
            found.append(
                DisturbedRate(disturbance=name, per_s=statistics.median(rates), ratios=ratios, answered=answered)
            )
    return found


async def _rate(stage: Stage, rounds: int) -> float:
    began_s = time.monotonic()
    await stage.run(rounds)
    return rounds / (time.monotonic() - began_s)


@asynccontextmanager
async def _reading(stage: Stage, run: RunId) -> AsyncIterator[list[int]]:
    """Have a process that asks for large views again and again; afterwards the list has how many it got."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_read_on, args=(theirs, stage.url, stage.tokens.read, run), daemon=True)
    process.start()
    answered: list[int] = []
    try:
        await asyncio.to_thread(ours.recv)
        yield answered
        ours.send("stop")
        answered.append(await asyncio.to_thread(ours.recv))
    finally:
        process.kill()
        await asyncio.to_thread(process.join)


def _read_on(pipe: multiprocessing.connection.Connection, url: str, token: str, run: str) -> None:
    answered = [0] * READERS

    def read(place: int) -> None:
        path = PATHS[place % len(PATHS)].format(run=run)
        while True:
            with suppress(OSError, http.client.HTTPException):
                connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
                connection.request("GET", path, headers={"authorization": f"Bearer {token}"})
                answer = connection.getresponse()
                answer.read()
                answered[place] += answer.status == http.HTTPStatus.OK
                connection.close()

    for place in range(READERS):
        threading.Thread(target=read, args=(place,), daemon=True).start()
    pipe.send("ready")
    pipe.recv()
    pipe.send(sum(answered))


@asynccontextmanager
async def _flooding(broker: MemoryBroker) -> AsyncIterator[list[int]]:
    """Send an aggregator messages that are no frames, at a steady rate."""
    sent = [0]

    async def flood(transport: MemoryTransport) -> None:
        began_s, address = time.monotonic(), route(Role.CLIENT, Role.AGGREGATOR, FLOODED)
        while True:
            while sent[0] < MESSAGES_PER_S * (time.monotonic() - began_s):
                await transport.publish(address, secrets.token_bytes(1_000))
                sent[0] += 1
            await asyncio.sleep(1 / MESSAGES_PER_S)

    async with MemoryTransport(broker, topology_for(SENDER, Role.CLIENT)) as transport:
        task = asyncio.create_task(flood(transport))
        try:
            yield sent
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def describe_rates(rates: Sequence[DisturbedRate]) -> tuple[tuple[str, ...], ...]:
    """Rows of a table."""
    return tuple(
        (each.disturbance, f"{each.per_s:.1f}", f"{each.ratio:.2f}", f"{each.answered:,}") for each in rates
    )
