"""Adding spooled shares chunk by chunk: memory for one chunk, whatever the number of clients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from hubbub.crypto.stream import AesCtrStream
from hubbub.ids import PartyId
from hubbub.protocol.compact import accumulate_chunk
from hubbub.protocol.encoding import WHOLE_BITS, Encoding
from hubbub.protocol.layout import Chunk, Payload, Vector, pack_chunk, split_payload, unpack_chunk
from hubbub.protocol.ring import Residues, residue_type
from hubbub.strategies.base import Phase
from hubbub.trust.seals import Place, Stage, share_stream


def check_chunk(
    chunk: Chunk, vectors: Sequence[Vector], payload: Payload, encoding: Encoding = WHOLE_BITS
) -> None:
    """Open a chunk and look at every value; raises `PeerError` if one is not in its ring."""
    for piece, part in split_payload(chunk, vectors, payload, encoding):
        encoding.check(part, piece.stop - piece.start, vectors[piece.vector].modulus)


def assemble(
    plan: Sequence[Chunk], vectors: Sequence[Vector], payloads: Sequence[Callable[[], Payload]]
) -> list[Residues]:
    """Put one member's chunks together to whole vectors."""
    values: list[Residues] = [np.empty(vector.length, dtype=residue_type(vector.modulus)) for vector in vectors]
    for chunk, read in zip(plan, payloads, strict=True):
        for piece, residues in unpack_chunk(chunk, vectors, read()):
            values[piece.vector][piece.elements] = residues
    return values


def add_chunk(
    phase: Phase,
    chunk: Chunk,
    vectors: Sequence[Vector],
    payloads: Sequence[Callable[[], Payload]],
) -> bytes:
    """Add one chunk over all members (Alg. 1, server side) and pack the sum. Payloads are read one by one."""
    totals: list[Residues] = [
        np.zeros(piece.stop - piece.start, dtype=residue_type(vectors[piece.vector].modulus)) for piece in chunk
    ]
    for read in payloads:
        for total, (piece, share) in zip(totals, unpack_chunk(chunk, vectors, read()), strict=True):
            phase.combine(total, share, vectors[piece.vector].modulus)
    return pack_chunk(chunk, vectors, totals)


@dataclass(frozen=True, slots=True)
class Adding:
    """What one aggregator adds on the compact wire: chunks that were sent, and shares that follow from seeds."""

    stage: Stage
    server: PartyId
    vectors: Sequence[Vector]
    full: Sequence[Callable[[int], Payload]]
    """Each gives the chunk of a number, opened."""
    seeds: Mapping[PartyId, bytes] = field(repr=False)

    def add(self, index: int, chunk: Chunk) -> bytes:
        """Add one chunk over all members and pack the sum."""
        seeded = [partial(self._stream, seed, client, index) for client, seed in self.seeds.items()]
        return accumulate_chunk(
            chunk, self.vectors, full=[partial(read, index) for read in self.full], seeded=seeded
        )

    def _stream(self, seed: bytes, client: PartyId, index: int, vector: Vector) -> AesCtrStream:
        return share_stream(self.stage, seed, client, self.server, Place(vector.name, vector.modulus, index))
