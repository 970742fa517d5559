"""The response cache (validity, entity tags, routes) and the turns in which large views are built."""

import asyncio
import threading
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import cast
from unittest.mock import AsyncMock, Mock, call

import pytest
from fastapi import Request

from hubbub.ids import RunId
from hubbub_coordinator.accounts import Sums
from hubbub_coordinator.api import dependencies, runs
from hubbub_coordinator.api.dependencies import LARGEST_CACHED, MOST_CACHED, Heavy, ResponseCache
from hubbub_coordinator.api.problems import Busy
from hubbub_coordinator.api.views import RunCost, view_costs
from hubbub_coordinator.archive import SomeRound
from hubbub_coordinator.service import ANY_RUN, Coordinator
from support.coordinator_scene import MANIFEST, TOKENS, client_of, scene_of
from support.rest_stand_in import StandInCoordinator

ONE, TWO = RunId("1" * 64), RunId("2" * 64)
RUN = f"/api/v1/runs/{MANIFEST.run_id}"

# The response cache ----------------------------------------------------------------------------------------


class Cached:
    """A cache before a view that tells how often it was built."""

    def __init__(self, filling: int = 0, meanwhile: Sequence[RunId] = ()) -> None:
        self.coordinator = StandInCoordinator(kept=10)
        self.cache = ResponseCache(cast("Coordinator", self.coordinator))
        self.built = 0
        self._filling = filling
        self._meanwhile = meanwhile

    async def build(self) -> str:
        self.built += 1
        self.coordinator.steps.update(self._meanwhile)
        return str(self.built).ljust(self._filling)

    async def ask(self, query: str = "") -> str:
        scope = {"type": "http", "path": "/", "query_string": query.encode(), "headers": []}
        answer = await self.cache.answer(Request(scope), ONE, self.build)
        return bytes(answer.body).decode().strip()


async def test_a_body_is_valid_until_its_run_takes_a_step_and_for_a_second(subtests: pytest.Subtests) -> None:
    for what, steps, seconds, reported, valid in [
        ("a step of another", [TWO], 0.0, 0, True),
        ("a moment", [], 0.9, 0, True),
        ("a step", [ONE], 0.0, 0, False),
        ("a second", [], 1.0, 0, False),
        ("the clock is set back", [], -3600.0, 0, False),
        ("events are forgotten", [], 0.0, 100, False),
    ]:
        with subtests.test(what):
            cached = Cached()

            first = [await cached.ask(), await cached.ask()]
            cached.coordinator.steps.update(steps)
            cached.coordinator.time_s += seconds
            cached.coordinator.report(TWO, reported)
            later = [await cached.ask(), await cached.ask()]

            assert first == ["1", "1"]
            assert later == (["1", "1"] if valid else ["2", "2"])


async def test_a_long_body_is_not_cached_nor_one_that_a_step_overtook() -> None:
    for cached in (Cached(meanwhile=[ONE]), Cached(filling=LARGEST_CACHED + 1)):
        assert [await cached.ask(), await cached.ask()] == ["1", "2"]


async def test_each_query_has_its_body_and_the_one_that_was_not_asked_for_longest_is_dropped() -> None:
    cached = Cached()
    for number in range(MOST_CACHED):
        assert await cached.ask(f"after={number}") == str(number + 1)
    assert await cached.ask("after=0") == "1"

    await cached.ask("after=new")

    assert await cached.ask("after=0") == "1"
    assert await cached.ask("after=1") == str(MOST_CACHED + 2)


PATHS = {
    RUN: MANIFEST.run_id,
    f"{RUN}/rounds": MANIFEST.run_id,
    f"{RUN}/rounds/1": MANIFEST.run_id,
    f"{RUN}/cost": MANIFEST.run_id,
    f"/api/v1/events?run={MANIFEST.run_id}": MANIFEST.run_id,
    "/api/v1/events": ANY_RUN,
    "/api/v1/runs": ANY_RUN,
}


async def test_who_has_the_current_view_is_not_sent_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    """By its entity tag, and only with a token. Every path asks for the version of the run that it is about."""
    async with scene_of(tmp_path) as scene, scene.start() as coordinator, client_of(coordinator) as client:
        await scene.open_round()
        versions = Mock(wraps=coordinator.count_steps)
        monkeypatch.setattr(coordinator, "count_steps", versions)
        tags = {}
        for path, run in PATHS.items():
            with subtests.test(path):
                versions.reset_mock()
                first = await client.get(path)
                tags[path] = first.headers["etag"]
                again = await client.get(path, headers={"If-None-Match": f'"another", W/{tags[path]}'})

                assert (first.status_code, again.status_code, again.content) == (200, 304, b"")
                assert again.headers["etag"] == tags[path]
                assert first.headers["cache-control"] == again.headers["cache-control"] == "no-store"
                assert versions.mock_calls == [call(run), call(run)]
        for token, status, tag in ((TOKENS.read, 304, tags[RUN]), ("x" * 32, 401, None), ("", 401, None)):
            headers = {"Authorization": f"Bearer {token}", "If-None-Match": tags[RUN]}
            answer = await client.get(RUN, headers=headers)
            assert (answer.status_code, answer.headers.get("etag")) == (status, tag)
        await scene.finish()
        for path, tag in tags.items():
            with subtests.test(f"{path} after a step"):
                changed = await client.get(path, headers={"If-None-Match": tag})

                assert changed.status_code == 200
                assert changed.headers["etag"] != tag


# Turns for large views --------------------------------------------------------------------------------------


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


async def test_while_one_is_built_in_a_thread_others_are_sent_away_and_all_else_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few rounds in memory are viewed without a turn; more of them, or archived ones, take one."""
    async with scene_of(tmp_path) as scene, scene.start() as coordinator, client_of(coordinator) as client:
        await scene.open_round()
        held = Held(monkeypatch)
        first = asyncio.create_task(client.get(f"{RUN}/cost"))
        await held.has_begun()
        monkeypatch.setattr(dependencies, "WAIT_S", 0.0)
        refused = [await client.get(f"{RUN}/{view}") for view in ("cost?again", "export", "export?format=csv")]
        answers = [await client.get(path) for path in ("/healthz", RUN)]
        in_memory = await client.get(f"{RUN}/rounds")
        known = coordinator.look_at(MANIFEST.run_id)
        monkeypatch.setattr(coordinator, "look", AsyncMock(return_value=replace(known, held={})))
        refused.append(await client.get(f"{RUN}/rounds?limit=1"))
        monkeypatch.setattr(coordinator, "look", AsyncMock(return_value=known))
        monkeypatch.setattr(runs, "FEW_ROUNDS", 0)
        refused.append(await client.get(f"{RUN}/rounds?limit=2"))
        metrics = await client.get("/metrics")
        held.gate.set()
        answers.append(await first)

    assert held.threads
    assert threading.main_thread() not in held.threads
    for each in refused:
        assert (each.status_code, each.headers["retry-after"]) == (503, "2")
        assert each.json()["detail"] == "other large views are being built; ask again in a moment"
    assert [each.status_code for each in answers] == [200, 200, 200]
    assert [each["round"] for each in in_memory.json()["items"]] == [1]
    assert 'hubbub_requests_refused_total{reason="busy"} 5.0' in metrics.text


async def test_who_waits_gets_its_turn_also_after_a_view_that_fails() -> None:
    turns, gate, order = Heavy(), threading.Event(), list[int]()

    def work(number: int) -> int:
        gate.wait()
        order.append(number)
        return 1 // number

    building = [asyncio.create_task(turns.build(partial(work, number))) for number in (1, 0, 2)]
    gate.set()
    first, failed, last = await asyncio.gather(*building, return_exceptions=True)

    assert (first, type(failed), last) == (1, ZeroDivisionError, 0)
    assert order == [1, 0, 2]


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
