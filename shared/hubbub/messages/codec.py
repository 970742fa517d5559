"""Encoding and decoding of envelopes.

A frame is a prefix and four parts, integers big-endian:

    magic "HBUB" | version u16 | lengths of header u32, body u32, payload u32, signature u16
    header: JSON    body: JSON    payload: bytes as they are    signature: bytes

The signature covers everything before it except its own length, the payload by its SHA-256. It is verified over
the bytes that arrived, not over the decoded values. Bytes that are not exactly one message, bytes left over
included, raise `MalformedMessage`.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable
from itertools import accumulate, pairwise
from typing import Annotated, Final, TypeVar

from pydantic import StringConstraints, ValidationError

from hubbub.errors import MalformedMessage, RejectReason
from hubbub.messages.envelope import FORMAT_VERSION, Claim, Envelope, Message
from hubbub.messages.manifest import Index, Name, RunName, describe
from hubbub.messages.rounds import (
    ClosePhase,
    MaskedChunk,
    OrderRefused,
    PartialChunk,
    PhaseReleased,
    PhaseVoided,
    RoundApplied,
    RoundDropped,
    RoundOpened,
    RoundScored,
    SumChunk,
    VoidNotice,
    VoidPhase,
)
from hubbub.messages.runs import (
    GroupConfirmed,
    GroupContribution,
    PartyFailed,
    RunEnded,
    RunJoined,
    RunKeys,
    RunProposed,
    RunReady,
    RunRefused,
)
from hubbub.messages.shares import DenseShareChunk, ResendSet, SetReceived, SetRefused, ShareChunk, ShareSeed
from hubbub.messages.snapshots import ModelVouched, SnapshotChunk, SnapshotRequested

C = TypeVar("C", bound=Claim)
Buffer = bytes | memoryview

MAGIC: Final = b"HBUB"
PREFIX: Final = struct.Struct(">4sHIIIH")
MAX_JSON_BYTES: Final = 4 << 20

KINDS: Final[dict[str, type[Message]]] = {
    message.kind: message
    for message in (
        *(RunProposed, RunJoined, RunRefused, RunEnded, PartyFailed),
        *(RunKeys, GroupContribution, GroupConfirmed, RunReady),
        *(RoundOpened, ClosePhase, VoidPhase, PhaseReleased, PhaseVoided, OrderRefused),
        *(RoundApplied, RoundDropped, RoundScored, ShareChunk, SetReceived, SetRefused, SumChunk, VoidNotice),
        *(SnapshotRequested, ModelVouched, SnapshotChunk),
        *(DenseShareChunk, ShareSeed, PartialChunk, MaskedChunk, ResendSet),
    )
}


class _Header(Claim):
    kind: str
    run: RunName
    round: Index
    phase: Annotated[str, StringConstraints(pattern=r"^[a-z-]{0,32}$")]
    sender: Name
    recipient: Name
    message_id: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{32}$")]


def signed_part(envelope: Envelope) -> bytes:
    """Return the bytes that an envelope's signature covers."""
    return _covered(*_parts(envelope, signature_bytes=0), digest_payload(envelope.payload))


def encode(envelope: Envelope) -> bytes:
    """Write an envelope as a frame."""
    prefix, head, body = _parts(envelope, signature_bytes=len(envelope.signature))
    return b"".join((prefix, head, body, envelope.payload, envelope.signature))


def digest_payload(payload: Buffer) -> bytes:
    """Return the digest by which a signature covers a payload."""
    return hashlib.sha256(payload).digest()


def encode_signed(
    envelope: Envelope, sign: Callable[[bytes], bytes], payload_digest: bytes | None = None
) -> bytes:
    """Sign an envelope and write its frame; header and body are written once.

    A payload that goes to several recipients need be hashed only once: pass its digest.
    """
    prefix, head, body = _parts(envelope, signature_bytes=0)
    signature = sign(_covered(prefix, head, body, payload_digest or digest_payload(envelope.payload)))
    prefix = _prefix(head, body, envelope.payload, len(signature))
    return b"".join((prefix, head, body, envelope.payload, signature))


def covered(frame: bytes) -> bytes:
    """Return the bytes of a frame that its signature covers, as they arrived."""
    head, body, payload, _ = _cut(frame)
    return _covered(frame[: PREFIX.size - 2] + bytes(2), head, body, digest_payload(payload))


def _parts(envelope: Envelope, *, signature_bytes: int) -> tuple[bytes, bytes, bytes]:
    """Write prefix, header and body."""
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
    return _prefix(head, body, envelope.payload, signature_bytes), head, body


def _prefix(head: bytes, body: bytes, payload: bytes, signature_bytes: int) -> bytes:
    return PREFIX.pack(MAGIC, FORMAT_VERSION, len(head), len(body), len(payload), signature_bytes)


def _covered(prefix: bytes, head: Buffer, body: Buffer, payload_digest: bytes) -> bytes:
    """Join the signed parts: of the payload, which may be large, only the digest."""
    return b"".join((prefix, head, body, payload_digest))


def decode(frame: bytes) -> Envelope:
    """Read a frame, or raise `MalformedMessage`, which says what is wrong with it."""
    head, body, payload, signature = _cut(frame)
    header = _read(_Header, bytes(head), "header")
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
        body=_read(model, bytes(body), f"body of {header.kind}"),
        payload=bytes(payload),
        signature=bytes(signature),
    )


def _cut(frame: bytes) -> tuple[memoryview, memoryview, memoryview, memoryview]:
    """Check the prefix and cut the frame into its four parts, without copying them."""
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
    view = memoryview(frame)
    head, body, payload, signature = (view[start:stop] for start, stop in pairwise(ends))
    return head, body, payload, signature


def _read(model: type[C], text: bytes, what: str) -> C:
    try:
        return model.model_validate_json(text)
    except ValidationError as error:
        raise MalformedMessage(f"the {what} is not valid: {describe(error)}") from None
