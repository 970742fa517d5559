"""Releasing a sum the paper's way: every aggregator's, sealed to all clients."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from hubbub.ids import PartyId, Role
from hubbub.machine.effects import Key
from hubbub.messages.shares import declare
from hubbub.messages.sums import Release, SumChunk
from hubbub.messages.traffic import Traffic, count_payload
from hubbub.protocol.layout import Chunk, Payload, Vector, pack_chunk, plan_chunks
from hubbub.protocol.ring import Residues
from hubbub.runtime.overlap import overlapping
from hubbub.runtime.post import Parcel, Post
from hubbub.store.vault import Vault
from hubbub.strategies.base import Gathering, Phase
from hubbub.strategies.wire import wire_of
from hubbub.trust.identity import Identity
from hubbub.trust.signed import sign_release
from hubbub_aggregator.events import SumSent
from hubbub_aggregator.opening import Openings, SealOf
from hubbub_aggregator.phases.accumulation import Accumulation
from hubbub_aggregator.sum_keys import recall_keys
from hubbub_aggregator.summing import add_chunk, assemble

SignedClaim = tuple[Release, str]
"""What an aggregator says that it releases, and its signature."""


def sign_claim(identity: Identity, key: Key, data: Accumulation, vectors: tuple[Vector, ...]) -> SignedClaim:
    """Sign for a sum of these vectors over the members; their sets have one transcript."""
    transcript = data.sets[data.members[0]].transcript
    release = Release(aggregator=data.me, members=data.members, vectors=declare(vectors), transcript=transcript)
    return release, sign_release(identity, key.run, key.round, key.phase, release)


class Releasing:
    """Adds what the members sent and sends the sum to every client."""

    def __init__(self, identity: Identity, vault: Vault, post: Post, opened: Openings, seal_of: SealOf) -> None:
        self._identity = identity
        self._vault = vault
        self._post = post
        self._opened = opened
        self._seal_of = seal_of

    async def release(self, key: Key, data: Accumulation) -> SumSent:
        """Add and send, chunk by chunk where the phase allows it."""
        phase = wire_of(data.manifest, key.phase).phase
        gathering = phase.gather(data.manifest.protocol_parameters)
        if gathering is None:
            return await self._release_sum(key, data, phase)
        return await self._release_gathered(key, data, gathering)

    async def _release_sum(self, key: Key, data: Accumulation, phase: Phase) -> SumSent:
        """Add chunk by chunk, and send each chunk of the sum to everybody, sealed once for all."""
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
        """Compute on whole vectors, and send each client what is for it."""
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
            # The members' sets have one transcript here too. The vectors may be this client's alone, so it gets a
            # claim of its own.
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
    """One chunk of the sum, as every client is sent it; in one thread."""
    return Parcel.of(seal(add_chunk(phase, chunk, vectors, reads)))
