"""Opens spooled share chunks, seeds and partial sums, checks their values, and adds them.

They are opened when they are checked, and again when they are added. Adding goes chunk by chunk, so it takes
memory for one chunk, whatever the number of clients.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from hubbub.crypto.sealing import Decrypted
from hubbub.crypto.stream import AesCtrStream
from hubbub.errors import PeerError, StorageDamaged
from hubbub.ids import PartyId, SetId
from hubbub.machine.effects import Key
from hubbub.protocol.layout import (
    WHOLE_BITS,
    Chunk,
    Encoding,
    Payload,
    Vector,
    pack_chunk,
    split_payload,
    unpack_chunk,
)
from hubbub.protocol.ring import Residues, residue_type
from hubbub.protocol.sharing import accumulate_chunk
from hubbub.runtime.spool import ChunkRef, Spool
from hubbub.strategies.base import Phase
from hubbub.strategies.phase_plan import PhasePlan
from hubbub.trust.seals import RunSeals, SealContext, ShareKey, Stage, share_stream
from hubbub_aggregator.events import ChunkArrived, SetDamaged
from hubbub_aggregator.phases.accumulation import PARTIAL, CheckChunk, ShareSet

AT_ONCE_BYTES = 2**19
"""A longer payload is opened in a thread: opening on arrival holds up the event loop."""

SealOf = Callable[[Key], tuple[RunSeals, Stage]]


class Room(threading.local):
    """Buffer per thread for decrypted chunks: allocating new pages would take longer than decrypting."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def take(self, size: int) -> memoryview:
        """Return a view of the buffer, which grows if it is too small."""
        if len(self._bytes) < size:
            self._bytes = bytearray(size)
        return memoryview(self._bytes)[:size]


class ChunkDamaged(StorageDamaged):
    """A spooled chunk of a client's share set is gone, or is not as it was written."""

    def __init__(self, damage: StorageDamaged, client: PartyId, share_set: ShareSet, index: int) -> None:
        super().__init__(damage.path, damage.what)
        self._client, self._asked, self._index = client, share_set.asked, index

    def make_event(self, at_s: float) -> SetDamaged:
        """Make the event for the machine of the phase."""
        return SetDamaged(
            client=self._client,
            index=self._index,
            asked=self._asked,
            path=self.path,
            what=self.what,
            at_s=at_s,
        )


class Openings:
    """Opens chunks, seeds and other aggregators' sums."""

    def __init__(self, spool: Spool, seal_of: SealOf) -> None:
        self._spool = spool
        self._seal_of = seal_of
        self._seeds: dict[Key, dict[PartyId, tuple[bytes, bytes]]] = {}
        """Cache: the last seed of each client, sealed and opened."""
        self._room = Room()
        self._share_keys: dict[Key, dict[PartyId, ShareKey]] = {}
        """Cache: the last opened key of each client's share set; all chunks of a set have the same key."""

    def chunk(self, key: Key, client: PartyId, share_set: ShareSet, index: int) -> Decrypted:
        """Open a chunk of a client's share; the next one that this thread opens overwrites it."""
        try:
            payload = self._spool.read(key, ChunkRef(client, share_set.set_id, index))
        except StorageDamaged as damage:
            raise ChunkDamaged(damage, client, share_set, index) from None
        return self._open_chunk(key, client, share_set.set_id, index, payload)

    def _open_chunk(self, key: Key, client: PartyId, set_id: SetId, index: int, payload: bytes) -> Decrypted:
        known = self._share_keys.get(key, {}).get(client)
        if known is None or not known.opens(set_id, payload):
            seals, stage = self._seal_of(key)
            known = seals.open_share_key(stage, client, set_id, payload)
            self._share_keys.setdefault(key, {})[client] = known
        return known.open(index, payload, self._room.take)

    def seed(self, key: Key, client: PartyId, share_set: ShareSet) -> bytes:
        """Open the seed that expands to a client's whole share."""
        sealed, opened = self._seeds.get(key, {}).get(client, (b"", b""))
        if sealed == share_set.seed:
            return opened
        return self._open_seed(key, client, share_set.set_id, share_set.seed)

    def _open_seed(self, key: Key, client: PartyId, set_id: SetId, sealed: bytes) -> bytes:
        seals, stage = self._seal_of(key)
        return seals.open_seed(stage, client, set_id, sealed)

    def forget(self, key: Key) -> None:
        """Drop the seeds, keys and plaintexts of a phase that is over, or of all phases of a run."""
        for each in [*self._seeds, *self._share_keys]:
            if each == key or (key.kind == "run" and each.run == key.run):
                self._seeds.pop(each, None)
                self._share_keys.pop(each, None)
        self._room = Room()

    def partial(self, key: Key, server: PartyId, index: int) -> bytes:
        """Open a chunk of another aggregator's sum."""
        seals, stage = self._seal_of(key)
        payload = self._spool.read(key, ChunkRef(server, PARTIAL, index))
        return seals.open_partial(stage, server, index, payload)

    def look_into(self, key: Key, wire: PhasePlan, event: ChunkArrived, payload: bytes) -> ChunkArrived:
        """Mark a chunk as checked if it is quick to open and good; anything else is left to `check`.

        On the compact wire any words are a valid share, so opening a chunk checks it, and takes less time than
        checking its signature did. A long payload still waits for its turn.
        """
        try:
            if event.seed:
                opened = self._open_seed(key, event.client, event.set_id, event.seed)
                self._seeds.setdefault(key, {})[event.client] = event.seed, opened
            elif wire.compact and len(payload) <= AT_ONCE_BYTES:
                share = self._open_chunk(key, event.client, event.set_id, event.index, payload)
                check_chunk(wire.plan(event.vectors)[event.index], event.vectors, share, wire.encoding)
            else:
                return event
        except PeerError:
            return event
        return replace(event, checked=True)

    def check(self, key: Key, wire: PhasePlan, job: CheckChunk) -> None:
        """Raise `PeerError` if a chunk or seed of a share set does not open, or a value is not in its ring."""
        share_set = job.share_set
        if share_set.seed:
            self.seed(key, job.client, share_set)
        else:
            share = self.chunk(key, job.client, share_set, job.index)
            check_chunk(wire.plan(share_set.vectors)[job.index], share_set.vectors, share, wire.encoding)


def check_chunk(
    chunk: Chunk, vectors: Sequence[Vector], payload: Payload, encoding: Encoding = WHOLE_BITS
) -> None:
    """Raise `PeerError` if a value of an opened chunk is not in its ring."""
    for piece, part in split_payload(chunk, vectors, payload, encoding):
        encoding.check(part, piece.stop - piece.start, vectors[piece.vector].modulus)


def assemble(
    plan: Sequence[Chunk], vectors: Sequence[Vector], payloads: Sequence[Callable[[], Payload]]
) -> list[Residues]:
    """Join one member's chunks into whole vectors."""
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
    """Summands of one aggregator on the compact wire: chunks that were sent, and shares that expand from seeds."""

    stage: Stage
    server: PartyId
    vectors: Sequence[Vector]
    full: Sequence[Callable[[int], Payload]]
    """Each returns the opened chunk of an index."""
    seeds: Mapping[PartyId, bytes] = field(repr=False)

    def add(self, index: int, chunk: Chunk) -> bytes:
        """Add one chunk over all members and pack the sum."""
        seeded = [partial(self._stream, seed, client, index) for client, seed in self.seeds.items()]
        return accumulate_chunk(
            chunk, self.vectors, full=[partial(read, index) for read in self.full], seeded=seeded
        )

    def _stream(self, seed: bytes, client: PartyId, index: int, vector: Vector) -> AesCtrStream:
        return share_stream(self.stage, seed, client, self.server, SealContext(vector.name, vector.modulus, index))
