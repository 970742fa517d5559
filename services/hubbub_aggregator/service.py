"""The aggregator's shell: checks messages at the edge, spools sealed chunks, journals verdicts, sends sums."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from hubbub.crypto.sealing import SumKey, seal_overhead
from hubbub.errors import LocalError, PeerError, RejectReason
from hubbub.ids import PartyId, Role, SetId
from hubbub.machine.effects import Effect, Job, Key
from hubbub.messages.envelope import Envelope
from hubbub.messages.keys import RunKey, RunKeys
from hubbub.messages.manifest import Manifest
from hubbub.messages.rounds import ClosePhase, VoidPhase
from hubbub.messages.runs import RunEnded, RunProposed
from hubbub.messages.shares import Receipt, SetReceived, ShareChunk, declare
from hubbub.messages.sums import SumChunk
from hubbub.messages.traffic import Traffic, count_payload, share_wire_bytes
from hubbub.protocol.layout import Vector, check_payload, pack_chunk, plan_chunks
from hubbub.protocol.ring import Residues
from hubbub.runtime.clock import Clock
from hubbub.runtime.intake import check_sender, find_disagreements
from hubbub.runtime.participant import STATE_FILE, Participant
from hubbub.runtime.runner import Fed, Live, Observer
from hubbub.runtime.spool import ChunkRef
from hubbub.strategies.base import Gathering, Phase
from hubbub.strategies.registry import find_phase, find_strategy
from hubbub.transport.base import Transport
from hubbub.trust.identity import Identity
from hubbub.trust.roster import Roster
from hubbub.trust.signed import check_receipt, check_run_keys, digest_run_keys, sign_receipt
from hubbub_aggregator.events import (
    ChunkArrived,
    ChunkBroken,
    ChunkChecked,
    CloseOrdered,
    Ended,
    KeysArrived,
    Proposed,
    SumSent,
    VoidOrdered,
)
from hubbub_aggregator.journal import Journal
from hubbub_aggregator.phases import accumulation, membership
from hubbub_aggregator.phases.accumulation import Accumulation
from hubbub_aggregator.phases.membership import Membership
from hubbub_aggregator.summing import add_chunk, assemble, check_chunk

CHECKS_AT_ONCE = 2
"""Chunks that are opened at the same time: each takes memory for its elements."""


class Aggregator(Participant):
    """Holds one share of everything and so knows nothing."""

    def __init__(
        self,
        *,
        identity: Identity,
        roster: Roster,
        transport: Transport,
        folder: Path,
        clock: Clock | None = None,
        observer: Observer = lambda _: None,
    ) -> None:
        super().__init__(
            identity=identity,
            roster=roster,
            transport=transport,
            folder=folder,
            kinds={"run": membership.KIND, "phase": accumulation.KIND},
            clock=clock,
            observer=observer,
        )
        self.journal = Journal(folder / STATE_FILE)
        self._checks = asyncio.Semaphore(CHECKS_AT_ONCE)

    # Messages to events ---------------------------------------------------------------------------------

    def receive(self, envelope: Envelope, *, size: int, now_s: float) -> Sequence[Fed]:
        """Check a message and make its event."""
        del now_s
        run = Key("run", envelope.run)
        body = envelope.body
        if isinstance(body, RunProposed):
            return self._receive_proposal(run, envelope, body, Proposed())
        if self._is_past(run, envelope):
            return self._ignore(envelope)
        data = self._joined(run, Membership)
        check_sender(data.manifest, envelope)
        match body:
            case RunEnded(outcome=outcome):
                return [(run, Ended(outcome=outcome))]
            case RunKeys():
                return [(run, self._read_keys(data, body))]
        if not data.keys_sha256:
            raise PeerError(RejectReason.TOO_EARLY, f"{data.me} does not have everybody's run keys yet")
        match body:
            case ShareChunk():
                return self._receive_chunk(data, envelope, body, size)
            case ClosePhase():
                return self._receive_order(data, envelope, self._read_order(envelope, body))
            case VoidPhase(reason=reason):
                return self._receive_order(data, envelope, VoidOrdered(reason=reason))
        raise PeerError(RejectReason.UNEXPECTED, f"an aggregator takes no {envelope.kind}")

    def _object(self, manifest: Manifest) -> tuple[str, ...]:
        return find_disagreements(manifest, self.runner.roster)

    def _invite(
        self, run: Key, manifest: Manifest, *, objections: tuple[str, ...], run_key: RunKey | None
    ) -> None:
        me = self.runner.identity.name
        data = Membership(me=me, manifest=manifest, objections=objections, run_key=run_key)
        self.runner.add(run, data)

    def _read_keys(self, data: Membership, body: RunKeys) -> KeysArrived:
        publics = check_run_keys(self.runner.roster, data.manifest, body)
        return KeysArrived(publics=publics, keys_sha256=digest_run_keys(data.manifest.run_id, publics))

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
        size_inside = len(envelope.payload) - seal_overhead(self.runner.roster.kem)
        sizes = check_payload(plan, vectors, body.index, size_inside)
        event = ChunkArrived(
            client=envelope.sender,
            set_id=body.set_id,
            vectors=vectors,
            weight=body.weight,
            transcript=body.transcript,
            index=body.index,
            chunks=len(plan),
            wire_bytes=share_wire_bytes(sizes, size),
        )
        return [(self._phase_key(data, envelope), event)]

    def _read_order(self, envelope: Envelope, body: ClosePhase) -> CloseOrdered:
        """An order proves itself by the aggregators' receipts, so every signature is checked."""
        for signed in body.receipts:
            check_receipt(self.runner.roster, envelope.run, envelope.round, envelope.phase, signed)
        receipts = tuple(signed.receipt for signed in body.receipts)
        return CloseOrdered(members=body.members, receipts=receipts)

    def _receive_order(
        self, data: Membership, envelope: Envelope, event: CloseOrdered | VoidOrdered
    ) -> Sequence[Fed]:
        key = Key("phase", envelope.run, envelope.round, envelope.phase)
        if key in self.runner.machines:
            return [(key, event)]
        # A void ends the whole round, so it is for every aggregator, whatever phases it takes part in.
        ends_round = isinstance(event, VoidOrdered) and envelope.round == data.round
        if key in self._over or (self._is_over(data, envelope) and not ends_round):
            # The same order again is old news; any other asks for a second verdict.
            members = event.members if isinstance(event, CloseOrdered) else ()
            self.journal.check(key, [client for client in data.manifest.clients if client in members])
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
            self.runner.add(key, start)
        return key

    # Effects and jobs -----------------------------------------------------------------------------------

    async def perform(self, key: Key, effect: Effect, payload: bytes) -> None:
        """Spool and journal, in a thread: both wait for the disk."""
        match effect:
            case membership.RememberRun():
                await asyncio.to_thread(self._remember_run, key.run)
            case membership.AcceptKeys():
                self._accept_keys(key.run, effect.publics)
            case accumulation.RecordSet():
                await asyncio.to_thread(self.journal.record_set, key, effect.client, effect.set_id)
            case accumulation.GiveReceipt():
                await self._give_receipt(key, effect.receipt)
            case accumulation.SpoolChunk():
                ref = ChunkRef(effect.client, effect.set_id, effect.index)
                await asyncio.to_thread(self._spool.write, key, ref, payload)
            case accumulation.RecordRelease():
                await asyncio.to_thread(self._record_release, key, effect.members)
            case accumulation.RecordVoid():
                await asyncio.to_thread(self.journal.record, key, ())
            case _:
                raise LocalError(f"an aggregator has no effect {effect!r}")

    async def _give_receipt(self, key: Key, receipt: Receipt) -> None:
        signed = sign_receipt(self.runner.identity, key.run, key.round, key.phase, receipt)
        coordinator = self._accumulation(key).manifest.coordinator
        body = SetReceived(receipt=signed)
        await self.runner.post.send(key, to=coordinator, role=Role.COORDINATOR, body=body)

    def _record_release(self, key: Key, members: Sequence[PartyId]) -> None:
        """The keys are fixed with the verdict: a sum that is sent again after a crash is the same to the bit."""
        self.journal.record(key, members)
        if self._vault.get(key.run, _sum_keys_of(key)) is None:
            self._vault.put(key.run, _sum_keys_of(key), self._make_sum_keys(key))

    def _make_sum_keys(self, key: Key) -> bytes:
        data = self._accumulation(key)
        seals, stage = self._seal_of(key)
        shared = SumKey.fresh()
        # Where clients may be sent different vectors, each has a key of its own.
        each_its_own = find_phase(data.manifest.strategy, key.phase).gathers
        keys = {client: SumKey.fresh() if each_its_own else shared for client in data.manifest.clients}
        wrapped = {client: seals.wrap_sum_key(stage, client, sum_key) for client, sum_key in keys.items()}
        return json.dumps({name: (keys[name].to_bytes().hex(), wrapped[name].hex()) for name in keys}).encode()

    def _recall_sum_keys(self, key: Key) -> dict[PartyId, tuple[SumKey, bytes]]:
        kept = self._vault.get(key.run, _sum_keys_of(key))
        if kept is None:
            raise LocalError(f"there are no keys for the sum of {key}")
        return {
            client: (SumKey.from_bytes(bytes.fromhex(sum_key)), bytes.fromhex(wrapped))
            for client, (sum_key, wrapped) in json.loads(kept).items()
        }

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
            share = self._open_chunk(key, ChunkRef(job.client, job.share_set.set_id, job.index))
            check_chunk(chunk, vectors, share)
        except PeerError as error:
            return ChunkBroken(client=job.client, index=job.index, reason=error.reason, explanation=str(error))
        return ChunkChecked(client=job.client, index=job.index)

    def _open_chunk(self, key: Key, ref: ChunkRef) -> bytes:
        """Open a chunk that lies sealed in the spool; it is opened again when it is added."""
        seals, stage = self._seal_of(key)
        return seals.open_share(
            stage, PartyId(ref.sender), SetId(ref.set_id), ref.index, self._spool.read(key, ref)
        )

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
        """Add chunk by chunk, and send each chunk of the sum to everybody, sealed once for all."""
        vectors = data.sets[members[0]].vectors
        seals, stage = self._seal_of(key)
        keys = self._recall_sum_keys(key)
        sum_key, _ = keys[data.manifest.clients[0]]
        for index, chunk in enumerate(plan_chunks(vectors, data.manifest.chunk_bytes)):
            refs = [ChunkRef(member, data.sets[member].set_id, index) for member in members]
            reads = [partial(self._open_chunk, key, ref) for ref in refs]
            packed = await asyncio.to_thread(add_chunk, phase, chunk, vectors, reads)
            payload = await asyncio.to_thread(seals.encrypt_sum, stage, sum_key, index, packed)
            for client in data.manifest.clients:
                await self._send_sum(key, client, vectors, keys[client][1], index, payload)
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
        seals, stage = self._seal_of(key)
        keys = self._recall_sum_keys(key)
        for place, client in enumerate(data.manifest.clients):
            release = await asyncio.to_thread(gathering.finish, place)
            vectors = release.vectors
            sum_key, wrapped = keys[client]
            for index, chunk in enumerate(plan_chunks(vectors, data.manifest.chunk_bytes)):
                pieces = [release.values[piece.vector][piece.elements] for piece in chunk]
                packed = await asyncio.to_thread(pack_chunk, chunk, vectors, pieces)
                payload = await asyncio.to_thread(seals.encrypt_sum, stage, sum_key, index, packed)
                await self._send_sum(key, client, vectors, wrapped, index, payload)
            traffic.extend(count_payload(vectors, "down", copies=1))
        return SumSent(vectors=vectors, traffic=tuple(traffic))

    async def _send_sum(
        self, key: Key, client: PartyId, vectors: Sequence[Vector], wrapped: bytes, index: int, payload: bytes
    ) -> None:
        body = SumChunk(
            members=self._accumulation(key).members,
            vectors=declare(tuple(vectors)),
            wrapped_key=wrapped.hex(),
            index=index,
        )
        await self.runner.post.send(key, to=client, role=Role.CLIENT, body=body, payload=payload)

    def _assemble(self, key: Key, data: Accumulation, member: PartyId) -> list[Residues]:
        share_set = data.sets[member]
        plan = plan_chunks(share_set.vectors, data.manifest.chunk_bytes)
        refs = [ChunkRef(member, share_set.set_id, index) for index in range(len(plan))]
        return assemble(plan, share_set.vectors, [partial(self._open_chunk, key, ref) for ref in refs])

    def _accumulation(self, key: Key) -> Accumulation:
        data = self.runner.machines[key].data
        if not isinstance(data, Accumulation):
            raise LocalError(f"{key} is not a phase")
        return data

    def retire(self, key: Key, live: Live) -> bool:
        """Forget the chunks of what is over, and the keys of its sum."""
        if key.kind == "phase":
            self._spool.drop(key)
            self._vault.delete(key.run, _sum_keys_of(key))
        return super().retire(key, live)

    def close(self) -> None:
        """Close what is open on disk."""
        super().close()
        self.journal.close()


def _sum_keys_of(key: Key) -> str:
    """What the vault calls the keys of a phase's sum."""
    return f"sum keys {key.round} {key.phase}"
