"""A web interface at an address, in a process that has more to do than to answer."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager

import uvicorn
from starlette.types import ASGIApp

from hubbub.errors import ConfigurationError
from hubbub.runtime.connections import BACKLOG, Limits, find_limits, hold_to
from hubbub.runtime.telemetry import WebRefusal

LAST_ANSWERS_S = 5
"""How long requests that are being answered may hold up the end: one may wait for a broker that is away."""


def listen(host: str, port: int, *, advice: str) -> socket.socket:
    """Take an address before anything is begun that it is needed for; `advice` says how to take another."""
    try:
        listener = socket.create_server((host, port))
    except (OSError, OverflowError) as error:
        problem = getattr(error, "strerror", None) or error
        raise ConfigurationError(f"cannot listen on {host}:{port}: {problem}; {advice}") from None
    # Who connects inherits it. Without it an answer of two writes waits 40 ms for the first to be acknowledged.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


class _Server(uvicorn.Server):
    """A server that leaves signals to its process, which closes the broker connection after the last answer."""

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
    """Answer for as long as this is open, and give the address; `before_end` lets go of those who only listen."""
    config = uvicorn.Config(
        app,
        http=hold_to(limits or find_limits(), count_refusal),
        ws="none",
        backlog=BACKLOG,
        server_header=False,
        log_config=None,
        access_log=False,
        lifespan="off",
        # Who asks is who connected; a header that says otherwise may come from anybody.
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
