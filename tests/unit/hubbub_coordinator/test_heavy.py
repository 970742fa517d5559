"""Large views are built beside the rounds, one at a time."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from unittest.mock import AsyncMock

import httpx
import pytest

from hubbub_coordinator.accounts import Sums
from hubbub_coordinator.api import dependencies, runs
from hubbub_coordinator.api.costs import RunCost, view_costs
from hubbub_coordinator.api.dependencies import Heavy
from hubbub_coordinator.api.problems import Busy
from hubbub_coordinator.archive import SomeRound
from support.aio import aio
from support.coordinator_scene import MANIFEST, client_of, scene_of

RUN = f"/api/v1/runs/{MANIFEST.run_id}"


class Held:
    """Holds whoever works out costs until it is told to let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.threads: list[threading.Thread] = []
        self.gate = threading.Event()
        self._begun = asyncio.Event()
        self._loop = asyncio.get_running_loop()

        def hold(sums: Sums, some: Sequence[SomeRound], following: int | None) -> RunCost:
            self.threads.append(threading.current_thread())
            self._loop.call_soon_threadsafe(self._begun.set)
            self.gate.wait()
            return view_costs(sums, some, following)

        monkeypatch.setattr(runs, "view_costs", hold)

    async def has_begun(self) -> None:
        await self._begun.wait()


@asynccontextmanager
async def finished(folder: Path) -> AsyncIterator[httpx.AsyncClient]:
    async with scene_of(folder) as scene, scene.start() as coordinator:
        await scene.open_round()
        await scene.finish()
        async with client_of(coordinator) as client:
            yield client


@aio
async def test_while_one_is_built_in_a_thread_others_are_sent_away_and_all_else_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with finished(tmp_path) as client:
        held = Held(monkeypatch)
        first = asyncio.create_task(client.get(f"{RUN}/cost"))
        await held.has_begun()
        monkeypatch.setattr(dependencies, "WAIT_S", 0.0)
        refused = [await client.get(f"{RUN}/{view}") for view in ("cost?again", "export", "export?format=csv")]
        healthy, run = await client.get("/healthz"), await client.get(RUN)
        metrics = await client.get("/metrics")
        held.gate.set()
        answer = await first

    assert held.threads
    assert threading.main_thread() not in held.threads
    for each in refused:
        assert (each.status_code, each.headers["retry-after"]) == (503, "2")
        assert each.json()["detail"] == "other large views are being built; ask again in a moment"
    assert (answer.status_code, healthy.status_code, run.status_code) == (200, 200, 200)
    assert 'hubbub_requests_refused_total{reason="busy"} 3.0' in metrics.text


@aio
async def test_a_few_rounds_in_memory_are_viewed_without_a_turn_and_archived_ones_take_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with scene_of(tmp_path) as scene, scene.start() as coordinator, client_of(coordinator) as client:
        await scene.open_round()
        held = Held(monkeypatch)
        first = asyncio.create_task(client.get(f"{RUN}/cost"))
        await held.has_begun()
        monkeypatch.setattr(dependencies, "WAIT_S", 0.0)
        in_memory = await client.get(f"{RUN}/rounds")
        known = coordinator.look_at(MANIFEST.run_id)
        monkeypatch.setattr(coordinator, "look", AsyncMock(return_value=replace(known, held={})))
        archived = await client.get(f"{RUN}/rounds?limit=1")
        monkeypatch.setattr(coordinator, "look", AsyncMock(return_value=known))
        monkeypatch.setattr(runs, "FEW_ROUNDS", 0)
        too_many = await client.get(f"{RUN}/rounds?limit=2")
        held.gate.set()
        await first

    assert [each.status_code for each in (in_memory, archived, too_many)] == [200, 503, 503]
    assert [each["round"] for each in in_memory.json()["items"]] == [1]


@aio
async def test_who_waits_gets_its_turn() -> None:
    turns, gate = Heavy(), threading.Event()
    order: list[int] = []

    def work(number: int) -> Callable[[], int]:
        def note() -> int:
            gate.wait()
            order.append(number)
            return number

        return note

    building = [asyncio.create_task(turns.build(work(number))) for number in range(3)]
    gate.set()

    assert await asyncio.gather(*building) == [0, 1, 2]
    assert order == [0, 1, 2]


@aio
async def test_who_goes_away_leaves_the_turn_to_what_is_still_built(monkeypatch: pytest.MonkeyPatch) -> None:
    turns, gate, begun = Heavy(), threading.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def work() -> None:
        loop.call_soon_threadsafe(begun.set)
        gate.wait()

    gone = asyncio.create_task(turns.build(work))
    await begun.wait()
    gone.cancel()
    monkeypatch.setattr(dependencies, "WAIT_S", 0.0)
    with pytest.raises(Busy):
        await turns.build(work)
    monkeypatch.setattr(dependencies, "WAIT_S", 60.0)
    gate.set()

    await turns.build(lambda: None)


@aio
async def test_a_view_that_fails_gives_its_turn_back() -> None:
    turns = Heavy()

    def fail() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await turns.build(fail)
    assert await turns.build(lambda: 1) == 1
