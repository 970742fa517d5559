"""Envelopes to bytes and back.

A frame is a prefix and four parts, integers big-endian:

    magic "HBUB" | version u16 | lengths of header u32, body u32, payload u32, signature u16
    header: JSON    body: JSON    payload: bytes as they are    signature: bytes

The signature covers everything before it except its own length. Every way in which bytes can fail to be a
message, bytes left over included, is a `MalformedMessage`.
"""

from __future__ import annotations

import struct
from itertools import accumulate, pairwise
from typing import Annotated, Final, TypeVar

from pydantic import Field, StringConstraints, ValidationError

from hubbub.errors import MalformedMessage, RejectReason
from hubbub.ids import PARTY_ID_PATTERN, RUN_ID_PATTERN, PartyId, RunId
from hubbub.messages.base import Claim, Message
from hubbub.messages.envelope import FORMAT_VERSION, Envelope
from hubbub.messages.manifest import describe
from hubbub.messages.rounds import (
    ClosePhase,
    OrderRefused,
    PhaseReleased,
    PhaseVoided,
    RoundApplied,
    RoundDropped,
    RoundOpened,
    VoidPhase,
)
from hubbub.messages.runs import PartyFailed, RunEnded, RunJoined, RunProposed, RunRefused
from hubbub.messages.shares import SetReceived, SetRefused, ShareChunk
from hubbub.messages.sums import SumChunk, VoidNotice

C = TypeVar("C", bound=Claim)

MAGIC: Final = b"HBUB"
PREFIX: Final = struct.Struct(">4sHIIIH")
MAX_JSON_BYTES: Final = 4 << 20

KINDS: Final[dict[str, type[Message]]] = {
    message.kind: message
    for message in (
        *(RunProposed, RunJoined, RunRefused, RunEnded, PartyFailed),
        *(RoundOpened, ClosePhase, VoidPhase, PhaseReleased, PhaseVoided, OrderRefused),
        *(RoundApplied, RoundDropped, ShareChunk, SetReceived, SetRefused, SumChunk, VoidNotice),
    )
}


class _Header(Claim):
    kind: str
    run: Annotated[RunId, StringConstraints(pattern=RUN_ID_PATTERN)]
    round: Annotated[int, Field(ge=0, lt=2**31)]
    phase: Annotated[str, StringConstraints(pattern=r"^[a-z-]{0,32}$")]
    sender: Annotated[PartyId, StringConstraints(pattern=PARTY_ID_PATTERN)]
    recipient: Annotated[PartyId, StringConstraints(pattern=PARTY_ID_PATTERN)]
    message_id: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{32}$")]


def signed_part(envelope: Envelope) -> bytes:
    """The bytes that a signature covers."""
    header = _Header(
        kind=envelope.kind,
        run=envelope.run,
        round=envelope.round,
        phase=envelope.phase,
        sender=envelope.sender,
        recipient=envelope.recipient,
        message_id=envelope.message_id,
    )
    head, body = header.model_dump_json().encode(), envelope.body.model_dump_json().encode()
    prefix = PREFIX.pack(MAGIC, FORMAT_VERSION, len(head), len(body), len(envelope.payload), 0)
    return b"".join((prefix, head, body, envelope.payload))


def encode(envelope: Envelope) -> bytes:
    """Write a frame."""
    covered = signed_part(envelope)
    if not envelope.signature:
        return covered
    prefix = covered[: PREFIX.size - 2] + len(envelope.signature).to_bytes(2, "big")
    return b"".join((prefix, memoryview(covered)[PREFIX.size :], envelope.signature))


def decode(frame: bytes) -> Envelope:
    """Read a frame, or raise `MalformedMessage` saying what is wrong with it."""
    head, body, payload, signature = _cut(frame)
    header = _read(_Header, head, "header")
    model = KINDS.get(header.kind)
    if model is None:
        raise MalformedMessage(f"no message is of kind {header.kind[:40]!r}", RejectReason.UNKNOWN_KIND)
    return Envelope(
        run=header.run,
        round=header.round,
        phase=header.phase,
        sender=header.sender,
        recipient=header.recipient,
        message_id=header.message_id,
        body=_read(model, body, f"body of {header.kind}"),
        payload=payload,
        signature=signature,
    )


def _cut(frame: bytes) -> tuple[bytes, bytes, bytes, bytes]:
    """Check the prefix and cut the frame into its four parts."""
    if len(frame) < PREFIX.size:
        raise MalformedMessage(f"the frame ends after {len(frame)} bytes, before its prefix is complete")
    magic, version, *lengths = PREFIX.unpack_from(frame)
    if magic != MAGIC:
        raise MalformedMessage("the frame does not begin with Hubbub's magic bytes")
    if version != FORMAT_VERSION:
        raise MalformedMessage(
            f"the frame has version {version}; this party speaks version {FORMAT_VERSION}: upgrade the older one",
            RejectReason.UNKNOWN_VERSION,
        )
    expected = PREFIX.size + sum(lengths)
    if len(frame) < expected:
        raise MalformedMessage(f"the frame is truncated: {len(frame)} bytes of {expected}")
    if len(frame) > expected:
        raise MalformedMessage(f"{len(frame) - expected} bytes are left over after the frame")
    if max(lengths[:2]) > MAX_JSON_BYTES:
        raise MalformedMessage(f"a header or body of {max(lengths[:2])} bytes is over {MAX_JSON_BYTES}")
    ends = list(accumulate(lengths, initial=PREFIX.size))
    head, body, payload, signature = (frame[start:stop] for start, stop in pairwise(ends))
    return head, body, payload, signature


def _read(model: type[C], text: bytes, what: str) -> C:
    try:
        return model.model_validate_json(text)
    except ValidationError as error:
        raise MalformedMessage(f"the {what} is not valid: {describe(error)}") from None
