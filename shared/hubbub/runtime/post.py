"""Puts messages into signed envelopes and envelopes on their way."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

from hubbub.ids import PartyId, Role
from hubbub.machine.effects import Key
from hubbub.messages.base import Message
from hubbub.messages.codec import covered, digest_payload, encode_signed, signed_part
from hubbub.messages.envelope import Envelope
from hubbub.transport.base import Transport
from hubbub.transport.topology import route
from hubbub.trust.identity import Identity
from hubbub.trust.roster import Roster
from hubbub.trust.signed import check_signature

DOMAIN = "message"
LONG_BYTES = 2**17
"""A payload beyond this takes longer to hash than to hand to a thread."""


def sign(identity: Identity, envelope: Envelope) -> Envelope:
    """Sign an envelope as its sender."""
    return replace(envelope, signature=identity.key.sign(DOMAIN, signed_part(envelope)))


def authenticate(roster: Roster, envelope: Envelope, frame: bytes) -> None:
    """Refuse an envelope that the sender it names has not signed; `frame` is what it was read from."""
    check_signature(roster, envelope.sender, envelope.signature, DOMAIN, covered(frame))


@dataclass(frozen=True, slots=True)
class Parcel:
    """A payload and its digest: made in the same thread, and once, to however many it goes."""

    content: bytes = field(repr=False)
    digest: bytes

    @classmethod
    def of(cls, content: bytes) -> Parcel:
        """Make the digest."""
        return cls(content, digest_payload(content))


class Post:
    """One party's way of sending; `note` is told of every message that the broker has taken, and its size."""

    def __init__(
        self, transport: Transport, identity: Identity, note: Callable[[Envelope, int], None] = lambda *_: None
    ) -> None:
        self._transport = transport
        self._identity = identity
        self._note = note

    async def send(
        self,
        key: Key,
        *,
        to: PartyId,
        role: Role,
        body: Message,
        phase: str = "",
        payload: bytes | Parcel = b"",
    ) -> None:
        """Send a message about the run, round and phase of `key`; returns when the broker has taken it."""
        content, digest = (payload.content, payload.digest) if isinstance(payload, Parcel) else (payload, None)
        envelope = Envelope(
            run=key.run,
            round=key.round,
            phase=phase or key.phase,
            sender=self._identity.name,
            recipient=to,
            message_id=secrets.token_hex(16),
            body=body,
            payload=content,
        )
        frame = await self._write(envelope, digest)
        await self._transport.publish(route(self._identity.role, role, to), frame)
        self._note(envelope, len(frame))

    async def _write(self, envelope: Envelope, digest: bytes | None) -> bytes:
        """Sign and encode; what takes long to hash, in a thread, for the loop has others to serve."""
        write = partial(encode_signed, envelope, partial(self._identity.key.sign, DOMAIN), digest)
        takes_long = digest is None and len(envelope.payload) > LONG_BYTES
        return await asyncio.to_thread(write) if takes_long else write()
