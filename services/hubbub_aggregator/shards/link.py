"""The line between a head and a worker: a pair of sockets that nobody else can reach."""

from __future__ import annotations

import asyncio
import socket
from typing import Self

from hubbub.errors import LocalError
from hubbub_aggregator.shards.words import Word, read_word, write_word

MAX_LINE_BYTES = 1 << 28
"""The longest word lists the chunks of all clients: some hundred bytes of each set, and ten of each chunk."""


class LinkLost(LocalError):
    """The other end is gone."""


class Link:
    """One end of it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def over(cls, end: socket.socket) -> Self:
        """Take an end of a pair of sockets."""
        return cls(*await asyncio.open_unix_connection(sock=end, limit=MAX_LINE_BYTES))

    async def send(self, word: Word) -> None:
        """Send a word; `LinkLost` if nobody is there to read it."""
        try:
            self._writer.write(write_word(word))
            await self._writer.drain()
        except (ConnectionError, RuntimeError) as error:
            raise LinkLost(f"the other process is gone: {type(error).__name__}") from None

    async def receive(self) -> Word | None:
        """The next word; None when the other end is closed, however that came."""
        try:
            line = await self._reader.readline()
        except ConnectionError:
            return None
        return read_word(line) if line.endswith(b"\n") else None

    def close(self) -> None:
        """Close this end, which ends the other."""
        self._writer.close()
