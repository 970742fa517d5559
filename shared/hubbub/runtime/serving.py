"""Web server inside a process that has other work."""

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
"""Timeout of a graceful shutdown: a running request may wait for a broker that is away."""


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
    config = uvicorn.Config(
        app,
        http=hold_to(limits or find_limits(), count_refusal),
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
