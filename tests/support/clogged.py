"""A transport that takes some of what a client deals, and then hangs."""

import asyncio

from hubbub.messages.codec import decode
from hubbub.messages.shares import ShareChunk, ShareSeed
from hubbub.transport.base import Address, Transport
from support.wrapping import Wrapping


class Clogged(Wrapping):
    """Takes so many seeds and chunks of shares, and then hangs."""

    def __init__(self, inner: Transport, messages: int) -> None:
        super().__init__(inner)
        self._left = messages
        self.stuck = asyncio.Event()

    async def publish(self, address: Address, body: bytes) -> None:
        if isinstance(decode(body).body, ShareChunk | ShareSeed):
            if not self._left:
                self.stuck.set()
                await asyncio.Event().wait()
            self._left -= 1
        await super().publish(address, body)
