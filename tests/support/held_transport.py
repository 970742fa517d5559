"""A transport in memory that holds one client's shares back in chosen phases: a member that goes missing."""

import asyncio
from typing import Self

from hubbub.ids import PartyId
from hubbub.messages.codec import decode
from hubbub.messages.shares import ShareChunk
from hubbub.transport.base import Address, Condition, Handler, Transport
from hubbub.transport.memory import MemoryBroker, MemoryTransport
from hubbub.transport.topology import Topology
from hubbub_local.federation import Connect

Held = tuple[PartyId, int, str]
"""Client, round and phase."""


class Hold:
    """Keeps chosen share sets from leaving until the round has its verdict."""

    def __init__(self, *held: Held) -> None:
        self._gates = {each: asyncio.Event() for each in held}

    async def wait(self, body: bytes) -> None:
        envelope = decode(body)
        gate = self._gates.get((envelope.sender, envelope.round, envelope.phase))
        if gate is not None and isinstance(envelope.body, ShareChunk):
            await gate.wait()

    def missing(self, number: int, phase: str) -> set[PartyId]:
        return {client for client, held, name in self._gates if (held, name) == (number, phase)}

    def lift(self, number: int) -> None:
        for (_, held, _), gate in self._gates.items():
            if held == number:
                gate.set()


class HeldTransport(Transport):
    """Another transport, but for what is held."""

    def __init__(self, inner: Transport, hold: Hold) -> None:
        self._inner = inner
        self._hold = hold

    async def publish(self, address: Address, body: bytes) -> None:
        await self._hold.wait(body)
        await self._inner.publish(address, body)

    async def subscribe(self, queue: str, handler: Handler, *, prefetch: int = 8) -> None:
        await self._inner.subscribe(queue, handler, prefetch=prefetch)

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


def connect_held(hold: Hold) -> Connect:
    broker = MemoryBroker()

    def connect(_: PartyId, topology: Topology) -> Transport:
        return HeldTransport(MemoryTransport(broker, topology), hold)

    return connect
