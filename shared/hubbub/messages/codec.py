"""Encoding and decoding of envelopes.

A frame is a prefix and three parts, integers big-endian:

    magic "HBUB" | version u16 | length of head u32
    head: msgpack    payload: bytes as they are    signature: the last 64 bytes, or none

The head is the array [kind, run, round, phase, sender, recipient, length of payload, body] in its wire form
(`hubbub.messages.wire_form`). The kind is its place in `KINDS`. The run is the first bytes of its id or, in what a
coordinator sends, all of them: a party that has lost its state answers it. Sender and recipient go by name before
the first round, as long as their rosters may differ, and then by their numbers in the roster.

The signature covers prefix and head as they arrived, the payload by its SHA-256, the whole id of the run, and the
names of sender and recipient. A head has one encoding: one that would be encoded otherwise is refused. Bytes that
are not exactly one message, bytes left over included, raise `MalformedMessage`.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable
from typing import Annotated, Any, Final, NamedTuple, TypeVar

import msgspec
from pydantic import StringConstraints, ValidationError

from hubbub.errors import MalformedMessage, PeerError, RejectReason
from hubbub.ids import PartyId, RunId, is_party_id
from hubbub.messages.envelope import COORDINATOR, FORMAT_VERSION, Claim, Envelope, Message
from hubbub.messages.manifest import Index, describe
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
from hubbub.messages.wire_form import RUN_PREFIX_BYTES, Directory, pack, shorten, unpack

C = TypeVar("C", bound=Claim)
Buffer = bytes | memoryview

MAGIC: Final = b"HBUB"
PREFIX: Final = struct.Struct(">4sHI")
MAX_HEAD_BYTES: Final = 4 << 20
HEAD_FIELDS: Final = 8
RUN_ID_BYTES: Final = 32
SIGNATURE_BYTES: Final = 64

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


_KINDS_IN_ORDER: Final = tuple(KINDS)
KIND_NUMBERS: Final = {kind: number for number, kind in enumerate(KINDS)}

_encode_head = msgspec.msgpack.Encoder().encode
_decode_head = msgspec.msgpack.Decoder().decode


class _Head(Claim):
    """Those fields of the head that pydantic checks."""

    round: Index
    phase: Annotated[str, StringConstraints(pattern=r"^[a-z-]{0,32}$")]
    payload_bytes: Index


class _Parts(NamedTuple):
    head: memoryview
    """With the prefix before it."""
    rest: memoryview


def signed_part(envelope: Envelope, directory: Directory) -> bytes:
    """Return the bytes that an envelope's signature covers."""
    return _covered(_write_head(envelope, directory), envelope, digest_payload(envelope.payload))


def encode(envelope: Envelope, directory: Directory) -> bytes:
    """Write an envelope as a frame."""
    return b"".join((_write_head(envelope, directory), envelope.payload, envelope.signature))


def digest_payload(payload: Buffer) -> bytes:
    """Return the digest by which a signature covers a payload."""
    return hashlib.sha256(payload).digest()


def encode_signed(
    envelope: Envelope,
    directory: Directory,
    sign: Callable[[bytes], bytes],
    payload_digest: bytes | None = None,
) -> bytes:
    """Sign an envelope and write its frame; the head is written once.

    A payload that goes to several recipients need be hashed only once: pass its digest.
    """
    head = _write_head(envelope, directory)
    signature = sign(_covered(head, envelope, payload_digest or digest_payload(envelope.payload)))
    return b"".join((head, envelope.payload, signature))


def covered(frame: bytes, envelope: Envelope) -> bytes:
    """Return what the signature of a frame covers: its bytes as they arrived, and names from what was decoded."""
    return _covered(_cut(frame).head, envelope, digest_payload(envelope.payload))


def _covered(head: Buffer, envelope: Envelope, payload_digest: bytes) -> bytes:
    """Join the signed parts: of the payload, which may be large, only the digest.

    The prefix says where the head ends, digest and run have a fixed length, and no name holds a zero byte.
    """
    names = f"{envelope.run}{envelope.sender}\0{envelope.recipient}"
    return b"".join((head, payload_digest, names.encode()))


def _write_head(envelope: Envelope, directory: Directory) -> bytes:
    """Write prefix and head."""
    head = _encode_head(
        (
            KIND_NUMBERS[envelope.kind],
            _name_run(type(envelope.body), envelope.run),
            envelope.round,
            envelope.phase,
            _name_party(envelope.sender, envelope.round, directory),
            _name_party(envelope.recipient, envelope.round, directory),
            len(envelope.payload),
            pack(envelope.body, directory),
        )
    )
    return PREFIX.pack(MAGIC, FORMAT_VERSION, len(head)) + head


def _name_run(kind: type[Message], run: RunId) -> bytes:
    """Return the run's id: all of it in what a coordinator sends, otherwise its first bytes."""
    return bytes.fromhex(run) if kind.senders == COORDINATOR else shorten(run)


def _name_party(party: PartyId, round_number: int, directory: Directory) -> str | int:
    return directory.number(party) if round_number else party


def decode(frame: bytes, directory: Directory) -> Envelope:
    """Read a frame; raise `PeerError`, mostly a `MalformedMessage`, which says what is wrong with it."""
    parts = _cut(frame)
    number, run, round_number, phase, sender, recipient, payload_bytes, body = _split_head(parts)
    kind = _find_kind(number)
    fields = {"round": round_number, "phase": phase, "payload_bytes": payload_bytes}
    head = _validate(_Head, lambda: fields, "head")
    payload, signature = _split_rest(parts.rest, head.payload_bytes)
    envelope = Envelope(
        run=_find_run(kind, run, directory),
        round=head.round,
        phase=head.phase,
        sender=_find_party(sender, head.round, directory, RejectReason.NOT_IN_ROSTER),
        recipient=_find_party(recipient, head.round, directory, RejectReason.WRONG_RECIPIENT),
        body=_read_body(kind, body, directory),
        payload=payload,
        signature=signature,
    )
    if _write_head(envelope, directory) != parts.head:
        raise MalformedMessage(f"the head of {kind.kind} is not encoded as this version encodes it")
    return envelope


def _cut(frame: bytes) -> _Parts:
    """Check the prefix and cut the frame behind its head, without copying."""
    if len(frame) < PREFIX.size:
        raise MalformedMessage(f"the frame ends after {len(frame)} bytes, before its prefix is complete")
    magic, version, length = PREFIX.unpack_from(frame)
    if magic != MAGIC:
        raise MalformedMessage("the frame does not begin with Hubbub's magic bytes")
    if version != FORMAT_VERSION:
        raise MalformedMessage(
            f"the frame has version {version}; this party speaks version {FORMAT_VERSION}: upgrade the older one",
            RejectReason.UNKNOWN_VERSION,
        )
    if length > MAX_HEAD_BYTES:
        raise MalformedMessage(f"a head of {length} bytes is over {MAX_HEAD_BYTES}")
    end = PREFIX.size + length
    if len(frame) < end:
        raise MalformedMessage(f"the frame is truncated: {len(frame)} bytes, and its head ends after {end}")
    view = memoryview(frame)
    return _Parts(view[:end], view[end:])


def _split_head(parts: _Parts) -> list[Any]:
    try:
        head = _decode_head(parts.head[PREFIX.size :])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise MalformedMessage("the head is not msgpack") from None
    if not isinstance(head, list) or len(head) != HEAD_FIELDS:
        raise MalformedMessage(f"the head is not an array of {HEAD_FIELDS} fields")
    return head


def _split_rest(rest: memoryview, payload_bytes: int) -> tuple[bytes, bytes]:
    left = len(rest) - payload_bytes
    if left < 0:
        raise MalformedMessage(f"the frame is truncated: it has {len(rest)} of {payload_bytes} bytes of payload")
    if left not in {0, SIGNATURE_BYTES}:
        raise MalformedMessage(f"{left} bytes follow the payload; a signature has {SIGNATURE_BYTES}")
    return bytes(rest[:payload_bytes]), bytes(rest[payload_bytes:])


def _find_kind(number: object) -> type[Message]:
    if type(number) is not int or not 0 <= number < len(KINDS):
        raise MalformedMessage(f"no message is of kind {str(number)[:40]!r}", RejectReason.UNKNOWN_KIND)
    return KINDS[_KINDS_IN_ORDER[number]]


def _find_run(kind: type[Message], name: object, directory: Directory) -> RunId:
    length = RUN_ID_BYTES if kind.senders == COORDINATOR else RUN_PREFIX_BYTES
    if not isinstance(name, bytes) or len(name) != length:
        raise MalformedMessage(f"the head of {kind.kind} does not name its run by {length} bytes")
    run = RunId(name.hex()) if length == RUN_ID_BYTES else directory.find_run(name)
    if run is None:
        raise PeerError(
            RejectReason.UNKNOWN_RUN, f"{kind.kind}: no run is known here whose id begins with {name.hex()}"
        )
    return run


def _find_party(name: object, round_number: int, directory: Directory, otherwise: RejectReason) -> PartyId:
    if round_number == 0:
        if not isinstance(name, str) or not is_party_id(name):
            raise MalformedMessage("the sender or the recipient is not given by its name")
        return PartyId(name)
    party = directory.party(name)
    if party is None:
        raise PeerError(otherwise, f"the roster has no party with the number {str(name)[:40]!r}")
    return party


def _read_body(kind: type[Message], body: object, directory: Directory) -> Message:
    return _validate(kind, lambda: unpack(kind, body, directory), f"body of {kind.kind}")


def _validate(model: type[C], read: Callable[[], object], what: str) -> C:
    try:
        return model.model_validate(read())
    except ValidationError as error:
        raise MalformedMessage(f"the {what} is not valid: {describe(error)}") from None
