"""Vectors to chunks of shares, and chunks of sums back to vectors, on either wire."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256

import numpy as np

from hubbub.crypto.framing import bind
from hubbub.crypto.stream import AesCtrStream
from hubbub.ids import PartyId
from hubbub.protocol.compact import share_masked, unmask
from hubbub.protocol.dense import Digits
from hubbub.protocol.layout import Chunk, Payload, Vector, pack_chunk, unpack_chunk
from hubbub.protocol.ring import RandomStream, Residues, residue_type, word_type
from hubbub.strategies.base import Phase
from hubbub.trust.seals import Place, Stage, derive_seed, mask_stream, share_stream


def digest_content(vectors: Sequence[Vector], values: Sequence[Digits], weight: int, transcript: str) -> bytes:
    """Hash all that a share set says, so that a set sent again can be told from another."""
    digest = sha256(bind(transcript, weight))
    for vector, each in zip(vectors, values, strict=True):
        digest.update(bind(vector.name, vector.length, str(vector.modulus), each.dtype.str))
        digest.update(np.ascontiguousarray(each).data)
    return digest.digest()


def deal_chunk(
    phase: Phase,
    chunk: Chunk,
    vectors: Sequence[Vector],
    values: Sequence[Digits],
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
    read: Callable[[int, int], Payload],
) -> list[Residues]:
    """Recombine all servers' sums, chunk by chunk; `read(server, index)` gives a chunk's payload."""
    sums: list[Residues] = [np.empty(vector.length, dtype=residue_type(vector.modulus)) for vector in vectors]
    for index, chunk in enumerate(plan):
        parts = [list(unpack_chunk(chunk, vectors, read(server, index))) for server in range(servers)]
        for position, piece in enumerate(chunk):
            totals = [part[position][1] for part in parts]
            sums[piece.vector][piece.elements] = phase.recombine(totals, vectors[piece.vector].modulus)
    return sums


@dataclass(frozen=True, slots=True)
class Compact:
    """A phase on the compact wire, as one client deals and decodes it. Its secret does not print."""

    stage: Stage
    group_key: bytes = field(repr=False)

    def seed_for(self, secret: bytes, server: PartyId) -> bytes:
        """What an aggregator is sent instead of a share."""
        return derive_seed(self.stage, secret, server)

    def deal_chunk(
        self,
        index: int,
        chunk: Chunk,
        vectors: Sequence[Vector],
        values: Sequence[Digits],
        *,
        me: PartyId,
        secret: bytes,
        seeded: Sequence[PartyId],
    ) -> bytes:
        """Pack the one full share of a chunk; those of the aggregators in `seeded` follow from their seeds."""

        def stream(server: PartyId, seed: bytes, vector: Vector) -> AesCtrStream:
            return share_stream(self.stage, seed, me, server, _place(vector, index))

        streams = [partial(stream, server, self.seed_for(secret, server)) for server in seeded]
        return share_masked(chunk, vectors, values, mask=partial(self._mask, me, index), seeded=streams)

    def decode_chunks(
        self,
        plan: Sequence[Chunk],
        vectors: Sequence[Vector],
        members: Sequence[PartyId],
        read: Callable[[int], bytes],
    ) -> tuple[list[Digits], bool]:
        """Take the members' masks off the sum, chunk by chunk; `read(index)` gives a chunk's payload.

        Also tell whether residues can add up to such a sum.
        """
        possible = True
        sums: list[Digits] = [np.empty(0, dtype=word_type(vector.modulus)) for vector in vectors]
        for index, chunk in enumerate(plan):
            masks = [partial(self._mask, member, index) for member in members]
            for piece, total, could_be in unmask(chunk, vectors, read(index), masks):
                possible &= could_be
                length = vectors[piece.vector].length
                if total.size == length:  # Most vectors fit into one chunk, and need not be copied.
                    sums[piece.vector] = total
                    continue
                if piece.start == 0:
                    sums[piece.vector] = np.empty(length, dtype=total.dtype)
                sums[piece.vector][piece.elements] = total
        return sums, possible

    def _mask(self, client: PartyId, index: int, vector: Vector) -> AesCtrStream:
        return mask_stream(self.stage, self.group_key, client, _place(vector, index))


def _place(vector: Vector, index: int) -> Place:
    return Place(vector.name, vector.modulus, index)
