"""Answers that are given again: what makes them old, and what is never held."""

from __future__ import annotations

import asyncio
from typing import cast

import httpx
import pytest
from starlette.types import Receive, Scope, Send

from hubbub.ids import RunId
from hubbub_coordinator.api.access import Tokens
from hubbub_coordinator.api.app import guard
from hubbub_coordinator.api.remembering import GOOD_FOR_S, HELD, LONGEST, Remembering
from hubbub_coordinator.service import Coordinator
from support.aio import aio
from support.clockwork import Clockwork, Router

ONE, TWO = RunId("1" * 64), RunId("2" * 64)
RUN = f"/api/v1/runs/{ONE}"
TOKENS = Tokens(read="r" * 32, change="c" * 32)


class Scene:
    def __init__(self, moment_s: float = 0.0, **router: int) -> None:
        self.coordinator, self.router = Clockwork(), Router(**router)
        self.app = Remembering(self.router, cast("Coordinator", self.coordinator), moment_s=moment_s)

    async def ask(self, path: str, method: str = "GET") -> str:
        transport = httpx.ASGITransport(self.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://coordinator") as client:
            answer = await client.request(method, path)
        assert answer.headers["content-type"] == "text/plain"
        assert answer.status_code == self.router.status
        return answer.text


@pytest.mark.parametrize(
    "path", [RUN, f"{RUN}/rounds", f"{RUN}/rounds/3", f"{RUN}/cost", f"/api/v1/events?run={ONE}"]
)
@aio
async def test_an_answer_about_a_run_holds_until_the_next_step_of_that_run(path: str) -> None:
    scene = Scene()
    assert [await scene.ask(path), await scene.ask(path)] == ["1", "1"]
    scene.coordinator.step(TWO)
    assert await scene.ask(path) == "1", "of another run"
    scene.coordinator.step(ONE)
    assert [await scene.ask(path), await scene.ask(path)] == ["2", "2"]


@pytest.mark.parametrize(
    "query", ["", "?limit=3", f"?run={ONE}&run={TWO}", f"?run={ONE}&%72un={TWO}", f"?xrun={ONE}", f"?run={ONE}0"]
)
@aio
async def test_an_answer_about_all_runs_holds_until_the_next_step_of_any(query: str) -> None:
    scene, path = Scene(), f"/api/v1/events{query}"
    assert [await scene.ask(path), await scene.ask(path)] == ["1", "1"]
    scene.coordinator.step(TWO)
    assert await scene.ask(path) == "2"


@aio
async def test_no_answer_holds_for_long() -> None:
    scene = Scene()
    await scene.ask(RUN)
    scene.coordinator.time_s += 0.9 * GOOD_FOR_S
    assert await scene.ask(RUN) == "1"
    scene.coordinator.time_s += 0.2 * GOOD_FOR_S
    assert await scene.ask(RUN) == "2"
    scene.coordinator.time_s -= 3600
    assert await scene.ask(RUN) == "3", "a clock that was set back makes nothing young again"


@aio
async def test_an_answer_is_old_when_news_were_forgotten() -> None:
    scene = Scene()
    await scene.ask(RUN)
    scene.coordinator.forgotten = 7
    assert await scene.ask(RUN) == "2"


@aio
async def test_what_happens_while_an_answer_is_made_makes_it_old() -> None:
    scene = Scene()

    async def answer_late(scope: Scope, receive: Receive, send: Send) -> None:
        scene.coordinator.step(ONE)
        await scene.router(scope, receive, send)

    scene.app = Remembering(answer_late, cast("Coordinator", scene.coordinator))
    assert [await scene.ask(RUN), await scene.ask(RUN)] == ["1", "2"]


@aio
async def test_another_question_has_another_answer() -> None:
    scene = Scene()
    answers = [await scene.ask(f"{RUN}/rounds?after={number}") for number in (1, 2, 1, 2)]
    assert answers == ["1", "2", "1", "2"]


@pytest.mark.parametrize(
    "path",
    [
        "/api/v1/events/stream",
        f"{RUN}/export?format=json",
        "/api/v1/about",
        "/api/v1/runs/1234",
        "/metrics",
        "/readyz",
        "/",
    ],
)
@aio
async def test_what_else_there_is_is_asked_for_every_time(path: str) -> None:
    scene = Scene()
    assert [await scene.ask(path), await scene.ask(path)] == ["1", "2"]


@aio
async def test_what_changes_something_is_passed_on() -> None:
    scene = Scene()
    assert [await scene.ask(RUN), await scene.ask(RUN, "POST"), await scene.ask(RUN)] == ["1", "2", "1"]


@pytest.mark.parametrize(
    "router", [{"status": 404}, {"status": 500}, {"filling": LONGEST + 1}], ids=["unknown", "broken", "too-long"]
)
@aio
async def test_a_problem_and_what_is_too_long_are_not_held(router: dict[str, int]) -> None:
    scene = Scene(**router)
    answers = [(await scene.ask(RUN)).strip(), (await scene.ask(RUN)).strip()]
    assert answers == ["1", "2"]


@aio
async def test_an_answer_in_pieces_is_not_held() -> None:
    scene = Scene(pieces=2)
    assert [await scene.ask(RUN), await scene.ask(RUN)] == ["11", "22"]


@aio
async def test_the_oldest_answer_gives_way() -> None:
    scene = Scene()
    for number in range(HELD + 1):
        await scene.ask(f"{RUN}/rounds?after={number}")
    assert await scene.ask(f"{RUN}/rounds?after={HELD}") == str(HELD + 1)
    assert await scene.ask(f"{RUN}/rounds?after=0") == str(HELD + 2)


@aio
async def test_a_held_answer_is_only_for_a_token() -> None:
    """The token is checked before memory is looked at."""
    scene = Scene()
    app = guard(scene.router, cast("Coordinator", scene.coordinator), TOKENS)
    answers: list[tuple[int, str]] = []

    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://coordinator") as client:
        for token in (TOKENS.read, TOKENS.change, "x" * 32, ""):
            answer = await client.get(RUN, headers={"Authorization": f"Bearer {token}"})
            answers.append((answer.status_code, answer.headers["content-type"]))

    assert answers == [(200, "text/plain")] * 2 + [(401, "application/problem+json")] * 2
    assert scene.router.asked == 1, "the second was answered from memory"


# Many who ask while much happens ------------------------------------------------------------------------

SOON_S = 0.05
FAR_S = 3600.0


async def begin(scene: Scene, count: int) -> list[asyncio.Task[str]]:
    """Have the same asked so many times right after something happened, and let all of them get to wait."""
    await scene.ask(RUN)
    scene.coordinator.step(ONE)
    asking = [asyncio.create_task(scene.ask(RUN)) for _ in range(count)]
    for _ in range(20):
        await asyncio.sleep(0)
    assert not any(each.done() for each in asking)
    return asking


@aio
async def test_all_who_ask_within_a_moment_share_one_answer() -> None:
    scene = Scene(SOON_S)

    asking = await begin(scene, 5)

    assert await asyncio.gather(*asking) == ["2"] * 5
    assert scene.router.asked == 2


@aio
async def test_what_happens_while_they_wait_is_in_the_answer_that_they_share() -> None:
    scene = Scene(SOON_S)
    asking = await begin(scene, 2)

    scene.coordinator.step(ONE)

    assert await asyncio.gather(*asking) == ["2", "2"]
    assert await scene.ask(RUN) == "2", "it was made after the last step, and holds"


@aio
async def test_nobody_waits_for_an_answer_that_still_holds_or_was_never_given() -> None:
    scene = Scene(FAR_S)

    answers = [await scene.ask(RUN), await scene.ask(RUN), await scene.ask(f"{RUN}/cost")]

    assert answers == ["1", "1", "2"]


@aio
async def test_when_the_one_that_all_wait_for_goes_away_another_asks() -> None:
    scene = Scene(FAR_S)
    first, *others = await begin(scene, 3)

    first.cancel()

    assert await asyncio.gather(*others) == ["2", "2"]


@aio
async def test_who_waits_for_what_turns_out_to_be_a_problem_asks_for_themselves() -> None:
    scene = Scene(SOON_S)
    asking = await begin(scene, 3)

    scene.router.status = 404

    assert sorted(await asyncio.gather(*asking)) == ["2", "3", "4"]
