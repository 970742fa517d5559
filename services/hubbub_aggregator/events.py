"""Events that the aggregator's state machines handle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hubbub.errors import RejectReason
from hubbub.ids import PartyId, SetId
from hubbub.messages.shares import Receipt, Traffic
from hubbub.protocol.layout import Vector


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposed:
    """The coordinator proposes the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeysArrived:
    """Everybody's run keys, each signed by its owner, and their digest."""

    publics: Mapping[PartyId, bytes]
    keys_sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The coordinator's last word on the run."""

    outcome: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseEnded:
    """A phase was journalled: as released over these members, or as void (no members)."""

    round: int
    phase: str
    members: frozenset[PartyId]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkArrived:
    """A chunk of a share set, whose vectors the manifest admits, or the seed that expands to a whole set."""

    client: PartyId
    set_id: SetId
    vectors: tuple[Vector, ...]
    weight: int
    transcript: str
    index: int
    chunks: int
    wire_bytes: Mapping[str, int]
    at_s: float
    seed: bytes = field(default=b"", repr=False)
    """The sealed seed, which is the only chunk of its set. It is short, so the event carries it."""
    checked: bool = False
    """True if the chunk was opened already and is well-formed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartialArrived:
    """A chunk of another aggregator's sum; the signature of its release was checked."""

    aggregator: PartyId
    members: tuple[PartyId, ...]
    vectors: tuple[Vector, ...]
    transcript: str
    signature: str
    index: int
    chunks: int
    wire_bytes: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkChecked:
    """A spooled chunk was opened and is well-formed."""

    client: PartyId
    index: int
    at_s: float
    asked: int = 0
    """Resend requests for its set so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkBroken:
    """A spooled chunk was opened and is not what it claims to be."""

    client: PartyId
    index: int
    reason: RejectReason
    explanation: str
    asked: int = 0
    """Resend requests for its set so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiptsDue:
    """Complete sets have waited long enough for others to share a receipt with."""

    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SetDamaged:
    """A spooled chunk of a client's share set is gone, or is not as it was written."""

    client: PartyId
    index: int
    asked: int
    """Resend requests for its set so far."""
    path: str
    what: str
    """The damage, in words."""
    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AskDue:
    """Repeat open resend requests after a restart: the earlier ones may never have arrived."""

    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerOverdue:
    """A share set that we asked for again did not arrive within the phase timeout."""

    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseOrdered:
    """The coordinator orders a release over these members; every receipt's signature was checked."""

    members: tuple[PartyId, ...]
    receipts: tuple[Receipt, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class VoidOrdered:
    """The coordinator orders an end without a sum."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SumSent:
    """The sum was sent: to every client, or to the combiner."""

    vectors: tuple[Vector, ...]
    traffic: tuple[Traffic, ...]
