"""Messages that carry share sets, an aggregator's receipts for them, and traffic counters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field, StringConstraints

from hubbub.errors import RejectReason
from hubbub.ids import SET_ID_PATTERN, PartyId, SetId
from hubbub.messages.envelope import AGGREGATOR, CLIENT, COORDINATOR, Claim, Message, WireMark
from hubbub.messages.manifest import Digest, Index, Name, Signature
from hubbub.protocol.costs import SEED_BITS
from hubbub.protocol.layout import DENSE, WHOLE_BITS, Encoding, Vector
from hubbub.protocol.packing import is_modulus

Direction = Literal["up", "across", "down"]
"""Direction of traffic: from clients to aggregators, among aggregators, and back to clients."""
VectorName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9.-]{0,31}$")]
Amount = Annotated[int, Field(ge=0, lt=2**63)]


class Traffic(Claim):
    """A party's traffic in a round: payload is counted where it is packed, wire bytes where they first arrive."""

    counts_as: VectorName
    direction: Direction
    payload_bits: Amount = 0
    wire_bytes: Amount = 0


def count_payload(
    vectors: Sequence[Vector], direction: Direction, *, copies: int, encoding: Encoding = WHOLE_BITS
) -> tuple[Traffic, ...]:
    """Count the payload of these vectors, sent to `copies` recipients."""
    return tuple(
        Traffic(
            counts_as=vector.counts_as,
            direction=direction,
            payload_bits=encoding.bits(vector.length, vector.modulus) * copies,
        )
        for vector in vectors
    )


def count_seeds(vectors: Sequence[Vector], *, copies: int) -> tuple[Traffic, ...]:
    """Count the payload of seeds that are sent for shares of these vectors; they count as the first of them."""
    first = vectors[0].counts_as
    return (Traffic(counts_as=first, direction="up", payload_bits=SEED_BITS * copies),) if copies else ()


def share_wire_bytes(payload_bytes: Mapping[str, int], frame_bytes: int) -> dict[str, int]:
    """Divide a frame's bytes: each vector counts its own payload, the first one also the framing."""
    shares = dict(payload_bytes)
    first = next(iter(shares))
    shares[first] += frame_bytes - sum(payload_bytes.values())
    return shares


def count_arrivals(wire_bytes: Mapping[str, int], direction: Direction) -> tuple[Traffic, ...]:
    """Count the wire bytes that arrived, by what they count as."""
    return tuple(
        Traffic(counts_as=name, direction=direction, wire_bytes=count) for name, count in wire_bytes.items()
    )


ShareSetId = Annotated[SetId, StringConstraints(pattern=SET_ID_PATTERN), WireMark.HEX]

MAX_RESENDS = 3
"""The most times that a client resends its set of a phase to an aggregator.

One for a damaged disk, one for a request that a restart repeats, one to spare. A corrupt aggregator gets no more
than three further copies of what it has.
"""


def _check_modulus(m: int) -> int:
    if not is_modulus(m):
        raise ValueError("there is no such ring")
    return m


class VectorClaim(Claim):
    """A vector as its sender declares it: name, n and m."""

    name: VectorName
    length: Annotated[int, Field(ge=0, lt=2**40)]
    modulus: Annotated[int, AfterValidator(_check_modulus), WireMark.WORD]

    @property
    def vector(self) -> Vector:
        """The same as a `Vector` of the protocol."""
        return Vector(self.name, self.length, self.modulus)


Vectors = Annotated[tuple[VectorClaim, ...], Field(min_length=1, max_length=8)]


def declare(vectors: tuple[Vector, ...]) -> tuple[VectorClaim, ...]:
    """Declare vectors in a message."""
    return tuple(VectorClaim(name=v.name, length=v.length, modulus=v.modulus) for v in vectors)


class ShareSet(Message, senders=CLIENT, recipients=AGGREGATOR):
    """A client's share set for an aggregator, or a part of it.

    The transcript is a keyed digest of everything from others that the set's content depends on. Aggregators
    cannot read it, and add only sets in which it is equal.
    """

    set_id: ShareSetId
    vectors: Vectors
    weight: Annotated[int, Field(ge=1, lt=2**53)] = 1
    transcript: Digest


class ShareChunk(ShareSet, kind="share-chunk"):
    """One chunk of a share set; the payload is the packed share, sealed."""

    encoding: ClassVar[Encoding] = WHOLE_BITS

    index: Index


class DenseShareChunk(ShareChunk, kind="dense-share-chunk"):
    """One chunk of a share set on the compact wire: residues are packed densely."""

    encoding: ClassVar[Encoding] = DENSE


class ShareSeed(ShareSet, kind="share-seed"):
    """A whole share set, as the seed that it expands from; the payload is the seed, sealed."""


class ReceivedSet(Claim):
    """A client's share set, as a receipt names it."""

    client: Name
    set_id: ShareSetId


def _check_one_set_each(sets: tuple[ReceivedSet, ...]) -> tuple[ReceivedSet, ...]:
    if len({each.client for each in sets}) != len(sets):
        raise ValueError("a receipt names two sets of one client")
    return sets


class Receipt(Claim):
    """An aggregator's statement that it holds these share sets, complete and well-formed.

    All of them declare the same vectors and have the same transcript. They are in the manifest's order of clients.
    """

    aggregator: Name
    sets: Annotated[tuple[ReceivedSet, ...], Field(min_length=1), AfterValidator(_check_one_set_each)]
    vectors: Vectors
    transcript: Digest

    @property
    def set_of(self) -> Mapping[PartyId, SetId]:
        """Client to the id of its set."""
        return {each.client: each.set_id for each in self.sets}


class SignedReceipt(Claim):
    """A receipt that others can verify: the signature also covers run, round and phase."""

    receipt: Receipt
    signature: Signature


class SetReceived(Message, kind="set-received", senders=AGGREGATOR, recipients=COORDINATOR):
    """An aggregator gives the coordinator its receipt for one or several share sets."""

    receipt: SignedReceipt


class SetRefused(Message, kind="set-refused", senders=AGGREGATOR, recipients=COORDINATOR):
    """An aggregator refuses to add a client's share set: a chunk of it was broken."""

    client: Name
    set_id: ShareSetId
    reason: RejectReason


class ResendSet(Message, kind="resend-set", senders=AGGREGATOR, recipients=CLIENT):
    """An aggregator asks for a client's set again, because its disk damaged or lost it."""

    set_id: ShareSetId
