"""A server of a test's own, that leaves no connection open behind it."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

Handle = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

_CYCLES = 5


async def let_in_the_last() -> None:
    """Return when the event loop has told of every connection that was accepted, or closed, before."""
    for _ in range(_CYCLES):
        await asyncio.sleep(0)


@asynccontextmanager
async def listening(handle: Handle, *, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """Handle connections to a port until the block ends, and then close those that are still open.

    A handler that the end of the event loop cancels before it has begun closes nothing.
    """
    open_here: list[tuple[asyncio.Task[None], asyncio.StreamWriter]] = []

    async def work(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await handle(reader, writer)

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        open_here.append((asyncio.create_task(work(reader, writer)), writer))

    server = await asyncio.start_server(connected, "127.0.0.1", 0, ssl=tls)
    try:
        async with server:
            yield server.sockets[0].getsockname()[1]
    finally:
        await let_in_the_last()
        for task, writer in open_here:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()
