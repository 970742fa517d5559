"""A TCP proxy that can cut, refuse and stall: what a network does to a connection, on request."""

from __future__ import annotations

import asyncio
import socket
import struct
from types import TracebackType
from typing import Self

_READ_BYTES = 2**16
# An RST instead of a FIN when the socket is closed, as if the peer had vanished.
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class FaultProxy:
    """Listens on a free port of its own and passes everything on to one address, until told otherwise."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._pipes: set[asyncio.Task[None]] = set()
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._served = 0
        self._connected = asyncio.Condition()
        self.port = 0

    async def __aenter__(self) -> Self:
        await self.resume()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.refuse()
        for pipe in self._pipes:
            pipe.cancel()
        await asyncio.gather(*self._pipes, return_exceptions=True)

    async def resume(self) -> None:
        """Take connections, on the same port as before."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def refuse(self) -> None:
        """Cut all connections and take no new ones."""
        if self._server is not None:
            self._server.close()
            self._server = None
        self.cut()

    def cut(self) -> None:
        """Reset all connections; new ones are taken."""
        for writer in self._writers:
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            writer.transport.abort()
        self._writers.clear()

    def stall(self) -> None:
        """Keep every connection open and pass nothing on."""
        self._flowing.clear()

    def flow(self) -> None:
        """End a stall."""
        self._flowing.set()

    async def wait_for_connections(self, count: int) -> None:
        """Return when so many connections were made since the start, whatever became of them."""
        async with self._connected:
            await self._connected.wait_for(lambda: self._served >= count)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            target_reader, target_writer = await asyncio.open_connection(*self._target)
        except OSError:
            writer.transport.abort()
            return
        async with self._connected:
            self._served += 1
            self._connected.notify_all()
        self._writers |= {writer, target_writer}
        for source, sink in ((reader, target_writer), (target_reader, writer)):
            pipe = asyncio.create_task(self._pump(source, sink))
            self._pipes.add(pipe)
            pipe.add_done_callback(self._pipes.discard)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(_READ_BYTES):
                await self._flowing.wait()
                sink.write(data)
                await sink.drain()
        except OSError:
            pass
        finally:
            self._writers.discard(sink)
            sink.transport.abort()
