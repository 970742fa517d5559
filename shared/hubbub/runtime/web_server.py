"""Web server inside a process that has other work, with limits on connections and requests.

Uvicorn limits how many requests are answered at once. It does not limit idle connections, nor the length of
headers in the parser that is used here. The process has rounds to drive: nobody without a token may use up its
memory, its file descriptors or its log.
"""

from __future__ import annotations

import asyncio
import json
import logging
import resource
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from http import HTTPStatus

import httptools
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from hubbub.errors import ConfigurationError
from hubbub.runtime.telemetry import WebRefusal

log = logging.getLogger(__name__)

BACKLOG = 128
"""Connections that wait to be accepted; as many are accepted at once before they are counted."""
MOST_CONNECTIONS = 1024
FEWEST_CONNECTIONS = 8
RETRY_AFTER_S = 2
PIECE_BYTES = 16 * 2**10
"""Bytes of one connection that are parsed at once, so that limits are checked in time."""
LAST_ANSWERS_S = 5
"""Timeout of a graceful shutdown: a running request may wait for a broker that is away."""
DETAILS: Mapping[WebRefusal, str] = {
    WebRefusal.HEADERS_TOO_LONG: "a request's headers are too long",
    WebRefusal.TOO_SLOW: "a request did not come in time",
    WebRefusal.TOO_MANY: "there are too many connections",
    WebRefusal.MADE_ROOM: "it asked nothing, and there are too many connections",
    WebRefusal.UNREAD: "an answer was not read",
    WebRefusal.TRACE: "TRACE is answered nowhere",
    WebRefusal.NO_REQUEST: "this is no request that can be read",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits on connections and their requests."""

    connections: int
    header_bytes: int = 32 * 2**10
    """Size of a request without its body: the first line, headers, framing and trailers."""
    request_s: float = 20.0
    """Timeout for a request with its body, and for a client that reads nothing of its answer."""
    patience_s: float = 1.0
    """Time after which an idle connection may be closed to make room for another."""


def find_limits(most: int = MOST_CONNECTIONS) -> Limits:
    """Return limits that leave enough file descriptors to the broker connection and the files."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if descriptors == resource.RLIM_INFINITY:
        return Limits(connections=most)
    return Limits(connections=min(most, max(FEWEST_CONNECTIONS, (descriptors - BACKLOG) * 3 // 4)))


class Tally:
    """Rate-limited log for what strangers cause.

    The 1st, 2nd, 4th, 8th and so on of a kind is logged, with the count. A quiet minute resets the count.
    """

    QUIET_S = 60.0

    def __init__(self, target: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._target = target
        self._clock = clock
        self._counts: Counter[str] = Counter()
        self._last_s: dict[str, float] = {}

    def warn(self, kind: str, message: str) -> None:
        """Count an occurrence, and log it if it is due; there are few kinds, and a message may hold anything."""
        now_s = self._clock()
        if now_s - self._last_s.get(kind, now_s) > self.QUIET_S:
            del self._counts[kind]
        self._last_s[kind] = now_s
        self._counts[kind] += 1
        count = self._counts[kind]
        if count.bit_count() == 1:
            self._target.warning("%s%s", message, f" ({count} times so far)" if count > 1 else "")


class _Refused(Exception):
    """Raised in a parser callback to stop reading the request."""


class CarefulProtocol(HttpToolsProtocol):
    """Connection that enforces the limits; uvicorn makes one instance per connection."""

    limits: Limits
    tally: Tally
    count: Callable[[WebRefusal], None]
    _deadline: asyncio.TimerHandle | None = None
    _next_look: asyncio.TimerHandle | None = None
    _besides_body = 0
    """Bytes of the request read so far that are not its body."""
    _why = (HTTPStatus.BAD_REQUEST, WebRefusal.NO_REQUEST)
    quiet_since_s = 0.0
    """Time at which it was accepted or last answered."""

    @property
    def is_quiet(self) -> bool:
        """Say whether no request is being answered here."""
        return self.cycle is None or self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # As uvicorn has it.
        """Accept the connection, or answer 503 if there are too many."""
        self.quiet_since_s = self.loop.time()
        if len(self.connections) >= self.limits.connections and not self._make_room():
            self.transport = transport
            again = {"retry-after": str(RETRY_AFTER_S)}
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, WebRefusal.TOO_MANY, again)
            return
        super().connection_made(transport)
        self._expect_request()

    def _make_room(self) -> bool:
        """Close the connection that has been idle longest; return False if none has been idle long enough."""
        quiet = [each for each in self.connections if isinstance(each, CarefulProtocol) and each.is_quiet]
        oldest = min(quiet, key=lambda each: each.quiet_since_s, default=None)
        if oldest is None or self.loop.time() - oldest.quiet_since_s < self.limits.patience_s:
            return False
        self._note(WebRefusal.MADE_ROOM, oldest.transport)
        # At once, because several connections may come before `connection_lost` is called.
        self.connections.discard(oldest)
        oldest.transport.abort()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the timers."""
        self._expect_nothing()
        self._look_no_more()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse the data in pieces, as far as the limits allow."""
        self._unset_keepalive_if_required()
        self._look_no_more()
        if self.is_quiet:
            self._expect_request()
        view = memoryview(data)
        for start in range(0, len(view), PIECE_BYTES):
            if self.transport.is_closing() or not self._read(view[start : start + PIECE_BYTES]):
                return

    def _read(self, piece: memoryview) -> bool:
        """Parse a piece; return whether to go on."""
        self._besides_body += len(piece)
        try:
            self.parser.feed_data(piece)
        except httptools.HttpParserUpgrade:
            return False  # A request to upgrade is answered in HTTP/1.1.
        except httptools.HttpParserError:
            self._refuse(*self._why)
            return False
        if self._besides_body > self.limits.header_bytes:
            self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, WebRefusal.HEADERS_TOO_LONG)
            return False
        return True

    def on_message_begin(self) -> None:
        """Start the timeout of a request."""
        self._expect_request()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Have a request answered, unless its method is TRACE, which nobody needs."""
        if self.parser.get_method() == b"TRACE":
            self._why = (HTTPStatus.METHOD_NOT_ALLOWED, WebRefusal.TRACE)
            raise _Refused
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Do not count the body, which is limited elsewhere."""
        self._besides_body -= len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Stop the timeout: the request has arrived."""
        self._besides_body = 0
        self._expect_nothing()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Check later that the answer was read."""
        self.quiet_since_s = self.loop.time()
        super().on_response_complete()
        self._look_later(self.transport.get_write_buffer_size())

    def _look_later(self, unread: int) -> None:
        """Check later whether the client reads its answer, which takes memory until then."""
        self._look_no_more()
        if unread:
            self._next_look = self.loop.call_later(self.limits.request_s, self._look, unread)

    def _look(self, before: int) -> None:
        unread = self.transport.get_write_buffer_size()
        if unread < before:
            self._look_later(unread)
        else:
            self._note(WebRefusal.UNREAD, self.transport)
            self.transport.abort()

    def _look_no_more(self) -> None:
        if self._next_look is not None:
            self._next_look.cancel()
            self._next_look = None

    def _expect_request(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(self.limits.request_s, self._give_up)

    def _expect_nothing(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _give_up(self) -> None:
        if not self.transport.is_closing():
            self._refuse(HTTPStatus.REQUEST_TIMEOUT, WebRefusal.TOO_SLOW)

    def _refuse(self, status: HTTPStatus, reason: WebRefusal, headers: Mapping[str, str] | None = None) -> None:
        """Answer with an error, unless an answer has begun, and close the connection."""
        self._expect_nothing()
        self._note(reason, self.transport)
        if self.is_quiet or not (self.cycle.response_started or self.pipeline):
            self.transport.write(_write_problem(status, DETAILS[reason], headers or {}))
        self.transport.close()

    def _note(self, reason: WebRefusal, closed: asyncio.Transport) -> None:
        """Count a connection that is closed, and log it if that is due."""
        self.count(reason)
        address = closed.get_extra_info("peername")
        self.tally.warn(reason, f"closed a connection from {address[0] if address else '-'}: {DETAILS[reason]}")


def _write_problem(status: HTTPStatus, detail: str, headers: Mapping[str, str]) -> bytes:
    """Return an HTTP response with problem details (RFC 9457), for a request that was not parsed."""
    body = json.dumps({"title": status.phrase, "status": status.value, "detail": detail}).encode()
    lines = [
        f"HTTP/1.1 {status.value} {status.phrase}",
        *("content-type: application/problem+json", f"content-length: {len(body)}"),
        *("cache-control: no-store", "connection: close"),
        *(f"{name}: {value}" for name, value in headers.items()),
        *(["allow: GET, HEAD, POST"] if status is HTTPStatus.METHOD_NOT_ALLOWED else []),
    ]
    return "\r\n".join([*lines, "", ""]).encode() + body


def listen(host: str, port: int, *, advice: str) -> socket.socket:
    """Bind an address before anything starts that needs it; `advice` says how to choose another."""
    try:
        listener = socket.create_server((host, port))
    except (OSError, OverflowError) as error:
        problem = getattr(error, "strerror", None) or error
        raise ConfigurationError(f"cannot listen on {host}:{port}: {problem}; {advice}") from None
    # Connections inherit it. Without it an answer of two writes waits 40 ms for the first to be acknowledged.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


class _Server(uvicorn.Server):
    """Server that leaves signals to its process, which closes the broker connection after the last answer."""

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


@asynccontextmanager
async def answering(
    app: ASGIApp,
    listener: socket.socket,
    *,
    before_end: Callable[[], None] = lambda: None,
    limits: Limits | None = None,
    count_refusal: Callable[[WebRefusal], None] = lambda _: None,
) -> AsyncIterator[str]:
    """Serve the app while this is open, and yield its address; `before_end` ends the open event streams."""

    class Limited(CarefulProtocol):
        count = staticmethod(count_refusal)

    Limited.limits, Limited.tally = limits or find_limits(), Tally(log)
    config = uvicorn.Config(
        app,
        http=Limited,
        ws="none",
        backlog=BACKLOG,
        server_header=False,
        log_config=None,
        access_log=False,
        lifespan="off",
        # The client is who connected; anybody may send a header that says otherwise.
        proxy_headers=False,
        timeout_graceful_shutdown=LAST_ANSWERS_S,
    )
    server = _Server(config)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    host, port = listener.getsockname()[:2]
    try:
        yield f"http://{host}:{port}"
    finally:
        before_end()
        server.should_exit = True
        await serving
