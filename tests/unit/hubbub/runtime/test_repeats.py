"""Requests that are answered before they are read: which, in what order, and what else may happen meanwhile."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from hubbub.runtime.repeats import DIGEST, Repeater, Reply, repeating
from support.aio import aio, until

REQUEST = b"GET /runs HTTP/1.1\r\nHost: coordinator\r\nAuthorization: Bearer secret\r\n\r\n"
OTHER = REQUEST.replace(b"secret", b"sesame")
POST = b"POST /runs HTTP/1.1\r\nHost: coordinator\r\nContent-Length: 4\r\n\r\nbody"
UNREAD = b"content-length: 6\r\n\r\nunread"
DATE = (b"date", b"Tue, 17 Nov 2026 00:00:00 GMT")


class Line(asyncio.Transport):
    """A connection that keeps what is written to it."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.closed = False
        self.reading = True

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True


class Knows(Repeater):
    """Knows digests, and replies at once or when it is told to."""

    def __init__(self) -> None:
        self.asked: list[bytes] = []
        self.known: set[bytes] = set()
        self.late = False
        self.replies: list[Reply] = []

    def repeat(self, digest: bytes, reply: Reply) -> bool:
        self.asked.append(digest)
        if digest not in self.known:
            return False
        if self.late:
            self.replies.append(reply)
        else:
            reply(UNREAD)
        return True


class Connection:
    """A server's end of one connection, before an application that answers with the path it was asked for."""

    def __init__(self) -> None:
        self.repeater = Knows()
        self.line = Line()
        self.read: list[Scope] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        config = uvicorn.Config(self.answer, interface="asgi3", log_config=None, lifespan="off")
        state = ServerState()
        state.default_headers = [DATE]
        make: Callable[..., asyncio.Protocol] = repeating(self.repeater)
        self.protocol = make(config=config, server_state=state, app_state={})
        self.protocol.connection_made(self.line)

    async def answer(self, scope: Scope, _: Receive, send: Send) -> None:
        self.read.append(scope)
        await self.may_answer.wait()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4")]})
        await send({"type": "http.response.body", "body": b"read"})

    def receive(self, *pieces: bytes) -> None:
        for piece in pieces:
            self.protocol.data_received(piece)

    def bodies(self) -> list[str]:
        return re.findall(r"\r\n\r\n(read|unread)", self.line.written.decode())

    async def learn(self, request: bytes = REQUEST) -> None:
        """Have a request answered, and known from then on."""
        self.receive(request)
        await self.wait_for(1)
        self.repeater.known.add(self.read[-1]["state"][DIGEST])
        self.line.written = b""

    async def wait_for(self, answers: int) -> None:
        await until(lambda: len(self.bodies()) == answers)


@aio
async def test_what_is_known_is_answered_unread_with_the_servers_headers() -> None:
    connection = Connection()
    await connection.learn()

    connection.receive(REQUEST, REQUEST)

    head = b"HTTP/1.1 200 OK\r\n%b: %b\r\n" % DATE
    assert connection.line.written == 2 * (head + UNREAD)
    assert len(connection.read) == 1


@pytest.mark.parametrize(
    "pieces",
    [
        (OTHER,),
        (REQUEST[:30], REQUEST[30:]),
        (REQUEST[:-1], REQUEST[-1:]),
        (REQUEST.replace(b"GET", b"PUT"),),
        (REQUEST.replace(b"/runs", b"/runs?limit=3"),),
    ],
    ids=["another-token", "in-pieces", "all-but-the-end", "another-method", "another-query"],
)
@aio
async def test_what_is_not_the_same_is_read(pieces: tuple[bytes, ...]) -> None:
    connection = Connection()
    await connection.learn()

    connection.receive(*pieces)

    await connection.wait_for(1)
    assert connection.bodies() == ["read"]


@aio
async def test_several_in_one_piece_are_read() -> None:
    connection = Connection()
    await connection.learn()

    connection.receive(REQUEST + REQUEST)

    await connection.wait_for(2)
    assert connection.bodies() == ["read", "read"]


@pytest.mark.parametrize("part", [b"GET /runs HTTP/1.1\r\nX-Note: ", POST.removesuffix(b"body"), b"G"])
@aio
async def test_the_rest_of_a_request_is_not_taken_for_another(part: bytes) -> None:
    """Else what one server takes for a part of a request another would take for a request."""
    connection = Connection()
    await connection.learn()
    asked = len(connection.repeater.asked)

    connection.receive(part, REQUEST)

    assert len(connection.repeater.asked) == asked
    assert "unread" not in connection.bodies()


@aio
async def test_a_request_behind_one_that_is_being_answered_waits_for_it() -> None:
    connection = Connection()
    await connection.learn()
    connection.may_answer.clear()

    connection.receive(OTHER, REQUEST)
    assert connection.bodies() == []

    connection.may_answer.set()
    await connection.wait_for(2)
    assert connection.bodies() == ["read", "read"]


@aio
async def test_after_a_body_the_next_request_may_be_known() -> None:
    connection = Connection()
    await connection.learn()
    connection.receive(POST)
    await connection.wait_for(1)

    connection.receive(REQUEST)

    assert connection.bodies() == ["read", "unread"]


# Promises -------------------------------------------------------------------------------------------------


async def promised() -> Connection:
    """A connection on which a reply was promised."""
    connection = Connection()
    await connection.learn()
    connection.repeater.late = True
    connection.receive(REQUEST)
    return connection


@aio
async def test_what_comes_behind_a_promised_reply_is_answered_after_it() -> None:
    connection = await promised()
    connection.receive(OTHER)
    assert connection.bodies() == []
    assert not connection.line.reading, "nobody fills our memory meanwhile"

    connection.repeater.replies[0](UNREAD)

    await connection.wait_for(2)
    assert connection.bodies() == ["unread", "read"]
    assert connection.line.reading


@aio
async def test_a_promise_that_is_not_kept_has_the_request_read() -> None:
    connection = await promised()
    connection.receive(OTHER)

    connection.repeater.replies[0](None)

    await connection.wait_for(2)
    assert [scope["state"].get(DIGEST) for scope in connection.read[1:]] == [connection.repeater.asked[0], None]
    assert connection.bodies() == ["read", "read"]


@aio
async def test_a_server_that_ends_keeps_its_promise_first() -> None:
    connection = await promised()

    connection.protocol.shutdown()  # type: ignore[attr-defined]
    assert not connection.line.closed
    connection.repeater.replies[0](UNREAD)

    assert connection.bodies() == ["unread"]
    assert connection.line.closed


@aio
async def test_a_server_that_ends_answers_what_it_has_to_read_after_all() -> None:
    connection = await promised()

    connection.protocol.shutdown()  # type: ignore[attr-defined]
    connection.repeater.replies[0](None)

    await connection.wait_for(1)
    assert connection.bodies() == ["read"]
    await until(lambda: connection.line.closed)


@aio
async def test_who_has_gone_is_told_nothing() -> None:
    connection = await promised()

    connection.line.close()
    connection.protocol.connection_lost(None)
    connection.repeater.replies[0](UNREAD)

    assert connection.bodies() == []


# Quiet connections ----------------------------------------------------------------------------------------


@aio
async def test_a_connection_that_falls_silent_after_a_reply_is_closed() -> None:
    connection = Connection()
    await connection.learn()
    connection.protocol.timeout_keep_alive = 0.01  # type: ignore[attr-defined]

    connection.receive(REQUEST)

    assert not connection.line.closed
    await until(lambda: connection.line.closed)


@aio
async def test_a_connection_is_not_silent_while_it_waits_for_a_promised_reply() -> None:
    connection = await promised()

    assert connection.protocol.timeout_keep_alive_task is None  # type: ignore[attr-defined]
