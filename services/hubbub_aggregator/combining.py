"""Releasing a sum on the compact wire: to the combiner, and from it to every client."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import cache, partial

from hubbub.errors import LocalError
from hubbub.ids import PartyId, Role
from hubbub.machine.effects import Key
from hubbub.messages.sums import MaskedChunk, PartialChunk
from hubbub.messages.traffic import Direction, count_payload
from hubbub.protocol.layout import Chunk
from hubbub.runtime.overlap import Overlap, overlapping
from hubbub.runtime.post import Parcel, Post
from hubbub.strategies.wire import wire_of
from hubbub.trust.identity import Identity
from hubbub_aggregator.events import SumSent
from hubbub_aggregator.opening import Openings, SealOf
from hubbub_aggregator.phases.accumulation import Accumulation, ShareSet
from hubbub_aggregator.releasing import SignedClaim, sign_claim
from hubbub_aggregator.summing import Adding


class Combining:
    """Adds what the members sent and, as the combiner, what the others added."""

    def __init__(self, identity: Identity, post: Post, opened: Openings, seal_of: SealOf) -> None:
        self._identity = identity
        self._post = post
        self._opened = opened
        self._seal_of = seal_of

    async def release(self, key: Key, data: Accumulation) -> SumSent:
        """Add chunk by chunk.

        Each goes to the combiner or, with what the others added, to every client.
        """
        vectors = _one_of(data).vectors
        wire = wire_of(data.manifest, key.phase)
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
        """One chunk of our sum, as it is sent; in one thread, since to change it costs as much as a seal.

        What is sent to clients is masked already.
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
        """What is sent is masked, so that nothing but the group's secret opens it."""
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
    """The members' sets agree in vectors and transcript."""
    return data.sets[data.members[0]]
