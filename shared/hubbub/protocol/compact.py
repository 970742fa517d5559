"""SecureSum with seeds and masks: Alg. 1 of Beguier et al. for less traffic, chunk by chunk.

    client i    M_i = PRG(group secret; i), R_{i,j} = PRG(seed_{i,j}) for all servers j but one,
                and that one's R_{i,f} = X_i + M_i - Σ_j R_{i,j}                                share_masked
    server j    R_j = Σ_i R_{i,j}, over what it was sent or expands itself                      accumulate_chunk
    combiner    Y = Σ_j R_j = Σ_i (X_i + M_i)                                                   accumulate_chunk
    client      Z = Y - Σ_i M_i = Σ_i X_i                                                       unmask

X_i and all that follows are vectors of words mod 2^w, each of which holds g residues mod m (`dense`). The
residues of a sum are the sums of the residues if these stay below m; where m is a power of two they may wrap.

Any S - 1 of a client's shares are, to whoever cannot tell AES from random, independent and uniform, and so is Y to
whoever lacks the group secret. Every piece of every vector has a stream of its own, so chunks come in any order.
"""

from collections.abc import Callable, Iterator, Sequence

from hubbub.protocol.dense import Digits
from hubbub.protocol.encoding import DENSE
from hubbub.protocol.layout import Chunk, Payload, Piece, Vector, split_payload
from hubbub.protocol.ring import RandomStream
from hubbub.protocol.totals import Total, begin_total

Streams = Callable[[Vector], RandomStream]
"""The stream of one vector's piece in a chunk: begun anew each time it is asked for."""


def share_masked(
    chunk: Chunk,
    vectors: Sequence[Vector],
    values: Sequence[Digits],
    *,
    mask: Streams,
    seeded: Sequence[Streams],
) -> bytes:
    """The one share of a chunk that is sent in full, packed; `seeded` are the others."""
    totals = _begin(chunk, vectors)
    for piece, total in zip(chunk, totals, strict=True):
        vector = vectors[piece.vector]
        total.add(values[piece.vector][piece.elements])
        total.add_expanded(mask(vector))
        for streams in seeded:
            total.subtract_expanded(streams(vector))
    return _pack(totals)


def accumulate_chunk(
    chunk: Chunk, vectors: Sequence[Vector], *, full: Sequence[Callable[[], Payload]], seeded: Sequence[Streams]
) -> bytes:
    """Add one chunk of shares, or of sums, that were sent in full or follow from seeds, and pack the sum."""
    totals = _begin(chunk, vectors)
    for read in full:
        for total, (_, part) in zip(totals, split_payload(chunk, vectors, read(), DENSE), strict=True):
            total.add_packed(part)
    for streams in seeded:
        for total, piece in zip(totals, chunk, strict=True):
            total.add_expanded(streams(vectors[piece.vector]))
    return _pack(totals)


def unmask(
    chunk: Chunk, vectors: Sequence[Vector], payload: bytes, masks: Sequence[Streams]
) -> Iterator[tuple[Piece, Digits, bool]]:
    """Take the members' masks off a chunk of the sum; residues come in the narrowest type.

    With each piece comes whether residues can have such a sum (`dense`).
    """
    parts = split_payload(chunk, vectors, payload, DENSE)
    for total, (piece, part) in zip(_begin(chunk, vectors), parts, strict=True):
        total.add_packed(part)
        for streams in masks:
            total.subtract_expanded(streams(vectors[piece.vector]))
        yield piece, *total.values()


def _begin(chunk: Chunk, vectors: Sequence[Vector]) -> list[Total]:
    return [begin_total(piece.stop - piece.start, vectors[piece.vector].modulus) for piece in chunk]


def _pack(totals: Sequence[Total]) -> bytes:
    return b"".join(total.pack() for total in totals)
