"""A TCP proxy that can cut, refuse and stall: what a network does to a connection, on request."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Self

from support.listening import let_in_the_last

_READ_BYTES = 2**16
# An RST instead of a FIN when the socket is closed, as if the peer had vanished.
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class _Direction:
    """One direction of all connections: it flows, or stands still, or will after so many bytes more."""

    def __init__(self) -> None:
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._stalled = asyncio.Event()
        self._bytes_left: int | None = None

    def stall(self, after_bytes: int = 0) -> None:
        self._bytes_left = after_bytes
        if not after_bytes:
            self._stand_still()

    def flow(self) -> None:
        self._bytes_left = None
        self._stalled.clear()
        self._flowing.set()

    async def wait_for_stall(self) -> None:
        await self._stalled.wait()

    async def pass_on(self, data: bytes, sink: asyncio.StreamWriter) -> None:
        while data:
            await self._flowing.wait()
            count = len(data) if self._bytes_left is None else min(len(data), self._bytes_left)
            sink.write(data[:count])
            data = data[count:]
            if self._bytes_left is not None:
                self._bytes_left -= count
                if not self._bytes_left:
                    self._stand_still()
            await sink.drain()

    def _stand_still(self) -> None:
        self._flowing.clear()
        self._stalled.set()


class FaultProxy:
    """Listens on a free port of its own and passes everything on to one address, until told otherwise."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._callers: dict[asyncio.StreamWriter, asyncio.StreamWriter] = {}
        self._abandoned: set[asyncio.StreamWriter] = set()
        self._pipes: set[asyncio.Task[None]] = set()
        self._forth, self._back = _Direction(), _Direction()
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
        await let_in_the_last()
        self.cut()
        for pipe in self._pipes:
            pipe.cancel()
        await asyncio.gather(*self._pipes, return_exceptions=True)
        await let_in_the_last()  # What was reset has to be told, too.

    async def resume(self) -> None:
        """Take connections, on the same port as before."""
        self._server = await asyncio.start_server(self._begin, "127.0.0.1", self.port)
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
            _reset(writer)
        self._writers.clear()
        self._callers.clear()

    def abandon(self) -> None:
        """Reset all connections towards those who made them; the address is told nothing."""
        for writer, target_writer in self._callers.items():
            self._abandoned.add(target_writer)
            _reset(writer)
        self._callers.clear()

    def stall(self) -> None:
        """Keep every connection open and pass nothing on."""
        self._forth.stall()
        self._back.stall()

    def stall_after(self, count: int) -> None:
        """Pass so many bytes on to the address, over all connections together, and then nothing more."""
        self._forth.stall(after_bytes=count)

    def hold_answers(self) -> None:
        """Pass on what is sent to the address, but nothing of what it answers."""
        self._back.stall()

    def flow(self) -> None:
        """End a stall."""
        self._forth.flow()
        self._back.flow()

    async def wait_for_stall(self) -> None:
        """Return when nothing more is passed on to the address."""
        await self._forth.wait_for_stall()

    async def wait_for_connections(self, count: int) -> None:
        """Return when so many connections were made since the start, whatever became of them."""
        async with self._connected:
            await self._connected.wait_for(lambda: self._served >= count)

    def _begin(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Know a connection from its first moment: a task that is cancelled before it begins closes nothing."""
        self._writers.add(writer)
        self._start(self._serve(reader, writer))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        pipe = asyncio.create_task(work)
        self._pipes.add(pipe)
        pipe.add_done_callback(self._pipes.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            target_reader, target_writer = await asyncio.open_connection(*self._target)
        except OSError:
            self._writers.discard(writer)
            writer.transport.abort()
            return
        if writer.is_closing():  # It was cut meanwhile.
            target_writer.transport.abort()
            return
        async with self._connected:
            self._served += 1
            self._connected.notify_all()
        self._writers.add(target_writer)
        self._callers[writer] = target_writer
        for source, sink in ((reader, target_writer), (target_reader, writer)):
            self._start(self._pump(source, sink))

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        direction = self._back if sink in self._callers else self._forth
        try:
            while data := await source.read(_READ_BYTES):
                await direction.pass_on(data, sink)
        except OSError:
            pass
        finally:
            self._callers.pop(sink, None)
            if sink not in self._abandoned:
                self._writers.discard(sink)
                sink.transport.abort()


def _reset(writer: asyncio.StreamWriter) -> None:
    if writer.is_closing():
        return
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
    writer.transport.abort()
