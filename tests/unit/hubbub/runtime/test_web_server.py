"""Strangers who connect: however much they send, however slowly, however many they are."""

import asyncio
import json
import logging
import resource
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from starlette.types import Receive, Scope, Send

from hubbub.runtime.health import Vitals, create_app
from hubbub.runtime.telemetry import Counters, WebRefusal
from hubbub.runtime.web_server import PIECE_BYTES, CarefulProtocol, Limits, Tally, answering, find_limits, listen

FOR_EVER_S = 1_000.0
AT_ONCE_S = 0.02
MOST_SENT_BYTES = 32 * 2**20
"""More than lies in the buffers between two ends of a connection."""
GET = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nHost: x\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"


@dataclass(slots=True)
class Peer:
    """One end of a connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def ask(self, request: bytes) -> tuple[int, dict[str, str], bytes]:
        """Send something, and read one answer."""
        self.writer.write(request)
        return await self.hear()

    async def hear(self) -> tuple[int, dict[str, str], bytes]:
        first, *lines = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines if line)}
        return int(first.split()[1]), headers, await self.reader.readexactly(int(headers["content-length"]))

    async def is_closed(self) -> bool:
        """Whether the other end hangs up without another word; waits for it."""
        try:
            return not await self.reader.read(1)
        except ConnectionResetError:
            return True


@asynccontextmanager
async def serving(
    *,
    app: Callable[[Scope, Receive, Send], Awaitable[None]] | None = None,
    counters: Counters | None = None,
    most: int = 100,
    request_s: float = FOR_EVER_S,
    patience_s: float = FOR_EVER_S,
) -> AsyncIterator[Callable[[], Awaitable[Peer]]]:
    """A server that is held to limits; gives how to connect to it."""
    listener = listen("127.0.0.1", 0, advice="another test has it")
    port = listener.getsockname()[1]
    peers: list[Peer] = []
    limits = Limits(connections=most, request_s=request_s, patience_s=patience_s)

    async def connect() -> Peer:
        peers.append(Peer(*await asyncio.open_connection("127.0.0.1", port)))
        return peers[-1]

    counters = counters or Counters()
    async with answering(app or create_app(Vitals()), listener, limits=limits, count_refusal=counters.turned_away):
        try:
            yield connect
        finally:
            for peer in peers:
                peer.writer.close()


async def read_body(scope: Scope, receive: Receive, send: Send) -> None:
    """An interface that reads what it is sent, and says how much it was."""
    del scope
    total, more = 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        total, more = total + len(message["body"]), message["more_body"]
    content = str(total).encode()
    length = [(b"content-length", str(len(content)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": length})
    await send({"type": "http.response.body", "body": content, "more_body": False})


class Held:
    """An interface that answers when its gate is open."""

    def __init__(self) -> None:
        self.asked, self.gate = asyncio.Event(), asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.asked.set()
        await self.gate.wait()
        await read_body(scope, receive, send)


@pytest.fixture
def accepted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of bytes that the server read, piece by piece."""
    pieces: list[int] = []
    read = CarefulProtocol._read

    def count(self: CarefulProtocol, piece: memoryview) -> bool:
        pieces.append(len(piece))
        return read(self, piece)

    monkeypatch.setattr(CarefulProtocol, "_read", count)
    return pieces


@pytest.mark.parametrize(
    "beginning",
    [b"GET /healthz HTTP/1.1\r\nX: ", b"GET /", CHUNKED + b"0\r\nX: ", CHUNKED + b"1;"],
    ids=["header", "path", "trailer", "chunk-extension"],
)
async def test_what_never_ends_is_read_no_further_than_the_limit(beginning: bytes, accepted: list[int]) -> None:
    async with serving(app=read_body) as connect:
        peer, sent = await connect(), 0
        peer.writer.write(beginning)
        try:
            while sent < MOST_SENT_BYTES:
                peer.writer.write(b"a" * 2**16)
                await peer.writer.drain()
                sent += 2**16
        except ConnectionError:
            pass

        assert sent < MOST_SENT_BYTES
        assert sum(accepted) <= Limits(connections=1).header_bytes + PIECE_BYTES


async def test_headers_that_are_too_long_together_are_told_so_and_long_bodies_and_many_requests_taken() -> None:
    async with serving() as connect:
        for count in (1, 100):
            long = b"".join(b"X-%d: %b\r\n" % (number, b"a" * (60_000 // count)) for number in range(count))
            status, headers, problem = await (await connect()).ask(GET[:-2] + long + b"\r\n")
            assert (status, headers["connection"]) == (431, "close")
            assert json.loads(problem)["detail"] == "a request's headers are too long"
    body = b"x" * 2**20
    async with serving(app=read_body) as connect:
        peer = await connect()
        for _ in range(3):
            status, _, told = await peer.ask(POST + b"Content-Length: %d\r\n\r\n" % len(body) + body)
            assert (status, int(told)) == (200, len(body))
        chunks = b"".join(b"1000\r\n%b\r\n" % (b"x" * 0x1000) for _ in range(256)) + b"0\r\n\r\n"
        assert (await peer.ask(CHUNKED + chunks))[2] == b"%d" % len(body)


async def test_connections_beyond_the_limit_are_told_when_to_come_back(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    async with serving(most=3) as connect:
        silent = [await connect() for _ in range(3)]
        answers = [await (await connect()).hear() for _ in range(40)]
        silent[0].writer.close()
        await silent[0].writer.wait_closed()
        peer = await connect()
        while (found := await peer.ask(GET))[0] != 200:
            peer = await connect()

    assert {(status, headers["retry-after"]) for status, headers, _ in answers} == {(503, "2")}
    assert json.loads(found[2])["status"] == "ok"
    assert len(caplog.records) < 10, "forty of a kind are a few lines"
    assert "closed a connection from 127.0.0.1: there are too many connections" in caplog.text


async def test_who_has_asked_nothing_gives_way_to_who_asks() -> None:
    async with serving(most=3, patience_s=0.0) as connect:
        oldest, *others = [await connect() for _ in range(3)]
        for each in (oldest, *others):
            each.writer.write(b"GET /hea")
        status, _, _ = await (await connect()).ask(GET)

        assert status == 200
        assert await oldest.is_closed()
        for each in others:
            assert (await each.ask(GET.removeprefix(b"GET /hea")))[0] == 200


@pytest.mark.parametrize(
    ("limits", "status"), [({"most": 1, "patience_s": 0.0}, 503), ({"request_s": AT_ONCE_S}, 408)]
)
async def test_who_is_being_answered_does_not_give_way(limits: dict[str, Any], status: int) -> None:
    app = Held()
    async with serving(app=app, **limits) as connect:
        peer = await connect()
        peer.writer.write(GET)
        await app.asked.wait()
        other, _, _ = await (await connect()).hear()
        app.gate.set()
        answered, _, _ = await peer.hear()

    assert (other, answered) == (status, 200)


@pytest.mark.parametrize(
    "beginning",
    [b"", b"GET /", GET[:-2], POST + b"Content-Length: 10\r\n\r\nabc", CHUNKED + b"5\r\nab", b"\r\n"],
    ids=["nothing", "line", "headers", "body", "chunk", "empty line after an answer"],
)
async def test_a_request_that_does_not_come_to_its_end_in_time_is_given_up(beginning: bytes) -> None:
    async with serving(app=read_body, request_s=AT_ONCE_S) as connect:
        peer = await connect()
        if beginning == b"\r\n":
            assert (await peer.ask(GET))[0] == 200
        status, _, body = await peer.ask(beginning)

        assert (status, json.loads(body)["detail"]) == (408, "a request did not come in time")
        assert await peer.is_closed()


async def test_who_does_not_read_an_answer_is_left() -> None:
    left = asyncio.Event()

    async def say_much(scope: Scope, receive: Receive, send: Send) -> None:
        del scope, receive
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": bytes(MOST_SENT_BYTES), "more_body": False})

    def note(kind: str, message: str) -> None:
        del message
        assert kind == WebRefusal.UNREAD
        left.set()

    async with serving(app=say_much, request_s=AT_ONCE_S) as connect:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Tally, "warn", lambda _, kind, message: note(kind, message))
            peer = await connect()
            peer.writer.write(GET)
            await left.wait()


async def test_every_refusal_is_counted_by_its_reason(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    long, counters = b"GET / HTTP/1.1\r\nX: " + b"x" * 2**16, Counters()
    async with serving(counters=counters, most=1) as connect:
        first = await connect()
        assert (await (await connect()).hear())[0] == 503
        assert (await first.ask(long))[0] == 431
    async with serving(counters=counters, request_s=AT_ONCE_S) as connect:
        assert (await (await connect()).hear())[0] == 408
    async with serving(counters=counters, most=1, patience_s=0.0) as connect:
        quiet = await connect()
        status, headers, body = await (await connect()).ask(b"TRACE / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (status, headers["allow"], json.loads(body)["status"]) == (405, "GET, HEAD, POST", 405)
        assert await quiet.is_closed()
    async with serving(counters=counters) as connect:
        caplog.clear()
        statuses = {(await (await connect()).ask(b"\x16\x03\x01 nonsense\r\n\r\n"))[0] for _ in range(20)}
        assert statuses == {400}
        assert len(caplog.records) < 10, "twenty of a kind are a few lines"

    name = "hubbub_requests_refused_total"
    found = {why.value: counters.registry.get_sample_value(name, {"reason": why.value}) for why in WebRefusal}
    once = ("headers-too-long", "too-slow", "too-many", "made-room", "trace")
    assert {why: value for why, value in found.items() if value} == {**dict.fromkeys(once, 1), "no-request": 20}


def test_a_tally_writes_ever_fewer_lines_until_it_was_quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    now_s = 0.0
    tally = Tally(logging.getLogger("tally"), clock=lambda: now_s)

    for number in range(10):
        tally.warn("kind", f"message {number}")
    tally.warn("other", "another")
    now_s = Tally.QUIET_S + 1
    tally.warn("kind", "later")

    more = [f"message {number} ({number + 1} times so far)" for number in (1, 3, 7)]
    assert caplog.messages == ["message 0", *more, "another", "later"]


@pytest.mark.parametrize(
    ("descriptors", "expected"), [(256, 96), (1024, 672), (2**20, 1024), (resource.RLIM_INFINITY, 1024), (64, 8)]
)
def test_descriptors_limit_connections(descriptors: int, expected: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (descriptors, descriptors))

    assert find_limits().connections == expected
