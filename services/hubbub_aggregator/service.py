"""The aggregator's shell: checks messages at the edge, spools chunks, journals verdicts, sends sums."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from hubbub.errors import LocalError, PeerError, RejectReason
from hubbub.ids import PartyId, Role
from hubbub.machine.effects import Effect, Job, Key
from hubbub.messages.envelope import Envelope
from hubbub.messages.manifest import Manifest
from hubbub.messages.rounds import ClosePhase, VoidPhase
from hubbub.messages.runs import RunEnded, RunProposed
from hubbub.messages.shares import ShareChunk, declare
from hubbub.messages.sums import SumChunk
from hubbub.messages.traffic import Traffic, count_payload, share_wire_bytes
from hubbub.protocol.layout import Vector, check_payload, pack_chunk, plan_chunks
from hubbub.protocol.ring import Residues
from hubbub.runtime.clock import Clock
from hubbub.runtime.intake import check_sender
from hubbub.runtime.participant import Participant
from hubbub.runtime.post import Identity
from hubbub.runtime.runner import Fed, Live, Observer
from hubbub.runtime.spool import ChunkRef
from hubbub.strategies.base import Gathering, Phase
from hubbub.strategies.registry import find_phase, find_strategy
from hubbub.transport.base import Transport
from hubbub_aggregator.events import (
    ChunkArrived,
    ChunkBroken,
    ChunkChecked,
    CloseOrdered,
    Ended,
    Proposed,
    SumSent,
    VoidOrdered,
)
from hubbub_aggregator.journal import Journal
from hubbub_aggregator.phases import accumulation, membership
from hubbub_aggregator.phases.accumulation import Accumulation
from hubbub_aggregator.phases.membership import Membership
from hubbub_aggregator.summing import add_chunk, assemble, check_chunk

log = logging.getLogger(__name__)

CHECKS_AT_ONCE = 2
"""Chunks that are opened at the same time: each takes memory for its elements."""


class Aggregator(Participant):
    """Holds one share of everything and so knows nothing."""

    def __init__(
        self,
        *,
        name: PartyId,
        transport: Transport,
        folder: Path,
        clock: Clock | None = None,
        observer: Observer = lambda _: None,
    ) -> None:
        super().__init__(
            identity=Identity(name, Role.AGGREGATOR),
            transport=transport,
            folder=folder,
            clock=clock,
            observer=observer,
        )
        self.journal = Journal(folder / "journal.sqlite")
        self._checks = asyncio.Semaphore(CHECKS_AT_ONCE)

    # Messages to events ---------------------------------------------------------------------------------

    def receive(self, envelope: Envelope, *, size: int, now_s: float) -> Sequence[Fed]:
        """Check a message and make its event."""
        del now_s
        run = Key("run", envelope.run)
        body = envelope.body
        if isinstance(body, RunProposed):
            return self._receive_proposal(run, envelope, body, Proposed())
        if run in self._over:
            return self._ignore(envelope)
        data = self._joined(run, Membership)
        check_sender(data.manifest, envelope)
        match body:
            case RunEnded():
                return [(run, Ended())]
            case ShareChunk():
                return self._receive_chunk(data, envelope, body, size)
            case ClosePhase(members=members, receipts=receipts):
                return self._receive_order(data, envelope, CloseOrdered(members=members, receipts=receipts))
            case VoidPhase(reason=reason):
                return self._receive_order(data, envelope, VoidOrdered(reason=reason))
        raise PeerError(RejectReason.UNEXPECTED, f"an aggregator takes no {envelope.kind}")

    def _invite(self, run: Key, manifest: Manifest, *, stale: bool) -> None:
        data = Membership(me=self.runner.identity.name, manifest=manifest, stale=stale)
        self.runner.add(run, membership.TRANSITIONS, membership.State.INVITED, data)

    def _receive_chunk(self, data: Membership, envelope: Envelope, body: ShareChunk, size: int) -> Sequence[Fed]:
        over = self._is_over(data, envelope)
        phase = find_phase(data.manifest.strategy, envelope.phase)
        if data.me not in phase.aggregators(data.manifest.aggregators):
            raise PeerError(RejectReason.UNKNOWN_PHASE, f"{data.me} takes no part in {envelope.phase}")
        if over:
            return self._ignore(envelope)
        vectors = tuple(claim.vector for claim in body.vectors)
        find_strategy(data.manifest.strategy).admit(data.manifest.protocol_parameters, envelope.phase, vectors)
        plan = plan_chunks(vectors, data.manifest.chunk_bytes)
        event = ChunkArrived(
            client=envelope.sender,
            set_id=body.set_id,
            vectors=vectors,
            weight=body.weight,
            index=body.index,
            chunks=len(plan),
            wire_bytes=share_wire_bytes(check_payload(plan, vectors, body.index, envelope.payload), size),
        )
        return [(self._phase_key(data, envelope), event)]

    def _receive_order(
        self, data: Membership, envelope: Envelope, event: CloseOrdered | VoidOrdered
    ) -> Sequence[Fed]:
        key = Key("phase", envelope.run, envelope.round, envelope.phase)
        if key in self.runner.machines:
            return [(key, event)]
        # A void ends the whole round, so it is for every aggregator, whatever phases it takes part in.
        ends_round = isinstance(event, VoidOrdered) and envelope.round == data.round
        if key in self._over or (self._is_over(data, envelope) and not ends_round):
            return self._ignore(envelope)
        return [(self._phase_key(data, envelope), event)]

    def _is_over(self, data: Membership, envelope: Envelope) -> bool:
        """Whether the phase lies behind us; one that lies ahead is refused."""
        names = [phase.name for phase in find_strategy(data.manifest.strategy).phases]
        if envelope.phase not in names:
            raise PeerError(RejectReason.UNKNOWN_PHASE, f"the strategy has no phase {envelope.phase!r}")
        here = (data.round, names.index(data.phase_names[data.phase]))
        there = (envelope.round, names.index(envelope.phase))
        if there > here:
            raise PeerError(
                RejectReason.TOO_EARLY,
                f"this is of round {envelope.round}, phase {envelope.phase}; round {data.round}, phase "
                f"{data.phase_names[data.phase]} has no verdict yet",
            )
        return there < here

    def _phase_key(self, data: Membership, envelope: Envelope) -> Key:
        """The machine of the phase that is open now, set up when the first message of it arrives."""
        key = Key("phase", envelope.run, envelope.round, envelope.phase)
        if key not in self.runner.machines:
            phase = find_phase(data.manifest.strategy, envelope.phase)
            start = Accumulation(
                me=self.runner.identity.name,
                key=key,
                run=Key("run", envelope.run),
                manifest=data.manifest,
                servers=phase.aggregators(data.manifest.aggregators),
                required_members=data.members,
            )
            self.runner.add(key, accumulation.TRANSITIONS, accumulation.State.COLLECTING, start)
        return key

    # Effects and jobs -----------------------------------------------------------------------------------

    async def perform(self, key: Key, effect: Effect, payload: bytes) -> None:
        """Spool and journal, in a thread: both wait for the disk."""
        match effect:
            case membership.RememberRun():
                await asyncio.to_thread(self._tombstones.add, key.run)
            case accumulation.SpoolChunk():
                ref = ChunkRef(effect.client, effect.set_id, effect.index)
                await asyncio.to_thread(self._spool.write, key, ref, payload)
            case accumulation.RecordRelease():
                await asyncio.to_thread(self.journal.record, key, effect.members)
            case accumulation.RecordVoid():
                await asyncio.to_thread(self.journal.record, key, ())
            case _:
                raise LocalError(f"an aggregator has no effect {effect!r}")

    async def work(self, key: Key, job: Job) -> object:
        """Check a chunk, or add and release."""
        match job:
            case accumulation.CheckChunk():
                async with self._checks:
                    return await asyncio.to_thread(self._check, key, job)
            case accumulation.SumAndRelease():
                return await self._release(key, job.members)
        raise LocalError(f"an aggregator has no job {job!r}")

    def _check(self, key: Key, job: accumulation.CheckChunk) -> ChunkChecked | ChunkBroken:
        manifest = self._accumulation(key).manifest
        vectors = job.share_set.vectors
        chunk = plan_chunks(vectors, manifest.chunk_bytes)[job.index]
        try:
            ref = ChunkRef(job.client, job.share_set.set_id, job.index)
            check_chunk(chunk, vectors, self._spool.read(key, ref))
        except PeerError as error:
            log.warning("the share set of %s is refused: %s", job.client, error, extra={"reason": error.reason})
            self.counters.rejected(error.reason)
            return ChunkBroken(client=job.client, index=job.index, reason=error.reason, explanation=str(error))
        return ChunkChecked(client=job.client, index=job.index)

    async def _release(self, key: Key, members: Sequence[PartyId]) -> SumSent:
        data = self._accumulation(key)
        phase = find_phase(data.manifest.strategy, key.phase)
        gathering = phase.gather(data.manifest.protocol_parameters)
        if gathering is None:
            return await self._release_sum(key, data, phase, members)
        return await self._release_gathered(key, data, gathering, members)

    async def _release_sum(
        self, key: Key, data: Accumulation, phase: Phase, members: Sequence[PartyId]
    ) -> SumSent:
        """Add chunk by chunk, and send each chunk of the sum to everybody."""
        vectors = data.sets[members[0]].vectors
        for index, chunk in enumerate(plan_chunks(vectors, data.manifest.chunk_bytes)):
            refs = [ChunkRef(member, data.sets[member].set_id, index) for member in members]
            reads = [partial(self._spool.read, key, ref) for ref in refs]
            payload = await asyncio.to_thread(add_chunk, phase, chunk, vectors, reads)
            body = SumChunk(members=data.members, vectors=declare(vectors), index=index)
            for client in data.manifest.clients:
                await self.runner.post.send(key, to=client, role=Role.CLIENT, body=body, payload=payload)
        recipients = len(data.manifest.clients)
        return SumSent(vectors=vectors, traffic=count_payload(vectors, "down", copies=recipients))

    async def _release_gathered(
        self, key: Key, data: Accumulation, gathering: Gathering, members: Sequence[PartyId]
    ) -> SumSent:
        """Compute on whole vectors, and send each client what is for it."""
        for member in members:
            values = await asyncio.to_thread(self._assemble, key, data, member)
            await asyncio.to_thread(gathering.add, values, data.sets[member].weight)
        traffic: list[Traffic] = []
        vectors: tuple[Vector, ...] = ()
        for place, client in enumerate(data.manifest.clients):
            release = await asyncio.to_thread(gathering.finish, place)
            vectors = release.vectors
            for index, chunk in enumerate(plan_chunks(vectors, data.manifest.chunk_bytes)):
                pieces = [release.values[piece.vector][piece.elements] for piece in chunk]
                payload = await asyncio.to_thread(pack_chunk, chunk, vectors, pieces)
                body = SumChunk(members=data.members, vectors=declare(vectors), index=index)
                await self.runner.post.send(key, to=client, role=Role.CLIENT, body=body, payload=payload)
            traffic.extend(count_payload(vectors, "down", copies=1))
        return SumSent(vectors=vectors, traffic=tuple(traffic))

    def _assemble(self, key: Key, data: Accumulation, member: PartyId) -> list[Residues]:
        share_set = data.sets[member]
        plan = plan_chunks(share_set.vectors, data.manifest.chunk_bytes)
        refs = [ChunkRef(member, share_set.set_id, index) for index in range(len(plan))]
        return assemble(plan, share_set.vectors, [partial(self._spool.read, key, ref) for ref in refs])

    def _accumulation(self, key: Key) -> Accumulation:
        data = self.runner.machines[key].data
        if not isinstance(data, Accumulation):
            raise LocalError(f"{key} is not a phase")
        return data

    def retire(self, key: Key, live: Live) -> None:
        """Forget the chunks of what is over."""
        super().retire(key, live)
        if key.kind == "phase":
            self._spool.drop(key)

    def close(self) -> None:
        """Close the journal."""
        self.journal.close()
