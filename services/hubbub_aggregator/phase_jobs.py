"""Jobs of an aggregator: open and check spooled chunks, add them, and send the sum.

On the paper's wire every aggregator seals its sum to all clients. The keys for that are drawn once and kept until
the phase is over, so a sum that is sent again has the same bits. On the compact wire aggregators send their sums
to the combiner, which sends the total to every client.

Nothing is decided here: the caller has journalled what is to be released.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial

import numpy as np

from hubbub.crypto.peer_ciphers import PEER_CIPHERS
from hubbub.crypto.sealing import ChunkKey
from hubbub.errors import LocalError, PeerError, StorageDamaged
from hubbub.ids import PartyId, Role
from hubbub.machine.effects import Key
from hubbub.messages.rounds import MaskedChunk, PartialChunk, ReleaseClaim, SumChunk
from hubbub.messages.shares import Direction, Traffic, count_payload, declare
from hubbub.protocol.layout import Chunk, Payload, Vector, pack_chunk, plan_chunks
from hubbub.protocol.ring import Residues
from hubbub.runtime.clock import Clock
from hubbub.runtime.publisher import Parcel, Post, overlapping
from hubbub.runtime.spool import Spool
from hubbub.store.state_file import Vault
from hubbub.strategies.base import Gathering, Phase, RoundSoFar
from hubbub.strategies.phase_plan import PhasePlan, phases_of, plan_phase
from hubbub.trust.identity import Identity
from hubbub.trust.signed import sign_release
from hubbub_aggregator.events import ChunkBroken, ChunkChecked, SumSent
from hubbub_aggregator.journal import Journal
from hubbub_aggregator.phases.accumulation import Accumulation, CheckChunk, ShareSet
from hubbub_aggregator.spooled_shares import Adding, ChunkDamaged, Openings, SealOf, add_chunk, assemble

CHECKS_AT_ONCE = 2
"""The most chunks opened at the same time: each takes memory for its elements."""

SumKeys = dict[PartyId, tuple[ChunkKey, bytes]]
"""By client: the key, and the same key sealed to that client."""
SignedClaim = tuple[ReleaseClaim, str]
"""An aggregator's statement of what it releases, and its signature."""


class PhaseJobs:
    """Jobs of one aggregator: checks chunks and releases sums."""

    def __init__(
        self,
        *,
        identity: Identity,
        journal: Journal,
        spool: Spool,
        vault: Vault,
        post: Post,
        seal_of: SealOf,
        clock: Clock,
    ) -> None:
        self.opened = Openings(spool, seal_of)
        self._checks = asyncio.Semaphore(CHECKS_AT_ONCE)
        self._identity = identity
        self._journal = journal
        self._vault = vault
        self._post = post
        self._seal_of = seal_of
        self._clock = clock

    async def check(self, key: Key, wire: PhasePlan, job: CheckChunk) -> ChunkChecked | ChunkBroken:
        """Open a spooled chunk and check every value in it."""
        client, index, asked = job.client, job.index, job.share_set.asked
        try:
            async with self._checks:
                await asyncio.to_thread(self.opened.check, key, wire, job)
        except PeerError as error:
            return ChunkBroken(
                client=client, index=index, reason=error.reason, explanation=str(error), asked=asked
            )
        return ChunkChecked(client=client, index=index, at_s=self._clock.now_s(), asked=asked)

    async def release(self, key: Key, data: Accumulation) -> SumSent:
        """Add the members' shares and send the sum, chunk by chunk where the phase allows it."""
        if data.combiner is not None:
            return await self._release_compact(key, data, data.combiner)
        phase = plan_phase(data.manifest, key.phase).phase
        gathering = phase.gather(data.manifest.protocol_parameters, self._describe_round(key, data))
        if gathering is None:
            return await self._release_sum(key, data, phase)
        return await self._release_gathered(key, data, gathering)

    def _sign(self, key: Key, data: Accumulation, vectors: tuple[Vector, ...]) -> SignedClaim:
        """Sign the release of a sum of these vectors over the members, whose sets have the same transcript."""
        transcript = data.sets[data.members[0]].transcript
        release = ReleaseClaim(
            aggregator=data.me, members=data.members, vectors=declare(vectors), transcript=transcript
        )
        return release, sign_release(self._identity, key.run, key.round, key.phase, release)

    # The paper's wire -----------------------------------------------------------------------------------

    def fix_keys(self, key: Key, data: Accumulation) -> None:
        """Draw the keys of a phase's sum once, so that a sum sent again after a crash has the same bits."""
        if self._vault.get(key.run, _name_keys(key)) is not None:
            return
        seals, stage = self._seal_of(key)
        shared = ChunkKey.fresh()
        # Where clients may be sent different vectors, each has a key of its own.
        each_its_own = plan_phase(data.manifest, key.phase).phase.gathers
        keys = {client: ChunkKey.fresh() if each_its_own else shared for client in data.manifest.clients}
        rows = {
            client: (sum_key.to_bytes().hex(), seals.wrap_sum_key(stage, client, sum_key).hex())
            for client, sum_key in keys.items()
        }
        self._vault.put(key.run, _name_keys(key), json.dumps(rows).encode())

    def drop_keys(self, key: Key) -> None:
        """Forget the keys of a phase's sum."""
        self._vault.delete(key.run, _name_keys(key))

    def _recall_keys(self, key: Key) -> SumKeys:
        kept = self._vault.get(key.run, _name_keys(key))
        if kept is None:
            raise LocalError(f"there are no keys for the sum of {key}")
        return {
            client: (ChunkKey.from_bytes(bytes.fromhex(sum_key)), bytes.fromhex(wrapped))
            for client, (sum_key, wrapped) in json.loads(kept).items()
        }

    async def _release_sum(self, key: Key, data: Accumulation, phase: Phase) -> SumSent:
        """Add chunk by chunk, and send each chunk of the sum to every client, sealed once for all of them."""
        vectors = data.sets[data.members[0]].vectors
        seals, stage = self._seal_of(key)
        keys = await asyncio.to_thread(self._recall_keys, key)
        sum_key, _ = keys[data.manifest.clients[0]]
        claim = self._sign(key, data, vectors)
        async with overlapping() as overlap:
            for index, chunk in enumerate(plan_chunks(vectors, data.manifest.chunk_bytes)):
                reads = [partial(self.opened.chunk, key, each, data.sets[each], index) for each in data.members]
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
            values = await asyncio.to_thread(self._assemble, key, data, member, data.sets[member])
            await asyncio.to_thread(gathering.add, values, data.sets[member].weight)
        traffic: list[Traffic] = []
        vectors: tuple[Vector, ...] = ()
        seals, stage = self._seal_of(key)
        keys = await asyncio.to_thread(self._recall_keys, key)
        for place, client in enumerate(data.manifest.clients):
            release = await asyncio.to_thread(gathering.finish, place)
            vectors = release.vectors
            wide = [each.astype(np.uint32, copy=False) for each in release.values]
            sum_key, wrapped = keys[client]
            # The vectors may be for this client alone, so it gets its own claim; all have the same transcript.
            claim = self._sign(key, data, vectors)
            for index, chunk in enumerate(plan_chunks(vectors, data.manifest.chunk_bytes)):
                pieces = [wide[piece.vector][piece.elements] for piece in chunk]
                packed = await asyncio.to_thread(pack_chunk, chunk, vectors, pieces)
                payload = await asyncio.to_thread(seals.encrypt_sum, stage, sum_key, index, packed)
                await self._send_sum(key, client, claim, wrapped, index, payload)
            traffic.extend(count_payload(vectors, "down", copies=1))
        return SumSent(vectors=vectors, traffic=tuple(traffic))

    def _describe_round(self, key: Key, data: Accumulation) -> RoundSoFar:
        """Describe the round up to this phase, from the journal."""
        names = (phase.name for phase in phases_of(data.manifest))
        outcomes = {name: self._journal.find(replace(key, phase=name)) for name in names}
        members = {
            name: tuple(data.manifest.clients.index(member) for member in outcome.members)
            for name, outcome in outcomes.items()
            if outcome
        }
        return RoundSoFar(members, partial(self._read_again, key, data), PEER_CIPHERS)

    def _read_again(
        self, key: Key, data: Accumulation, phase: str, vectors: Sequence[Vector]
    ) -> Iterator[list[Residues]]:
        """Open what each member sent in an earlier phase, whose chunks are still in the spool."""
        earlier = replace(key, phase=phase)
        outcome = self._journal.find(earlier)
        for member in outcome.members if outcome else ():
            set_id = self._journal.find_set(earlier, member)
            if set_id is None:
                raise LocalError(f"the journal has no set of {member} in {earlier}")
            share_set = ShareSet(set_id=set_id, vectors=tuple(vectors), weight=1, transcript="", chunks=0)
            try:
                yield self._assemble(earlier, data, member, share_set)
            except ChunkDamaged as damage:
                # Its phase is over, so it cannot be asked for again.
                raise StorageDamaged(damage.path, damage.what) from None

    def _assemble(self, key: Key, data: Accumulation, member: PartyId, share_set: ShareSet) -> list[Residues]:
        plan = plan_chunks(share_set.vectors, data.manifest.chunk_bytes)
        reads = [partial(self.opened.chunk, key, member, share_set, index) for index in range(len(plan))]
        return assemble(plan, share_set.vectors, reads)

    async def _send_sum(
        self, key: Key, client: PartyId, claim: SignedClaim, wrapped: bytes, index: int, payload: bytes | Parcel
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

    # The compact wire -----------------------------------------------------------------------------------

    async def _release_compact(self, key: Key, data: Accumulation, combiner: PartyId) -> SumSent:
        """Add chunk by chunk and send each chunk: to the combiner or, from the combiner, to every client."""
        vectors = data.sets[data.members[0]].vectors
        wire = plan_phase(data.manifest, key.phase)
        adding = cache(partial(self._begin_adding, key, data))
        claim = self._sign(key, data, vectors)
        recipients, role = (
            (data.manifest.clients, Role.CLIENT) if data.combines else ((combiner,), Role.AGGREGATOR)
        )
        async with overlapping() as overlap:
            for index, chunk in enumerate(wire.plan(vectors)):
                made = await asyncio.to_thread(self._make_chunk, key, data, adding, index, chunk)
                body = _declare_total(data, claim, index) if data.combines else _declare_partial(claim, index)
                for each in recipients:
                    await overlap.begin(self._post.send, key, to=each, role=role, body=body, payload=made)
        direction: Direction = "down" if data.combines else "across"
        traffic = count_payload(vectors, direction, copies=len(recipients), encoding=wire.encoding)
        return SumSent(vectors=vectors, traffic=traffic)

    def _begin_adding(self, key: Key, data: Accumulation) -> Adding:
        sets = {member: data.sets[member] for member in data.members}
        shares = [partial(self.opened.chunk, key, member, each) for member, each in sets.items() if not each.seed]
        sums = [partial(self.opened.partial, key, server) for server in data.partials]
        seeds = {member: self.opened.seed(key, member, each) for member, each in sets.items() if each.seed}
        vectors = sets[data.members[0]].vectors
        _, stage = self._seal_of(key)
        return Adding(stage=stage, server=data.me, vectors=vectors, full=[*shares, *sums], seeds=seeds)

    def _make_chunk(
        self, key: Key, data: Accumulation, adding: Callable[[], Adding], index: int, chunk: Chunk
    ) -> Parcel:
        """Make one chunk of our sum as it is sent; in one thread, since to change threads costs as much as a seal.

        A chunk for clients is not sealed: the clients' masks hide it, and only the group secret opens it.
        """
        packed = adding().add(index, chunk)
        if data.combines or data.combiner is None:
            return Parcel.of(packed)
        seals, stage = self._seal_of(key)
        return Parcel.of(seals.seal_partial(stage, data.combiner, index, packed))


def _name_keys(key: Key) -> str:
    """Return the vault's name for the keys of a phase's sum."""
    return f"sum keys {key.round} {key.phase}"


def _add_and_seal(
    seal: Callable[[bytes], bytes],
    phase: Phase,
    chunk: Chunk,
    vectors: Sequence[Vector],
    reads: Sequence[Callable[[], Payload]],
) -> Parcel:
    """Add and seal one chunk of the sum, as it is sent to every client; all in one thread."""
    return Parcel.of(seal(add_chunk(phase, chunk, vectors, reads)))


def _declare_partial(claim: SignedClaim, index: int) -> PartialChunk:
    release, signature = claim
    return PartialChunk(
        members=release.members,
        vectors=release.vectors,
        transcript=release.transcript,
        signature=signature,
        index=index,
    )


def _declare_total(data: Accumulation, claim: SignedClaim, index: int) -> MaskedChunk:
    release, ours = claim
    signatures = {data.me: ours, **{name: each.signature for name, each in data.partials.items()}}
    return MaskedChunk(
        members=release.members,
        vectors=release.vectors,
        transcript=release.transcript,
        signatures=tuple(signatures[server] for server in data.servers),
        index=index,
    )
