"""Routes of the event feed: the list, and the stream, which misses nothing, waits for nobody and ends."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
from starlette.types import Message

from hubbub.ids import RunId
from hubbub.runtime.web_server import listen
from hubbub_coordinator.api import events
from hubbub_coordinator.api.app import answering
from hubbub_coordinator.service import Coordinator
from support.coordinator_scene import scene_of
from support.rest_stand_in import TOKENS, Front, RawRequest, StandInCoordinator

LIST, STREAM = "/api/v1/events", "/api/v1/events/stream"
ONE, TWO = RunId("1" * 64), RunId("2" * 64)


class Reader(RawRequest):
    """One request for the stream; what it was sent comes out as it went in."""

    def __init__(self, app: Front, *, last_id: str | None = None, query: str = "", slow: bool = False) -> None:
        super().__init__(
            "GET", STREAM, TOKENS.read, query, **({} if last_id is None else {"last_event_id": last_id})
        )
        self.chunks: list[bytes] = []
        self.start: Message = {}
        self.ended = False
        self.open = asyncio.Event()
        if not slow:
            self.open.set()
        self._changed = asyncio.Condition()
        self.task = asyncio.create_task(app(self.scope, self.receive, self.send))

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.start = message
            return
        await self.open.wait()
        async with self._changed:
            self.chunks.append(message["body"])
            self.ended = not message["more_body"]
            self._changed.notify_all()

    @property
    def text(self) -> str:
        return b"".join(self.chunks).decode()

    @property
    def events(self) -> list[dict[str, Any]]:
        return [
            dict(line.split(": ", 1) for line in block.split("\n"))
            for block in self.text.split("\n\n")
            if block and not block.startswith(":")
        ]

    @property
    def ids(self) -> list[int]:
        return [int(event["id"]) for event in self.events if "id" in event]

    async def until(self, reached: Callable[[], bool]) -> None:
        async with self._changed:
            await self._changed.wait_for(reached)

    async def has(self, count: int) -> None:
        """Wait until it was sent so many events."""
        await self.until(lambda: len(self.events) >= count)

    async def begins(self) -> None:
        await self.until(lambda: bool(self.chunks))


@asynccontextmanager
async def scene(**fields: Any) -> AsyncIterator[tuple[StandInCoordinator, Front]]:
    reporter = StandInCoordinator(runs={ONE, TWO}, **fields)
    try:
        yield reporter, Front(reporter)
    finally:
        reporter.event_feed.close()


# The list --------------------------------------------------------------------------------------------------


def ids(page: dict[str, Any]) -> list[int]:
    return [item["id"] for item in page["items"]]


async def test_events_are_listed_oldest_first_the_newest_or_those_after_one() -> None:
    async with scene() as (reporter, app), app.open_client(TOKENS.read) as client:
        for run in [ONE, TWO] * 3:
            reporter.report(run)
        queries = ["limit=2", "limit=4&after=0", "limit=4&after=400", "after=600"]
        pages = [(await client.get(f"{LIST}?{query}")).json() for query in queries]

    assert [ids(page) for page in pages] == [[500, 600], [100, 200, 300, 400], [500, 600], []]
    assert [(page["next"], page["reset"]) for page in pages] == [
        *((None, False), (400, False), (None, False), (None, False))
    ]


async def test_events_are_filtered_by_run_kind_and_party() -> None:
    async with scene() as (reporter, app), app.open_client(TOKENS.read) as client:
        for run in (ONE, TWO, ONE):
            reporter.report(run)
        for query, expected in [
            (f"run={ONE}", [100, 300]),
            (f"run={ONE}&after=100", [300]),
            ("kind=run-submitted&kind=run-failed", [100, 200, 300]),
            ("kind=run-failed", []),
            ("party=client-1", []),
        ]:
            assert ids((await client.get(f"{LIST}?{query}")).json()) == expected
        for query, status in (("kind=rumour", 422), (f"run={'3' * 64}", 404)):
            assert (await client.get(f"{LIST}?{query}")).status_code == status


async def test_events_that_are_gone_are_said_to_be() -> None:
    async with scene(kept=100) as (reporter, app), app.open_client(TOKENS.read) as client:
        reporter.report(ONE, 200)
        for query, reset, first in [
            ("after=100&limit=3", True, reporter.ids()[0]),
            ("after=99999999&limit=1", True, reporter.ids()[0]),
            ("limit=1", False, 20_000),
        ]:
            page = (await client.get(f"{LIST}?{query}")).json()
            assert (page["reset"], ids(page)[0]) == (reset, first)


# The stream ------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "WAKE_S", 0.001)


async def test_without_an_id_it_begins_now_and_says_where_that_is() -> None:
    async with scene() as (reporter, app):
        reporter.report(ONE, 3)
        reader = Reader(app)
        await reader.begins()
        reporter.report(ONE, 2)
        await reader.has(2)

        assert reader.text.startswith(": keep-alive\n\n")
        assert reader.ids == [400, 500]
        assert {event["event"] for event in reader.events} == {"run-submitted"}
        *_, last = reporter.event_feed.since(0)
        expected = {name: getattr(last, name) for name in last.__dataclass_fields__}
        assert json.loads(reader.events[-1]["data"]) == expected
        headers = {name.decode(): value.decode() for name, value in reader.start["headers"]}
        assert headers["content-type"] == "text/event-stream; charset=utf-8"
        assert headers["last-event-id"] == "300"
        assert headers["cache-control"] == "no-store"
        assert "content-length" not in headers


@pytest.mark.parametrize("at", [0, 4, 10])
async def test_whoever_is_cut_off_and_resumes_misses_nothing_and_gets_nothing_twice(at: int) -> None:
    async with scene() as (reporter, app):
        first = Reader(app, last_id="0")
        reporter.report(ONE, at)
        await first.has(at)
        await first.begins()
        first.gone.set()
        await first.task
        reporter.report(ONE, 10 - at)
        second = Reader(app, last_id=str(max([0, *first.ids])))
        reporter.report(ONE)
        await second.has(11 - at)

        assert first.ids + second.ids == reporter.ids()
        assert "reset" not in second.text


async def test_after_a_restart_of_the_coordinator_it_goes_on_where_it_was(tmp_path: Path) -> None:
    async with scene_of(tmp_path) as scene:
        async with scene.start() as coordinator:
            reader = Reader(Front(coordinator), last_id="0")
            await scene.open_round()
            await reader.until(lambda: "round-opened" in reader.text)
        await reader.task
        async with scene.start() as coordinator:
            resumed = Reader(Front(coordinator), last_id=str(reader.ids[-1]))
            await scene.finish()
            await resumed.until(lambda: "run-completed" in resumed.text)
            happened = [item.id for item in coordinator.event_feed.since(0)]

    assert reader.ids + resumed.ids == happened
    assert "reset" not in resumed.text


@pytest.mark.parametrize("last_id", [100, 5_000, 99_999_900])
async def test_an_id_that_is_too_old_or_not_ours_is_answered_with_a_reset_and_all_there_is(last_id: int) -> None:
    async with scene(kept=100) as (reporter, app):
        reporter.report(ONE, 200)
        reader = Reader(app, last_id=str(last_id))
        held = reporter.ids()
        await reader.has(1 + len(held))
        reporter.report(ONE)
        await reader.has(2 + len(held))

        assert reader.events[0] == {"event": "reset", "data": "{}"}
        assert reader.ids == [*held, 20_100]
        assert reader.text.count("reset") == 1


async def test_only_what_happens_in_a_run_if_one_is_asked_for() -> None:
    async with scene() as (reporter, app):
        reader, everything = Reader(app, last_id="0", query=f"run={TWO}"), Reader(app, last_id="")
        await everything.begins()
        for run in (ONE, TWO, ONE, TWO):
            reporter.report(run)
        await reader.has(2)
        await everything.has(4)

        assert reader.ids == reporter.ids(TWO) == [200, 400]
        assert everything.ids == reporter.ids()


async def test_an_id_that_is_none_is_refused() -> None:
    async with scene() as (_, app), app.open_client(TOKENS.read) as client:
        for last_id in ("-1", "1.5", "x", "9" * 19, "1 2"):
            answer = await client.get(STREAM, headers={"last-event-id": last_id})
            assert (answer.status_code, "Last-Event-ID" in answer.json()["detail"]) == (422, True)


async def test_a_slow_reader_holds_nobody_up_and_finds_everything_later() -> None:
    async with scene() as (reporter, app):
        slow, quick = Reader(app, last_id="0", slow=True), Reader(app, last_id="0")
        reporter.report(ONE, 1_500)
        await quick.has(1_500)
        assert slow.chunks == []

        slow.open.set()
        await slow.has(1_500)
        assert slow.ids == quick.ids == reporter.ids()
        assert max(chunk.count(b"\n\n") for chunk in slow.chunks) == events.MOST_AT_ONCE


async def test_a_reader_slower_than_what_is_held_is_told_that_it_missed_something() -> None:
    async with scene(kept=100) as (reporter, app):
        slow = Reader(app, last_id="0", slow=True)
        quick = Reader(app, last_id="0")
        for _ in range(4):
            reporter.report(ONE, 60)
            await quick.has(len(quick.events) + 60)
        slow.open.set()
        await slow.has(1 + len(reporter.ids()))

        assert slow.events[0]["event"] == "reset"
        assert slow.ids == reporter.ids()
        assert quick.ids == [100 * number for number in range(1, 241)]


async def test_what_happens_in_a_moment_is_one_write_for_all_and_made_once() -> None:
    async with scene() as (reporter, app):
        readers = [Reader(app, last_id="0") for _ in range(120)]
        for reader in readers:
            await reader.begins()
        reporter.report(ONE, 20)
        for reader in readers:
            await reader.has(20)

        assert all(len(reader.chunks) == 2 for reader in readers)
        assert all(reader.chunks[1] is readers[0].chunks[1] for reader in readers)


async def test_a_silent_stream_says_from_time_to_time_that_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "KEEP_ALIVE_S", 0.3)
    async with scene() as (reporter, app):
        reader = Reader(app, query=f"run={TWO}")
        loop = asyncio.get_running_loop()

        def go_on() -> None:
            """Others are never silent: that must not keep this reader from hearing of us."""
            reporter.report(ONE)
            if not reporter.event_feed.over:
                loop.call_later(0.005, go_on)

        go_on()
        await reader.until(lambda: reader.text.count(": keep-alive\n\n") >= 3)

        assert reader.events == []


async def test_who_hangs_up_is_forgotten_and_the_others_are_told_when_there_will_be_no_more_news() -> None:
    async with scene() as (reporter, app):
        reader, other = Reader(app), Reader(app)
        await reader.begins()
        await other.begins()
        assert len(app.routes.state.streams) == 2
        reader.gone.set()
        await reader.task
        assert len(app.routes.state.streams) == 1
        reporter.report(ONE)
        await other.has(1)
        assert reader.events == []
        reporter.event_feed.close()
        await other.task

        assert other.ended
        assert len(app.routes.state.streams) == 0


async def test_over_a_real_connection_it_flows_and_ends_with_the_server() -> None:
    reporter = StandInCoordinator()
    listener = listen("127.0.0.1", 0, advice="")
    lines: asyncio.Queue[str] = asyncio.Queue()
    headers = {"authorization": f"Bearer {TOKENS.read}", "last-event-id": "0"}
    async with answering(cast("Coordinator", reporter), TOKENS, listener) as url:
        client = httpx.AsyncClient(headers=headers, trust_env=False)
        reporter.report(ONE, 2)

        async def read() -> None:
            async with client.stream("GET", f"{url}{STREAM}") as answer:
                assert answer.status_code == 200
                async for line in answer.aiter_lines():
                    if line.startswith("id: "):
                        lines.put_nowait(line)

        reading = asyncio.create_task(read())
        assert [await lines.get() for _ in range(2)] == ["id: 100", "id: 200"]
        reporter.report(ONE)
        assert await lines.get() == "id: 300"
    await reading
    await client.aclose()
