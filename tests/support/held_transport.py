"""Transports from which share sets do not leave, or not all of them."""

import asyncio

from hubbub.ids import PartyId
from hubbub.messages.shares import ShareChunk, ShareSeed
from hubbub.transport.base import Address, Transport
from hubbub.transport.memory import MemoryBroker, MemoryTransport
from hubbub.transport.topology import Topology
from hubbub_local.federation import Connect
from support.frames import decode
from support.wrapping import WrappedTransport

Held = tuple[PartyId, int, str]
"""Client, round and phase."""


class Hold:
    """Keeps chosen share sets from leaving until the round has its verdict."""

    def __init__(self, *held: Held) -> None:
        self._gates = {each: asyncio.Event() for each in held}

    async def wait(self, body: bytes) -> None:
        envelope = decode(body)
        gate = self._gates.get((envelope.sender, envelope.round, envelope.phase))
        if gate is not None and isinstance(envelope.body, ShareChunk | ShareSeed):
            await gate.wait()

    def missing(self, number: int, phase: str) -> set[PartyId]:
        return {client for client, held, name in self._gates if (held, name) == (number, phase)}

    def lift(self, number: int) -> None:
        for (_, held, _), gate in self._gates.items():
            if held == number:
                gate.set()


class HeldTransport(WrappedTransport):
    """A transport that holds one client's shares back in chosen phases: a member that goes missing."""

    def __init__(self, inner: Transport, hold: Hold) -> None:
        super().__init__(inner)
        self._hold = hold

    async def publish(self, address: Address, body: bytes) -> None:
        await self._hold.wait(body)
        await super().publish(address, body)


def connect_held(hold: Hold) -> Connect:
    broker = MemoryBroker()

    def connect(_: PartyId, topology: Topology) -> Transport:
        return HeldTransport(MemoryTransport(broker, topology), hold)

    return connect


class StallingTransport(WrappedTransport):
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
