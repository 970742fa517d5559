"""The response cache: until when a body is valid, entity tags, and which routes use it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast
from unittest.mock import Mock, call

import pytest
from fastapi import Request

from hubbub.ids import RunId
from hubbub_coordinator.api.dependencies import LARGEST_CACHED, MOST_CACHED, ResponseCache
from hubbub_coordinator.service import ANY_RUN, Coordinator
from support.aio import aio
from support.coordinator_scene import MANIFEST, TOKENS, client_of, scene_of

ONE, TWO = RunId("1" * 64), RunId("2" * 64)
RUN = f"/api/v1/runs/{MANIFEST.run_id}"


@dataclass
class Versions:
    """As much of a coordinator as the cache asks."""

    steps: Counter[RunId] = field(default_factory=Counter)
    time_s: float = 100.0
    forgotten: int = 0

    @property
    def event_feed(self) -> Versions:
        return self

    def now_s(self) -> float:
        return self.time_s

    def count_steps(self, run: RunId) -> int:
        return self.steps[run]


class Scene:
    """A cache before a view that tells how often it was built."""

    def __init__(self, filling: int = 0, meanwhile: Callable[[Versions], None] = lambda _: None) -> None:
        self.versions = Versions()
        self.cache = ResponseCache(cast("Coordinator", self.versions))
        self.built = 0
        self._filling = filling
        self._meanwhile = meanwhile

    async def build(self) -> str:
        self.built += 1
        self._meanwhile(self.versions)
        return str(self.built).ljust(self._filling)

    async def ask(self, query: str = "") -> str:
        scope = {"type": "http", "path": "/", "query_string": query.encode(), "headers": []}
        answer = await self.cache.answer(Request(scope), ONE, self.build)
        return bytes(answer.body).decode().strip()


def step(run: RunId) -> Callable[[Versions], None]:
    return lambda versions: versions.steps.update([run])


def pass_s(seconds: float) -> Callable[[Versions], None]:
    def move(versions: Versions) -> None:
        versions.time_s += seconds

    return move


def forget(versions: Versions) -> None:
    versions.forgotten = 7


@pytest.mark.parametrize(
    ("change", "second"),
    [
        (step(TWO), "1"),
        (pass_s(0.9), "1"),
        (step(ONE), "2"),
        (pass_s(1.0), "2"),
        (pass_s(-3600.0), "2"),
        (forget, "2"),
    ],
    ids=["step-of-another", "moment", "step", "second", "clock-set-back", "events-forgotten"],
)
@aio
async def test_a_body_is_valid_until_its_run_takes_a_step_and_for_a_second(
    change: Callable[[Versions], None], second: str
) -> None:
    scene = Scene()

    first = [await scene.ask(), await scene.ask()]
    change(scene.versions)
    later = [await scene.ask(), await scene.ask()]

    assert first == ["1", "1"]
    assert later == [second, second]


@aio
async def test_a_step_while_a_body_is_built_makes_it_invalid() -> None:
    scene = Scene(meanwhile=step(ONE))

    assert [await scene.ask(), await scene.ask()] == ["1", "2"]


@aio
async def test_another_query_has_another_body() -> None:
    scene = Scene()

    assert [await scene.ask(f"after={number}") for number in (1, 2, 1, 2)] == ["1", "2", "1", "2"]


@aio
async def test_a_long_body_is_not_cached() -> None:
    scene = Scene(filling=LARGEST_CACHED + 1)

    assert [await scene.ask(), await scene.ask()] == ["1", "2"]


@aio
async def test_the_body_that_was_not_asked_for_longest_is_dropped() -> None:
    scene = Scene()
    for number in range(MOST_CACHED):
        await scene.ask(f"after={number}")
    await scene.ask("after=0")

    await scene.ask("after=new")

    assert await scene.ask("after=0") == "1"
    assert await scene.ask("after=1") == str(MOST_CACHED + 2)


PATHS = {
    RUN: MANIFEST.run_id,
    f"{RUN}/rounds": MANIFEST.run_id,
    f"{RUN}/rounds/1": MANIFEST.run_id,
    f"{RUN}/cost": MANIFEST.run_id,
    f"/api/v1/events?run={MANIFEST.run_id}": MANIFEST.run_id,
    "/api/v1/events": ANY_RUN,
    "/api/v1/runs": ANY_RUN,
}


@aio
async def test_who_has_the_current_view_is_not_sent_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    """By its entity tag. Every path asks for the version of the run that it is about."""
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
        await scene.finish()
        for path, tag in tags.items():
            with subtests.test(f"{path} after a step"):
                changed = await client.get(path, headers={"If-None-Match": tag})

                assert changed.status_code == 200
                assert changed.headers["etag"] != tag


@aio
async def test_a_cached_view_and_its_tag_are_only_for_a_token(tmp_path: Path) -> None:
    async with scene_of(tmp_path) as scene, scene.start() as coordinator, client_of(coordinator) as client:
        await scene.open_round()
        tag = (await client.get(RUN)).headers["etag"]
        answers = [
            await client.get(RUN, headers={"Authorization": f"Bearer {token}", "If-None-Match": tag})
            for token in (TOKENS.read, "x" * 32, "")
        ]

    assert [each.status_code for each in answers] == [304, 401, 401]
    assert [each.headers.get("etag") for each in answers] == [tag, None, None]
