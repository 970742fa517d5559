"""The stream of events: who resumes misses nothing, who reads slowly holds nobody up, and it comes to an end."""

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
from hubbub.machine.effects import Key
from hubbub.runtime.runner import Transition
from hubbub.runtime.serving import listen
from hubbub.runtime.telemetry import Counters
from hubbub_coordinator.api import events
from hubbub_coordinator.event_feed import EventFeed
from hubbub_coordinator.events import Began
from hubbub_coordinator.phases import run as runs
from hubbub_coordinator.service import Coordinator, UnknownRun
from hubbub_coordinator.serving import answering
from support.aio import aio
from support.builders import make_manifest
from support.coordinator_scene import TOKENS, scene_of
from support.front import Front

AUTHORISED = {"authorization": f"Bearer {TOKENS.read}"}
PATH = "/api/v1/events/stream"
ONE, TWO = RunId("1" * 64), RunId("2" * 64)
MANIFEST = make_manifest()


class Reporter:
    """A coordinator as far as the stream knows one: it has runs, and news."""

    def __init__(self, kept: int = 20_000) -> None:
        self.event_feed = EventFeed(kept)
        self.counters = Counters()
        self._sequence = 0

    def check_run(self, run: RunId) -> None:
        if run not in {ONE, TWO}:
            raise UnknownRun(f"there is no run {run}")

    def report(self, run: RunId = ONE, count: int = 1) -> None:
        """Let something happen."""
        data, state = runs.CoordinatorRun(manifest=MANIFEST), runs.State.ENROLLING
        for _ in range(count):
            self._sequence += 1
            moment = Transition(self._sequence, Key("run", run), state, Began(at_s=1.0), state, data, 0.0, data)
            self.event_feed.note(moment)

    def ids(self, run: RunId | None = None) -> list[int]:
        return [item.id for item in self.event_feed.since(0) if run in {None, item.run}]


class Reader:
    """One request for the stream; what it was sent comes out as it went in."""

    def __init__(self, app: Front, *, last_id: str | None = None, query: str = "", slow: bool = False) -> None:
        self.chunks: list[bytes] = []
        self.start: Message = {}
        self.ended = False
        self.gone = asyncio.Event()
        self.open = asyncio.Event()
        if not slow:
            self.open.set()
        self._asked = False
        self._changed = asyncio.Condition()
        headers = [(b"authorization", AUTHORISED["authorization"].encode())]
        if last_id is not None:
            headers.append((b"last-event-id", last_id.encode()))
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "GET",
            "path": PATH,
            "raw_path": PATH.encode(),
            "root_path": "",
            "scheme": "http",
            "query_string": query.encode(),
            "headers": headers,
            "client": None,
            "server": None,
        }
        self.task = asyncio.create_task(app(scope, self._receive, self._send))

    async def _receive(self) -> Message:
        if not self._asked:
            self._asked = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
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
async def scene(reporter: Reporter | None = None) -> AsyncIterator[tuple[Reporter, Front]]:
    reporter = reporter or Reporter()
    app = Front(cast("Coordinator", reporter), TOKENS)
    try:
        yield reporter, app
    finally:
        reporter.event_feed.close()


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "WAKE_S", 0.001)


@aio
async def test_without_an_id_it_begins_now_and_says_where_that_is() -> None:
    async with scene() as (reporter, app):
        reporter.report(count=3)
        reader = Reader(app)
        await reader.begins()
        reporter.report(count=2)
        await reader.has(2)

        assert reader.ids == [400, 500]
        headers = {name.decode(): value.decode() for name, value in reader.start["headers"]}
        assert headers["content-type"] == "text/event-stream; charset=utf-8"
        assert headers["last-event-id"] == "300"
        assert headers["cache-control"] == "no-store"
        assert "content-length" not in headers
        assert reader.text.startswith(": keep-alive\n\n")


@aio
async def test_each_event_has_its_id_its_kind_and_itself() -> None:
    async with scene() as (reporter, app):
        reader = Reader(app, last_id="0")
        reporter.report()
        await reader.has(1)

        (event,) = reader.events
        (item,) = reporter.event_feed.since(0)
        assert (event["id"], event["event"]) == ("100", "run-submitted")
        assert json.loads(event["data"]) == {name: getattr(item, name) for name in item.__dataclass_fields__}


@pytest.mark.parametrize("at", range(0, 11, 2))
@aio
async def test_whoever_is_cut_off_and_resumes_misses_nothing_and_gets_nothing_twice(at: int) -> None:
    async with scene() as (reporter, app):
        first = Reader(app, last_id="0")
        reporter.report(count=at)
        await first.has(at)
        await first.begins()
        first.gone.set()
        await first.task
        reporter.report(count=10 - at)
        second = Reader(app, last_id=str(max([0, *first.ids])))
        reporter.report()
        await second.has(11 - at)

        assert first.ids + second.ids == reporter.ids()
        assert "reset" not in second.text


@aio
async def test_after_a_restart_of_the_coordinator_it_goes_on_where_it_was(tmp_path: Path) -> None:
    async with scene_of(tmp_path) as scene:
        async with scene.start() as coordinator:
            reader = Reader(Front(coordinator, TOKENS), last_id="0")
            await scene.open_round()
            await reader.until(lambda: "round-opened" in reader.text)
        await reader.task
        async with scene.start() as coordinator:
            resumed = Reader(Front(coordinator, TOKENS), last_id=str(reader.ids[-1]))
            await scene.finish()
            await resumed.until(lambda: "run-completed" in resumed.text)
            happened = [item.id for item in coordinator.event_feed.since(0)]

    assert reader.ids + resumed.ids == happened
    assert "reset" not in resumed.text


@pytest.mark.parametrize("last_id", [100, 5_000, 99_999_900])
@aio
async def test_an_id_that_is_too_old_or_not_ours_is_answered_with_a_reset_and_all_there_is(last_id: int) -> None:
    async with scene(Reporter(kept=100)) as (reporter, app):
        reporter.report(count=200)
        reader = Reader(app, last_id=str(last_id))
        held = reporter.ids()
        await reader.has(1 + len(held))
        reporter.report()
        await reader.has(2 + len(held))

        assert reader.events[0] == {"event": "reset", "data": "{}"}
        assert reader.ids == [*held, 20_100]
        assert reader.text.count("reset") == 1


@aio
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


@pytest.mark.parametrize("last_id", ["-1", "1.5", "x", "9" * 19, "1 2"])
@aio
async def test_an_id_that_is_none_is_refused(last_id: str) -> None:
    async with scene() as (_, app):
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://coordinator") as client:
            answer = await client.get(PATH, headers={**AUTHORISED, "last-event-id": last_id})

        assert (answer.status_code, "Last-Event-ID" in answer.json()["detail"]) == (422, True)


@aio
async def test_a_slow_reader_holds_nobody_up_and_finds_everything_later() -> None:
    async with scene() as (reporter, app):
        slow, quick = Reader(app, last_id="0", slow=True), Reader(app, last_id="0")
        reporter.report(count=1_500)
        await quick.has(1_500)
        assert slow.chunks == []

        slow.open.set()
        await slow.has(1_500)
        assert slow.ids == quick.ids == reporter.ids()
        assert max(chunk.count(b"\n\n") for chunk in slow.chunks) == events.MOST_AT_ONCE


@aio
async def test_a_reader_slower_than_what_is_held_is_told_that_it_missed_something() -> None:
    async with scene(Reporter(kept=100)) as (reporter, app):
        slow = Reader(app, last_id="0", slow=True)
        quick = Reader(app, last_id="0")
        for _ in range(4):
            reporter.report(count=60)
            await quick.has(len(quick.events) + 60)
        slow.open.set()
        await slow.has(1 + len(reporter.ids()))

        assert slow.events[0]["event"] == "reset"
        assert slow.ids == reporter.ids()
        assert quick.ids == [100 * number for number in range(1, 241)]


@aio
async def test_what_happens_in_a_moment_is_one_write_for_all_and_made_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[int] = []
    write = events.Streams._write

    def count(self: events.Streams, after: int, run: str) -> tuple[bytes, int]:
        made.append(after)
        return write(self, after, run)

    async with scene() as (reporter, app):
        readers = [Reader(app, last_id="0") for _ in range(120)]
        for reader in readers:
            await reader.begins()
        monkeypatch.setattr(events.Streams, "_write", count)
        reporter.report(count=20)
        for reader in readers:
            await reader.has(20)

        assert made.count(0) == 1
        assert all(len(reader.chunks) == 2 for reader in readers)
        assert all(reader.chunks[1] is readers[0].chunks[1] for reader in readers)


@aio
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


@aio
async def test_who_hangs_up_is_forgotten() -> None:
    async with scene() as (reporter, app):
        reader, other = Reader(app), Reader(app)
        await reader.begins()
        await other.begins()
        assert len(app.routes.state.streams) == 2
        reader.gone.set()
        await reader.task
        assert len(app.routes.state.streams) == 1
        reporter.report()
        await other.has(1)
        assert reader.events == []


@aio
async def test_it_ends_when_there_will_be_no_more_news() -> None:
    async with scene() as (reporter, app):
        reader = Reader(app)
        await reader.begins()
        reporter.event_feed.close()
        await reader.task

        assert reader.ended
        assert len(app.routes.state.streams) == 0


@aio
async def test_over_a_real_connection_it_flows_and_ends_with_the_server() -> None:
    reporter = Reporter()
    listener = listen("127.0.0.1", 0, advice="")
    lines: asyncio.Queue[str] = asyncio.Queue()
    async with answering(cast("Coordinator", reporter), TOKENS, listener) as url:
        client = httpx.AsyncClient(headers={**AUTHORISED, "last-event-id": "0"}, trust_env=False)
        reporter.report(count=2)

        async def read() -> None:
            async with client.stream("GET", f"{url}{PATH}") as answer:
                assert answer.status_code == 200
                async for line in answer.aiter_lines():
                    if line.startswith("id: "):
                        lines.put_nowait(line)

        reading = asyncio.create_task(read())
        assert [await lines.get() for _ in range(2)] == ["id: 100", "id: 200"]
        reporter.report()
        assert await lines.get() == "id: 300"
    await reading
    await client.aclose()
