"""Vectors to chunks of shares, and chunks of sums back to vectors."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from hubbub.protocol.layout import Chunk, Vector, pack_chunk, unpack_chunk
from hubbub.protocol.ring import RandomStream, Residues
from hubbub.strategies.base import Phase


def deal_chunk(
    phase: Phase,
    chunk: Chunk,
    vectors: Sequence[Vector],
    values: Sequence[Residues],
    servers: int,
    stream: RandomStream,
) -> list[bytes]:
    """Split one chunk of a client's values (Alg. 1, client side) and pack a payload for each server."""
    pieces = [
        phase.deal(values[piece.vector][piece.elements], vectors[piece.vector].modulus, servers, stream)
        for piece in chunk
    ]
    return [pack_chunk(chunk, vectors, [shares[server] for shares in pieces]) for server in range(servers)]


def recombine_chunks(
    phase: Phase,
    plan: Sequence[Chunk],
    vectors: Sequence[Vector],
    servers: int,
    read: Callable[[int, int], bytes],
) -> list[Residues]:
    """Recombine all servers' sums, chunk by chunk; `read(server, index)` gives a chunk's payload."""
    sums: list[Residues] = [np.empty(vector.length, dtype=np.uint32) for vector in vectors]
    for index, chunk in enumerate(plan):
        parts = [list(unpack_chunk(chunk, vectors, read(server, index))) for server in range(servers)]
        for position, piece in enumerate(chunk):
            totals = [part[position][1] for part in parts]
            sums[piece.vector][piece.elements] = phase.recombine(totals, vectors[piece.vector].modulus)
    return sums
