"""Jobs of an aggregator: open and check spooled chunks, add them, and send the sum.

On the paper's wire every aggregator seals its sum to all clients. The keys for that are drawn once and kept until
the phase is over, so a sum that is sent again has the same bits. On the compact wire aggregators send their sums
to the combiner, which sends the total to every client.

Nothing is decided here: the caller has journalled what is to be released.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from functools import cache, partial

import numpy as np

from hubbub.crypto.sealing import ChunkKey
from hubbub.errors import LocalError
from hubbub.ids import PartyId, Role
from hubbub.machine.effects import Key
from hubbub.messages.rounds import MaskedChunk, PartialChunk, ReleaseClaim, SumChunk
from hubbub.messages.shares import Direction, Traffic, count_payload, declare
from hubbub.protocol.layout import Chunk, Payload, Vector, pack_chunk, plan_chunks
from hubbub.protocol.ring import Residues
from hubbub.runtime.publisher import Overlap, Parcel, Post, overlapping
from hubbub.runtime.spool import Spool
from hubbub.store.state_file import Vault
from hubbub.strategies.base import Gathering, Phase
from hubbub.strategies.phase_plan import PhasePlan, plan_phase
from hubbub.trust.identity import Identity
from hubbub.trust.signed import sign_release
from hubbub_aggregator.events import ChunkArrived, ChunkBroken, ChunkChecked, SumSent
from hubbub_aggregator.phases.accumulation import Accumulation, CheckChunk, ShareSet
from hubbub_aggregator.spooled_shares import Adding, Openings, SealOf, add_chunk, assemble

# Keys of a sum, on the paper's wire ---------------------------------------------------------------------

SumKeys = dict[PartyId, tuple[ChunkKey, bytes]]
"""By client: the key, and the same key sealed to that client."""


def fix_keys(vault: Vault, seal_of: SealOf, key: Key, data: Accumulation) -> None:
    """Draw the keys of a phase's sum once, so that a sum sent again after a crash has the same bits."""
    if vault.get(key.run, _name(key)) is None:
        vault.put(key.run, _name(key), _draw(seal_of, key, data))


def drop_keys(vault: Vault, key: Key) -> None:
    """Forget the keys of a phase's sum."""
    vault.delete(key.run, _name(key))


def recall_keys(vault: Vault, key: Key) -> SumKeys:
    """Return the keys that were drawn for a phase's sum."""
    kept = vault.get(key.run, _name(key))
    if kept is None:
        raise LocalError(f"there are no keys for the sum of {key}")
    return {
        client: (ChunkKey.from_bytes(bytes.fromhex(sum_key)), bytes.fromhex(wrapped))
        for client, (sum_key, wrapped) in json.loads(kept).items()
    }


def _draw(seal_of: SealOf, key: Key, data: Accumulation) -> bytes:
    seals, stage = seal_of(key)
    shared = ChunkKey.fresh()
    # Where clients may be sent different vectors, each has a key of its own.
    each_its_own = plan_phase(data.manifest, key.phase).phase.gathers
    keys = {client: ChunkKey.fresh() if each_its_own else shared for client in data.manifest.clients}
    wrapped = {client: seals.wrap_sum_key(stage, client, sum_key) for client, sum_key in keys.items()}
    return json.dumps({name: (keys[name].to_bytes().hex(), wrapped[name].hex()) for name in keys}).encode()


def _name(key: Key) -> str:
    """Return the vault's name for the keys of a phase's sum."""
    return f"sum keys {key.round} {key.phase}"


# Release, on either wire --------------------------------------------------------------------------------

SignedClaim = tuple[ReleaseClaim, str]
"""An aggregator's statement of what it releases, and its signature."""


def sign_claim(identity: Identity, key: Key, data: Accumulation, vectors: tuple[Vector, ...]) -> SignedClaim:
    """Sign the release of a sum of these vectors over the members, whose sets have the same transcript."""
    transcript = data.sets[data.members[0]].transcript
    release = ReleaseClaim(
        aggregator=data.me, members=data.members, vectors=declare(vectors), transcript=transcript
    )
    return release, sign_release(identity, key.run, key.round, key.phase, release)


class Releasing:
    """Release on the paper's wire: adds the members' shares and sends the sum to every client."""

    def __init__(self, identity: Identity, vault: Vault, post: Post, opened: Openings, seal_of: SealOf) -> None:
        self._identity = identity
        self._vault = vault
        self._post = post
        self._opened = opened
        self._seal_of = seal_of

    async def release(self, key: Key, data: Accumulation) -> SumSent:
        """Add and send, chunk by chunk where the phase allows it."""
        phase = plan_phase(data.manifest, key.phase).phase
        gathering = phase.gather(data.manifest.protocol_parameters)
        if gathering is None:
            return await self._release_sum(key, data, phase)
        return await self._release_gathered(key, data, gathering)

    async def _release_sum(self, key: Key, data: Accumulation, phase: Phase) -> SumSent:
        """Add chunk by chunk, and send each chunk of the sum to every client, sealed once for all of them."""
        vectors = data.sets[data.members[0]].vectors
        seals, stage = self._seal_of(key)
        keys = await asyncio.to_thread(recall_keys, self._vault, key)
        sum_key, _ = keys[data.manifest.clients[0]]
        claim = sign_claim(self._identity, key, data, vectors)
        async with overlapping() as overlap:
            for index, chunk in enumerate(plan_chunks(vectors, data.manifest.chunk_bytes)):
                reads = [partial(self._opened.chunk, key, each, data.sets[each], index) for each in data.members]
                seal = partial(seals.encrypt_sum, stage, sum_key, index)
                payload = await asyncio.to_thread(_add_and_seal, seal, phase, chunk, vectors, reads)
                for client in data.manifest.clients:
                    wrapped = keys[client][1]
                    await overlap.begin(self._send_sum, key, client, claim, wrapped, index, payload)
        recipients = len(data.manifest.clients)
        return SumSent(vectors=vectors, traffic=count_payload(vectors, "down", copies=recipients))

    async def _release_gathered(self, key: Key, data: Accumulation, gathering: Gathering) -> SumSent:
        """Compute on whole vectors, and send each client its own result."""
        for member in data.members:
            values = await asyncio.to_thread(self._assemble, key, data, member)
            await asyncio.to_thread(gathering.add, values, data.sets[member].weight)
        traffic: list[Traffic] = []
        vectors: tuple[Vector, ...] = ()
        seals, stage = self._seal_of(key)
        keys = await asyncio.to_thread(recall_keys, self._vault, key)
        for place, client in enumerate(data.manifest.clients):
            release = await asyncio.to_thread(gathering.finish, place)
            vectors = release.vectors
            wide = [each.astype(np.uint32, copy=False) for each in release.values]
            sum_key, wrapped = keys[client]
            # The vectors may be for this client alone, so it gets its own claim; all have the same transcript.
            claim = sign_claim(self._identity, key, data, vectors)
            for index, chunk in enumerate(plan_chunks(vectors, data.manifest.chunk_bytes)):
                pieces = [wide[piece.vector][piece.elements] for piece in chunk]
                packed = await asyncio.to_thread(pack_chunk, chunk, vectors, pieces)
                payload = await asyncio.to_thread(seals.encrypt_sum, stage, sum_key, index, packed)
                await self._send_sum(key, client, claim, wrapped, index, payload)
            traffic.extend(count_payload(vectors, "down", copies=1))
        return SumSent(vectors=vectors, traffic=tuple(traffic))

    async def _send_sum(
        self,
        key: Key,
        client: PartyId,
        claim: SignedClaim,
        wrapped: bytes,
        index: int,
        payload: bytes | Parcel,
    ) -> None:
        release, signature = claim
        body = SumChunk(
            members=release.members,
            vectors=release.vectors,
            transcript=release.transcript,
            signature=signature,
            wrapped_key=wrapped.hex(),
            index=index,
        )
        await self._post.send(key, to=client, role=Role.CLIENT, body=body, payload=payload)

    def _assemble(self, key: Key, data: Accumulation, member: PartyId) -> list[Residues]:
        share_set = data.sets[member]
        plan = plan_chunks(share_set.vectors, data.manifest.chunk_bytes)
        reads = [partial(self._opened.chunk, key, member, share_set, index) for index in range(len(plan))]
        return assemble(plan, share_set.vectors, reads)


def _add_and_seal(
    seal: Callable[[bytes], bytes],
    phase: Phase,
    chunk: Chunk,
    vectors: Sequence[Vector],
    reads: Sequence[Callable[[], Payload]],
) -> Parcel:
    """Add and seal one chunk of the sum, as it is sent to every client; all in one thread."""
    return Parcel.of(seal(add_chunk(phase, chunk, vectors, reads)))


class Combining:
    """Release on the compact wire: adds the members' shares and, as the combiner, the other aggregators' sums."""

    def __init__(self, identity: Identity, post: Post, opened: Openings, seal_of: SealOf) -> None:
        self._identity = identity
        self._post = post
        self._opened = opened
        self._seal_of = seal_of

    async def release(self, key: Key, data: Accumulation) -> SumSent:
        """Add chunk by chunk and send each chunk: to the combiner or, from the combiner, to every client."""
        vectors = _one_of(data).vectors
        wire = plan_phase(data.manifest, key.phase)
        adding = cache(partial(self._begin_adding, key, data))
        make = partial(self._make, key, data, adding)
        claim = sign_claim(self._identity, key, data, vectors)
        send = self._send_to_clients if data.combines else self._send_to_combiner
        async with overlapping() as overlap:
            for index, chunk in enumerate(wire.plan(vectors)):
                await send(overlap, key, data, claim, index, await asyncio.to_thread(make, index, chunk))
        copies = len(data.manifest.clients) if data.combines else 1
        direction: Direction = "down" if data.combines else "across"
        return SumSent(
            vectors=vectors, traffic=count_payload(vectors, direction, copies=copies, encoding=wire.encoding)
        )

    def _begin_adding(self, key: Key, data: Accumulation) -> Adding:
        sets = {member: data.sets[member] for member in data.members}
        shares = [
            partial(self._opened.chunk, key, member, share_set)
            for member, share_set in sets.items()
            if not share_set.seeded
        ]
        sums = [partial(self._opened.partial, key, server) for server in data.partials]
        seeds = {
            member: self._opened.seed(key, member, share_set)
            for member, share_set in sets.items()
            if share_set.seeded
        }
        _, stage = self._seal_of(key)
        return Adding(
            stage=stage, server=data.me, vectors=_one_of(data).vectors, full=[*shares, *sums], seeds=seeds
        )

    def _make(
        self, key: Key, data: Accumulation, adding: Callable[[], Adding], index: int, chunk: Chunk
    ) -> Parcel:
        """Make one chunk of our sum as it is sent; in one thread, since to change threads costs as much as a seal.

        A chunk for clients is not sealed: the clients' masks hide it already.
        """
        packed = adding().add(index, chunk)
        if data.combines:
            return Parcel.of(packed)
        seals, stage = self._seal_of(key)
        return Parcel.of(seals.seal_partial(stage, _combiner_of(key, data), index, packed))

    async def _send_to_combiner(
        self,
        overlap: Overlap,
        key: Key,
        data: Accumulation,
        claim: SignedClaim,
        index: int,
        made: Parcel,
    ) -> None:
        combiner = _combiner_of(key, data)
        release, signature = claim
        body = PartialChunk(
            members=release.members,
            vectors=release.vectors,
            transcript=release.transcript,
            signature=signature,
            index=index,
        )
        await overlap.begin(self._post.send, key, to=combiner, role=Role.AGGREGATOR, body=body, payload=made)

    async def _send_to_clients(
        self,
        overlap: Overlap,
        key: Key,
        data: Accumulation,
        claim: SignedClaim,
        index: int,
        made: Parcel,
    ) -> None:
        """Send a chunk to every client. It is masked: only the group secret opens it."""
        release, ours = claim
        signatures: dict[PartyId, str] = {name: each.signature for name, each in data.partials.items()}
        signatures[data.me] = ours
        body = MaskedChunk(
            members=release.members,
            vectors=release.vectors,
            transcript=release.transcript,
            signatures=tuple(signatures[server] for server in data.servers),
            index=index,
        )
        for client in data.manifest.clients:
            await overlap.begin(self._post.send, key, to=client, role=Role.CLIENT, body=body, payload=made)


def _combiner_of(key: Key, data: Accumulation) -> PartyId:
    if data.combiner is None:
        raise LocalError(f"nobody combines the sums of {key}")
    return data.combiner


def _one_of(data: Accumulation) -> ShareSet:
    """Return one member's set: all of them have the same vectors and transcript."""
    return data.sets[data.members[0]]


CHECKS_AT_ONCE = 2
"""The most chunks opened at the same time: each takes memory for its elements."""


class PhaseJobs:
    """Jobs of one aggregator: checks chunks and releases sums."""

    def __init__(self, identity: Identity, spool: Spool, vault: Vault, post: Post, seal_of: SealOf) -> None:
        opened = Openings(spool, seal_of)
        self._opened = opened
        self._checks = asyncio.Semaphore(CHECKS_AT_ONCE)
        self._releasing = Releasing(identity, vault, post, opened, seal_of)
        self._combining = Combining(identity, post, opened, seal_of)

    def look_into(self, key: Key, wire: PhasePlan[PartyId], event: ChunkArrived, payload: bytes) -> ChunkArrived:
        """Mark a chunk as checked if it is quick to open and good."""
        return self._opened.look_into(key, wire, event, payload)

    def forget(self, key: Key) -> None:
        """Drop the cached keys and seeds of a phase that is over."""
        self._opened.forget(key)

    async def check(self, key: Key, wire: PhasePlan[PartyId], job: CheckChunk) -> ChunkChecked | ChunkBroken:
        """Open a spooled chunk and check every value in it."""
        async with self._checks:
            return await asyncio.to_thread(self._opened.check, key, wire, job)

    async def release(self, key: Key, data: Accumulation) -> SumSent:
        """Add the members' shares and send the sum."""
        if data.combiner is None:
            return await self._releasing.release(key, data)
        return await self._combining.release(key, data)
