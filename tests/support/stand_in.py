"""A party made by hand: it says what a test wants said and keeps what it hears."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TypeVar

from hubbub.crypto.signing import verify
from hubbub.ids import PartyId, Role, RunId
from hubbub.messages.codec import covered
from hubbub.messages.envelope import Envelope, Message
from hubbub.runtime.publisher import DOMAIN
from hubbub.transport.base import ACK, Delivery, Transport, Verdict
from hubbub.transport.memory import MemoryBroker, MemoryTransport
from hubbub.transport.topology import received_from, route, topology_for
from hubbub.trust.identity import Identity
from support.frames import decode, encode, sign
from support.parties import make_identity

M = TypeVar("M", bound=Message)


class StandIn:
    """Messages to it must be signed, as by `make_identity`, by whom they say they are from."""

    def __init__(self, name: PartyId, role: Role, transport: Transport) -> None:
        self.name = name
        self.role = role
        self.heard: list[Envelope] = []
        self._unsigned: list[Envelope] = []
        self._transport = transport
        self._arrived = asyncio.Condition()

    async def take(self, delivery: Delivery) -> Verdict:
        envelope = decode(delivery.body)
        async with self._arrived:
            self.heard.append(envelope)
            if not self._is_signed(envelope, delivery.body):
                self._unsigned.append(envelope)
            self._arrived.notify_all()
        return ACK

    def _is_signed(self, envelope: Envelope, frame: bytes) -> bool:
        return verify(
            self._identity_of(envelope.sender).key.public, envelope.signature, DOMAIN, covered(frame, envelope)
        )

    def _identity_of(self, name: PartyId) -> Identity:
        """Anybody's: the key follows from the name, and nothing else is looked at here."""
        return make_identity(name, self.role, name)

    async def hear(
        self, kind: type[M], count: int = 1, *, round_number: int | None = None
    ) -> list[tuple[Envelope, M]]:
        """Wait until that many messages of a kind (and round) have come, and give them all."""

        def found() -> list[tuple[Envelope, M]]:
            return [
                (envelope, envelope.body)
                for envelope in self.heard
                if isinstance(envelope.body, kind) and round_number in {None, envelope.round}
            ]

        async with self._arrived:
            await self._arrived.wait_for(lambda: len(found()) >= count)
        assert self._unsigned == []
        return found()

    async def say(
        self,
        body: Message,
        *,
        to: PartyId,
        role: Role,
        run: RunId,
        round_number: int = 0,
        phase: str = "",
        payload: bytes = b"",
        recipient: PartyId | None = None,
        sender: PartyId | None = None,
        signer: PartyId | None = None,
    ) -> None:
        """Send a message, signed by whom it says it is from unless a test forges it."""
        envelope = Envelope(
            run=run,
            round=round_number,
            phase=phase,
            sender=sender or self.name,
            recipient=recipient or to,
            body=body,
            payload=payload,
        )
        signed = sign(self._identity_of(signer or envelope.sender), envelope)
        await self.shout(encode(signed), to=to, role=role)

    async def shout(self, frame: bytes, *, to: PartyId, role: Role) -> None:
        """Send bytes as they are."""
        await self._transport.publish(route(self.role, role, to), frame)


@asynccontextmanager
async def stand_in(broker: MemoryBroker, name: PartyId, role: Role) -> AsyncIterator[StandIn]:
    async with MemoryTransport(broker, topology_for(name, role)) as transport:
        party = StandIn(name, role, transport)
        for queue in received_from(name, role):
            await transport.subscribe(queue, party.take)
        yield party
