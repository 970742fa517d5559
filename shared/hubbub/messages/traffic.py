"""Counting traffic: payload where it is packed, wire bytes where they first arrive."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from hubbub.messages.base import Claim
from hubbub.protocol.costs import SEED_BITS
from hubbub.protocol.encoding import WHOLE_BITS, Encoding
from hubbub.protocol.layout import Vector

Direction = Literal["up", "across", "down"]
"""From clients to aggregators, among aggregators, and back to clients."""
VectorName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9.-]{0,31}$")]
Amount = Annotated[int, Field(ge=0, lt=2**63)]


class Traffic(Claim):
    """What a party counted in a round: payload where it packed it, wire bytes where they first arrived."""

    counts_as: VectorName
    direction: Direction
    payload_bits: Amount = 0
    wire_bytes: Amount = 0


def count_payload(
    vectors: Sequence[Vector], direction: Direction, *, copies: int, encoding: Encoding = WHOLE_BITS
) -> tuple[Traffic, ...]:
    """Payload of these vectors, sent to that many recipients."""
    return tuple(
        Traffic(
            counts_as=vector.counts_as,
            direction=direction,
            payload_bits=encoding.bits(vector.length, vector.modulus) * copies,
        )
        for vector in vectors
    )


def count_seeds(vectors: Sequence[Vector], *, copies: int) -> tuple[Traffic, ...]:
    """Payload of seeds that stand for shares of these vectors; they count as the first of them."""
    first = vectors[0].counts_as
    return (Traffic(counts_as=first, direction="up", payload_bits=SEED_BITS * copies),) if copies else ()


def share_wire_bytes(payload_bytes: Mapping[str, int], frame_bytes: int) -> dict[str, int]:
    """Divide a frame's bytes: each vector has its own payload, the first one carries the framing."""
    shares = dict(payload_bytes)
    first = next(iter(shares))
    shares[first] += frame_bytes - sum(payload_bytes.values())
    return shares


def count_arrivals(wire_bytes: Mapping[str, int], direction: Direction) -> tuple[Traffic, ...]:
    """Wire bytes that arrived, by what they count as."""
    return tuple(
        Traffic(counts_as=name, direction=direction, wire_bytes=count) for name, count in wire_bytes.items()
    )
