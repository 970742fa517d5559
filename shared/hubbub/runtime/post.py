"""Puts messages into envelopes and envelopes on their way."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from hubbub.ids import PartyId, Role
from hubbub.machine.effects import Key
from hubbub.messages.base import Message
from hubbub.messages.codec import encode
from hubbub.messages.envelope import Envelope
from hubbub.transport.base import Transport
from hubbub.transport.topology import route


@dataclass(frozen=True, slots=True)
class Identity:
    """Who this service is."""

    name: PartyId
    role: Role


class Post:
    """One party's way of sending."""

    def __init__(self, transport: Transport, identity: Identity) -> None:
        self._transport = transport
        self._identity = identity

    async def send(
        self, key: Key, *, to: PartyId, role: Role, body: Message, phase: str = "", payload: bytes = b""
    ) -> None:
        """Send a message about the run, round and phase of `key`; returns when the broker has taken it."""
        envelope = Envelope(
            run=key.run,
            round=key.round,
            phase=phase or key.phase,
            sender=self._identity.name,
            recipient=to,
            message_id=secrets.token_hex(16),
            body=body,
            payload=payload,
        )
        await self._transport.publish(route(self._identity.role, role, to), encode(envelope))
