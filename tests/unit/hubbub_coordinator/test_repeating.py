"""Requests that are known by their bytes: which are learnt, and that they are told what any other would be."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from http import HTTPStatus
from typing import cast

import httpx
import pytest
from starlette.types import Message, Scope

from hubbub.ids import RunId
from hubbub.runtime.repeats import DIGEST
from hubbub_coordinator.api.access import Gate
from hubbub_coordinator.api.headers import SECURITY_HEADERS, SecurityHeaders
from hubbub_coordinator.api.remembering import Remembering
from hubbub_coordinator.api.repeating import KNOWN, Repeating
from hubbub_coordinator.service import Coordinator
from support.aio import aio
from support.clockwork import Clockwork, Router
from support.live_coordinator import TOKENS, LiveCoordinator, live_coordinator, make_run

ONE = RunId("1" * 64)
RUN = f"/api/v1/runs/{ONE}"
KEY = b"k" * 32
LET_IN = f"Bearer {TOKENS.read}".encode()


class Scene:
    def __init__(self, moment_s: float = 0.0, **router: int) -> None:
        self.coordinator, self.router = Clockwork(), Router(**router)
        remembering = Remembering(self.router, cast("Coordinator", self.coordinator), moment_s=moment_s)
        self.app = Repeating(SecurityHeaders(Gate(remembering, TOKENS)), remembering)

    async def ask(
        self,
        *headers: tuple[bytes, bytes],
        digest: bytes = KEY,
        path: str = RUN,
        method: str = "GET",
        offer: bytes = LET_IN,
        version: str = "1.1",
    ) -> list[Message]:
        """Have a request read, and give all that was answered."""
        query = b""
        if "?" in path:
            path, _, asked = path.partition("?")
            query = asked.encode()
        scope: Scope = {
            "type": "http",
            "http_version": version,
            "method": method,
            "path": path,
            "query_string": query,
            "headers": [(b"authorization", offer), *headers],
            "state": {DIGEST: digest},
        }
        told: list[Message] = []

        async def receive() -> Message:
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            told.append(message)

        await self.app(scope, receive, send)
        return told

    def repeat(self, digest: bytes = KEY) -> list[bytes | None] | None:
        """What is replied unread, to which more may be added later; or nothing."""
        replies: list[bytes | None] = []
        return replies if self.app.repeat(digest, replies.append) else None


def body_of(reply: bytes | None) -> str:
    assert reply is not None
    return reply.partition(b"\r\n\r\n")[2].decode()


@aio
async def test_what_was_answered_from_what_is_held_is_replied_unread() -> None:
    scene = Scene()
    assert scene.repeat() is None
    start, body = await scene.ask()

    replies = scene.repeat()

    assert replies is not None
    head, _, text = (replies[0] or b"").partition(b"\r\n\r\n")
    told = dict(line.split(b": ", 1) for line in head.split(b"\r\n"))
    assert text == body["body"] == b"1"
    assert told.pop(b"content-length") == b"1"
    assert told == dict(start["headers"])
    assert {name.lower().encode() for name in SECURITY_HEADERS} < told.keys()
    assert scene.router.asked == 1


@pytest.mark.parametrize(
    "header",
    [
        (b"content-length", b"3"),
        (b"transfer-encoding", b"chunked"),
        (b"expect", b"100-continue"),
        (b"upgrade", b"websocket"),
        (b"connection", b"close"),
        (b"connection", b"keep-alive, close"),
    ],
)
@aio
async def test_a_request_that_is_more_than_its_head_is_never_learnt(header: tuple[bytes, bytes]) -> None:
    scene = Scene()
    await scene.ask(header)
    assert scene.repeat() is None


@pytest.mark.parametrize(
    "how",
    [
        {"version": "1.0"},
        {"method": "HEAD"},
        {"method": "POST"},
        {"path": "/api/v1/events/stream"},
        {"path": f"{RUN}/export"},
        {"path": "/readyz"},
        {"path": f"{RUN}?token=x"},
    ],
    ids=lambda how: " ".join(how.values()),
)
@aio
async def test_what_is_not_held_is_never_learnt(how: dict[str, str]) -> None:
    scene = Scene()
    await scene.ask(**how)  # type: ignore[arg-type]
    assert scene.repeat() is None


@pytest.mark.parametrize("offer", [b"Bearer " + 32 * b"x", b"Basic abc", b""])
@aio
async def test_a_request_that_was_refused_is_never_learnt(offer: bytes) -> None:
    """Not even while the same is held for others."""
    scene = Scene()
    await scene.ask()

    told = await scene.ask(offer=offer, digest=b"another")

    assert told[0]["status"] == HTTPStatus.UNAUTHORIZED
    assert scene.repeat(b"another") is None


@aio
async def test_an_old_answer_is_not_repeated() -> None:
    scene = Scene()
    await scene.ask()
    scene.coordinator.step(ONE)
    assert scene.repeat() is None


@aio
async def test_the_newest_answer_is_told_whoever_asked_for_it() -> None:
    scene = Scene()
    await scene.ask()
    scene.coordinator.step(ONE)
    scene.router.filling = 300
    await scene.ask(digest=b"another")

    replies = scene.repeat()

    assert replies is not None
    assert b"content-length: 300\r\n" in (replies[0] or b"")
    assert body_of(replies[0]) == "2".ljust(300)


@aio
async def test_who_asks_within_a_moment_is_told_what_another_was_promised() -> None:
    scene = Scene(0.05)
    await scene.ask()
    scene.coordinator.step(ONE)
    assert scene.repeat() is None, "the first who asks has it made"
    asking = asyncio.create_task(scene.ask())
    await asyncio.sleep(0)

    replies = [scene.repeat(), scene.repeat()]

    assert replies == [[], []]
    assert (await asking)[1]["body"] == b"2"
    assert [body_of(told) for each in replies if each for told in each] == ["2", "2"]
    assert scene.router.asked == 2


@aio
async def test_who_was_promised_what_comes_to_nothing_is_read() -> None:
    scene = Scene(3600.0)
    await scene.ask()
    scene.coordinator.step(ONE)
    asking = asyncio.create_task(scene.ask())
    await asyncio.sleep(0)
    replies = scene.repeat()

    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    await asyncio.sleep(0)

    assert replies == [None]


@aio
async def test_the_oldest_request_is_forgotten() -> None:
    scene = Scene()
    for number in range(KNOWN + 1):
        await scene.ask(digest=b"%d" % number)
    assert scene.repeat(b"0") is None
    assert scene.repeat(b"1") is not None


# Over a connection ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCoordinator]:
    with live_coordinator(tmp_path_factory.mktemp("live")) as live:
        yield live


async def exchange(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes
) -> tuple[bytes, bytes]:
    writer.write(request)
    head = await reader.readuntil(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", head)
    assert length
    return re.sub(rb"date: [^\r]*\r\n", b"", head), await reader.readexactly(int(length[1]))


@aio
async def test_the_second_answer_is_the_first_to_the_byte_and_no_other_token_has_it(live: LiveCoordinator) -> None:
    url = httpx.URL(live.url)
    request = (
        f"GET /api/v1/runs?limit=7 HTTP/1.1\r\nHost: {url.host}\r\nAuthorization: Bearer {TOKENS.read}\r\n\r\n"
    )
    reader, writer = await asyncio.open_connection(url.host, url.port)
    try:
        first = await exchange(reader, writer, request.encode())
        second = await exchange(reader, writer, request.encode())
        wrong = await exchange(reader, writer, request.replace("Bearer r", "Bearer q").encode())
        run = live.submit(make_run(77))
        after = await exchange(reader, writer, request.encode())
    finally:
        writer.close()

    assert sorted(first[0].split(b"\r\n")) == sorted(second[0].split(b"\r\n"))
    assert first[1] == second[1]
    assert wrong[0].startswith(b"HTTP/1.1 401 ")
    assert run.encode() in after[1]
