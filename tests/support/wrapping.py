"""A transport around another, which does as that one does: those that do one thing differently say only that."""

from typing import Self

from hubbub.transport.base import Address, Condition, Handler, Transport


class Wrapping(Transport):
    """Another transport."""

    def __init__(self, inner: Transport) -> None:
        self._inner = inner

    async def publish(self, address: Address, body: bytes) -> None:
        await self._inner.publish(address, body)

    async def subscribe(self, queue: str, handler: Handler, *, prefetch: int = 8) -> None:
        await self._inner.subscribe(queue, handler, prefetch=prefetch)

    def pause(self, queue: str) -> None:
        self._inner.pause(queue)

    def resume(self, queue: str) -> None:
        self._inner.resume(queue)

    @property
    def condition(self) -> Condition:
        return self._inner.condition

    async def count_waiting(self, queue: str) -> int:
        return await self._inner.count_waiting(queue)

    async def close(self) -> None:
        await self._inner.close()

    async def __aenter__(self) -> Self:
        await self._inner.__aenter__()
        return self
