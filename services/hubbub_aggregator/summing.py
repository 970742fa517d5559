"""Adding spooled shares chunk by chunk: memory for one chunk, whatever the number of clients."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from hubbub.protocol.layout import Chunk, Vector, pack_chunk, unpack_chunk
from hubbub.protocol.ring import Residues
from hubbub.strategies.base import Phase


def check_chunk(chunk: Chunk, vectors: Sequence[Vector], payload: bytes) -> None:
    """Open a chunk and look at every value; raises `PeerError` if one is not in its ring."""
    for _ in unpack_chunk(chunk, vectors, payload):
        pass


def assemble(
    plan: Sequence[Chunk], vectors: Sequence[Vector], payloads: Sequence[Callable[[], bytes]]
) -> list[Residues]:
    """Put one member's chunks together to whole vectors."""
    values: list[Residues] = [np.empty(vector.length, dtype=np.uint32) for vector in vectors]
    for chunk, read in zip(plan, payloads, strict=True):
        for piece, residues in unpack_chunk(chunk, vectors, read()):
            values[piece.vector][piece.elements] = residues
    return values


def add_chunk(
    phase: Phase,
    chunk: Chunk,
    vectors: Sequence[Vector],
    payloads: Sequence[Callable[[], bytes]],
) -> bytes:
    """Add one chunk over all members (Alg. 1, server side) and pack the sum. Payloads are read one by one."""
    totals: list[Residues] = [np.zeros(piece.stop - piece.start, dtype=np.uint32) for piece in chunk]
    for read in payloads:
        for total, (piece, share) in zip(totals, unpack_chunk(chunk, vectors, read()), strict=True):
            phase.combine(total, share, vectors[piece.vector].modulus)
    return pack_chunk(chunk, vectors, totals)
