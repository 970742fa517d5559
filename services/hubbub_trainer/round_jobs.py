"""Jobs of a round at a client: train, deal and send shares, recombine sums, and apply them to the model.

The first part converts vectors to chunks of shares, and chunks of sums back to vectors, on either wire.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import sha256

import numpy as np

from hubbub.crypto.key_derivation import Transcript
from hubbub.crypto.signing import bind
from hubbub.crypto.stream import AesCtrStream
from hubbub.errors import LocalError, StorageDamaged
from hubbub.ids import PartyId, Role, SetId
from hubbub.machine.effects import Job, Key
from hubbub.messages.manifest import Manifest
from hubbub.messages.shares import (
    DenseShareChunk,
    ShareChunk,
    ShareSeed,
    Traffic,
    count_payload,
    count_seeds,
    declare,
)
from hubbub.protocol import aggregate
from hubbub.protocol.dense import Digits
from hubbub.protocol.layout import Chunk, Payload, Vector, pack_chunk, unpack_chunk
from hubbub.protocol.ring import RandomStream, Residues, residue_type, word_type
from hubbub.protocol.sharing import share_masked, unmask
from hubbub.runtime.publisher import Parcel, Post, overlapping
from hubbub.runtime.spool import ChunkRef, Spool
from hubbub.store.state_file import Vault
from hubbub.strategies.base import ClientInput, Phase, Release
from hubbub.strategies.phase_plan import PhasePlan, phases_of, plan_phase
from hubbub.strategies.registry import find_strategy
from hubbub.strategies.scores import SCORES, ScoreRound
from hubbub.strategies.verified import VerifiedRound
from hubbub.trust.seals import (
    RunSeals,
    SealContext,
    ShareKey,
    Stage,
    TagCoefficients,
    derive_seed,
    derive_share_key,
    mask_stream,
    share_stream,
)
from hubbub_trainer import run_secrets, workspace
from hubbub_trainer.events import (
    Closed,
    Concluded,
    Decoded,
    Evaluated,
    HeldModel,
    OtherTranscript,
    Overtaken,
    SharesResent,
    SharesSent,
    Trained,
)
from hubbub_trainer.ledger import Ledger
from hubbub_trainer.phases import round as rounds
from hubbub_trainer.phases.round import ClientRound, Sum
from hubbub_trainer.task_runner import TaskRunner
from hubbub_trainer.workspace import (
    Learnt,
    OpenRound,
    OpenScores,
    Workspace,
    drop_scores,
    drop_update,
    scores_file,
    update_file,
)
from hubbub_trainer.workspaces import Workspaces

# Chunks of shares and sums ------------------------------------------------------------------------------


def digest_content(vectors: Sequence[Vector], values: Sequence[Digits], weight: int, transcript: str) -> bytes:
    """Hash the content of a share set, to tell the same set sent again from another."""
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
        """Derive the seed that an aggregator is sent instead of a share."""
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
        """Pack the one full share of a chunk; the aggregators in `seeded` expand theirs from their seeds."""

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

        Also return whether residues can add up to such a sum.
        """
        possible = True
        sums: list[Digits] = [np.empty(0, dtype=word_type(vector.modulus)) for vector in vectors]
        for index, chunk in enumerate(plan):
            masks = [partial(self._mask, member, index) for member in members]
            for piece, total, could_be in unmask(chunk, vectors, read(index), masks):
                possible &= could_be
                length = vectors[piece.vector].length
                if total.size == length:  # Most vectors fit into one chunk: no copy is needed.
                    sums[piece.vector] = total
                    continue
                if piece.start == 0:
                    sums[piece.vector] = np.empty(length, dtype=total.dtype)
                sums[piece.vector][piece.elements] = total
        return sums, possible

    def _mask(self, client: PartyId, index: int, vector: Vector) -> AesCtrStream:
        return mask_stream(self.stage, self.group_key, client, _place(vector, index))


def _place(vector: Vector, index: int) -> SealContext:
    return SealContext(vector.name, vector.modulus, index)


# Jobs ---------------------------------------------------------------------------------------------------

Sleep = Callable[[float], Awaitable[None]]


def place_of(key: Key, phase: str) -> Key:
    """Return the spool's key for the sums of a phase."""
    return replace(key, phase=phase)


def name_sum(aggregator: PartyId, index: int) -> ChunkRef:
    """Return the spool's name for a chunk of an aggregator's sum."""
    return ChunkRef(aggregator, "sum", index)


def differs(transcript: str, sums: Mapping[PartyId, Sum]) -> bool:
    """Return whether any of these sums was released over another transcript than this one."""
    return any(one.transcript != transcript for one in sums.values())


@dataclass(frozen=True, slots=True)
class Outgoing:
    """Share set to be sent. Its secrets do not print."""

    wire: PhasePlan[PartyId]
    set_id: SetId
    secret: bytes = field(repr=False)
    """The secret that its shares derive from."""
    vectors: tuple[Vector, ...]
    values: tuple[Digits, ...] = field(repr=False)
    weight: int
    transcript: str
    keys: Mapping[PartyId, ShareKey]
    """Keys for the aggregators that get a full share."""


@dataclass(frozen=True, slots=True)
class Seeds:
    """Recipients of a share set on the compact wire: one full share, and sealed seeds."""

    compact: Compact
    holder: PartyId
    """The aggregator that gets the one full share."""
    sealed: Mapping[PartyId, bytes]
    """Sealed seeds for all other aggregators."""


def _seal_share(out: Outgoing, server: PartyId, index: int, share: bytes) -> Parcel:
    """Seal one chunk of a share and hash the payload."""
    return Parcel.of(out.keys[server].seal(index, share))


class RoundJobs:
    """Runs the jobs of rounds.

    The data of a round's machine are looked up when they are needed: a round may be abandoned during a job, and
    `find_round` then refuses it.
    """

    def __init__(
        self,
        *,
        me: PartyId,
        spaces: Workspaces,
        spool: Spool,
        vault: Vault,
        ledger: Ledger,
        post: Post,
        find_round: Callable[[Key], ClientRound],
        seal_of: Callable[[Key, str], tuple[RunSeals, Stage]],
        slots: asyncio.Semaphore,
        tasks: TaskRunner,
        sleep: Sleep,
    ) -> None:
        self.me = me
        self._spaces = spaces
        self._spool = spool
        self._vault = vault
        self._ledger = ledger
        self._post = post
        self._find_round = find_round
        self._seal_of = seal_of
        self._slots = slots
        self._tasks = tasks
        self._sleep = sleep

    async def work(self, key: Key, job: Job) -> object:
        """Run a job; return `Overtaken` if we have meanwhile taken over a peer's model of a later round."""
        try:
            return await self._do(key, job)
        except LocalError:
            space = self._spaces.find(key.run)
            if space is None or space.group is None or space.group.round <= key.round:
                raise
            return Overtaken()

    async def _do(self, key: Key, job: Job) -> object:
        match job:
            case rounds.Train():
                return await self._train(key, idle=job.idle)
            case rounds.SendShares():
                return await self._send_shares(key, job.phase)
            case rounds.ResendShares():
                return await self._resend_shares(key, job)
            case rounds.DecodeSums():
                return await asyncio.to_thread(self._decode, key, job)
            case rounds.Conclude():
                return await asyncio.to_thread(self._move_on, key, took_part=job.took_part)
            case rounds.Evaluate():
                async with self._slots:
                    return await asyncio.to_thread(self._evaluate, key)
            case rounds.CloseVoid():
                return await asyncio.to_thread(self._close_void, key)
        raise LocalError(f"a trainer has no job {job!r}")

    # Training -------------------------------------------------------------------------------------------

    async def _train(self, key: Key, *, idle: bool) -> Trained:
        began_s = time.monotonic()
        async with self._slots:
            spare_s = await asyncio.to_thread(self._stay_idle if idle else self._train_locally, key)
            if spare_s:
                await self._sleep(spare_s)
        return Trained(training_s=time.monotonic() - began_s)

    def _stay_idle(self, key: Key) -> None:
        """Keep an empty update for a round that was closed without us, so that its sums can be taken in."""
        space = self._spaces.open(key.run)
        with space.lock:
            space.group_secret.advance_to(key.round)  # Refuses an earlier round.
            if space.recall_update(key.round) is None:
                space.keep_update(key.round, Learnt(np.zeros_like(space.theta), space.memory))
            self._open_round(key)

    def _train_locally(self, key: Key) -> float:
        """Train and keep the update; after a restart only if training had not finished.

        Returns the number of seconds that training would still have taken: 0 unless it failed.
        """
        space, manifest, spare_s = self._spaces.open(key.run), self._find_round(key).manifest, 0.0
        with space.lock:
            space.group_secret.advance_to(key.round)  # Refuses an earlier round.
            if space.recall_update(key.round) is None:
                begin = partial(self._begin_with, key, space, manifest)
                learnt, begun, spare_s = self._tasks.train(key, space, manifest, begin)
                space.keep_update(key.round, learnt)
                space.rounds[key.round] = begun
            self._open_round(key)
        return spare_s

    # Our side of a round, made or rebuilt ---------------------------------------------------------------

    def _open_phase(self, key: Key, phase: str) -> OpenRound:
        """Return our side of a phase, which may be the scores."""
        return self._open_scores(key).verified if phase == SCORES.name else self._open_round(key)

    def _open_round(self, key: Key, *, whole: bool = False) -> OpenRound:
        """Return our side of a round; after a restart, rebuild it from the update and the decoded sums."""
        space = self._spaces.open(key.run)
        if key.round not in space.rounds:
            space.rounds[key.round] = self._begin_round(key, space)
        mine, data = space.rounds[key.round], self._find_round(key)
        learning = find_strategy(data.manifest.strategy).phases
        decoded = tuple(phase.name for phase in learning) if whole else data.decoded
        for phase in decoded[len(mine.absorbed) :]:
            self._absorb(key, data, mine, phase)
        return mine

    def _begin_round(self, key: Key, space: Workspace) -> OpenRound:
        learnt = space.recall_update(key.round)
        if learnt is None:
            raise StorageDamaged(update_file(space.folder, key.round), "is gone")
        return self._begin_with(key, space, self._find_round(key).manifest, learnt)

    def _begin_with(self, key: Key, space: Workspace, manifest: Manifest, learnt: Learnt) -> OpenRound:
        mine = ClientInput(
            theta=space.theta,
            update=learnt.update,
            accumulator=space.accumulator,
            samples=learnt.samples,
            stream=AesCtrStream(space.secret.key_for("strategy", run=key.run, round_number=key.round)),
            history=space.history,
            silent=learnt.silent,
            coefficients=self._find_coefficients(key, space),
        )
        client_round = find_strategy(manifest.strategy).begin(manifest.protocol_parameters, mine)
        return OpenRound(client_round, learnt.memory, self._begin_transcript(key, space))

    @staticmethod
    def _find_coefficients(key: Key, space: Workspace) -> TagCoefficients:
        """Derive the coefficients of this round's tags from the group secret."""
        space.group_secret.advance_to(key.round)
        return TagCoefficients(key.run, key.round, space.group_secret.key_for("tags"))

    @staticmethod
    def _begin_transcript(key: Key, space: Workspace) -> Transcript:
        """Begin a round's transcript with the model and history that the clients share."""
        space.group_secret.advance_to(key.round)
        transcript = Transcript(space.group_secret.key_for("transcript"))
        history = aggregate.pack(space.history, len(space.history))
        transcript.note(key.run, key.round, bytes.fromhex(space.digest_of(space.theta)), history)
        return transcript

    # Shares and sums ------------------------------------------------------------------------------------

    async def _send_shares(self, key: Key, phase_name: str) -> SharesSent:
        await asyncio.to_thread(self._ledger.count, key.run)
        outgoing, seeds = await asyncio.to_thread(self._make_outgoing, key, phase_name)
        if seeds is None:
            return SharesSent(traffic=await self._send_in_full(key, outgoing, outgoing.wire.servers))
        return SharesSent(traffic=await self._send_compact(key, outgoing, seeds))

    async def _resend_shares(self, key: Key, job: rounds.ResendShares) -> SharesResent:
        """Resend one aggregator its share; a set that was never begun is not begun for this."""
        made = await asyncio.to_thread(self._make_outgoing_again, key, job.phase)
        if made is not None:
            outgoing, seeds = made
            if seeds is None:
                await self._send_in_full(key, outgoing, (job.aggregator,))
            elif seeds.holder == job.aggregator:
                await self._send_full_share(key, outgoing, seeds)
        return SharesResent(phase=job.phase, aggregator=job.aggregator)

    def _make_outgoing_again(self, key: Key, phase_name: str) -> tuple[Outgoing, Seeds | None] | None:
        """Make the same set as before; None if the phase's sums were taken in meanwhile."""
        if run_secrets.find_set(self._vault, key, phase_name) is None:
            return None
        mine = self._open_phase(key, phase_name)
        with mine.lock:
            return None if phase_name in mine.absorbed else self._make_outgoing(key, phase_name)

    def _make_outgoing(self, key: Key, phase_name: str) -> tuple[Outgoing, Seeds | None]:
        mine = self._open_phase(key, phase_name)
        wire = plan_phase(self._find_round(key).manifest, phase_name)
        vectors, values = mine.client_round.vectors(phase_name), mine.client_round.contribute(phase_name)
        weight, transcript = mine.client_round.weight, mine.transcript_of(phase_name)
        content = digest_content(vectors, values, weight, transcript)
        set_id, secret = run_secrets.get_or_create_outbox(self._vault, key, phase_name, content)
        seals, stage = self._seal_of(key, phase_name)
        in_full = (wire.full_share_holder(self.me, key.round),) if wire.compact else wire.servers
        keys = {
            server: seals.make_share_key(stage, server, set_id, derive_share_key(stage, secret, server))
            for server in in_full
        }
        out = Outgoing(wire, set_id, secret, vectors, values, weight, transcript, keys)
        return out, self._seal_seeds(key, out) if wire.compact else None

    async def _send_in_full(self, key: Key, out: Outgoing, to: Collection[PartyId]) -> tuple[Traffic, ...]:
        """Deal a share to every aggregator and send theirs to those in `to`."""
        stream = AesCtrStream(out.secret)
        servers = out.wire.servers
        async with overlapping() as overlap:
            for index, chunk in enumerate(out.wire.plan(out.vectors)):
                shares = await asyncio.to_thread(
                    deal_chunk, out.wire.phase, chunk, out.vectors, out.values, len(servers), stream
                )
                for server, share in zip(servers, shares, strict=True):
                    if server in to:
                        await overlap.begin(self._seal_and_send, key, out, server, index, share)
        return count_payload(out.vectors, "up", copies=len(to))

    async def _seal_and_send(self, key: Key, out: Outgoing, server: PartyId, index: int, share: bytes) -> None:
        sealed = await asyncio.to_thread(_seal_share, out, server, index, share)
        await self._send_chunk(key, out, ShareChunk, server, index, sealed)

    async def _send_compact(self, key: Key, out: Outgoing, seeds: Seeds) -> tuple[Traffic, ...]:
        """Send the full share to one aggregator and seeds to all others."""
        phase = out.wire.phase.name
        body = ShareSeed(
            set_id=out.set_id, vectors=declare(out.vectors), weight=out.weight, transcript=out.transcript
        )
        for server, seed in seeds.sealed.items():
            await self._send_share(key, phase, server, body, seed)
        await self._send_full_share(key, out, seeds)
        full = count_payload(out.vectors, "up", copies=1, encoding=out.wire.encoding)
        return (*full, *count_seeds(out.vectors, copies=len(seeds.sealed)))

    async def _send_full_share(self, key: Key, out: Outgoing, seeds: Seeds) -> None:
        async with overlapping() as overlap:
            for index, chunk in enumerate(out.wire.plan(out.vectors)):
                share = await asyncio.to_thread(self._deal_compact, out, seeds, index, chunk)
                await overlap.begin(self._send_chunk, key, out, DenseShareChunk, seeds.holder, index, share)

    def _seal_seeds(self, key: Key, out: Outgoing) -> Seeds:
        compact = self._make_compact(key, out.wire.phase.name)
        seals, stage = self._seal_of(key, out.wire.phase.name)
        (holder,) = out.keys
        sealed = {
            server: seals.seal_seed(stage, server, out.set_id, compact.seed_for(out.secret, server))
            for server in out.wire.servers
            if server != holder
        }
        return Seeds(compact, holder, sealed)

    def _deal_compact(self, out: Outgoing, seeds: Seeds, index: int, chunk: Chunk) -> Parcel:
        share = seeds.compact.deal_chunk(
            index, chunk, out.vectors, out.values, me=self.me, secret=out.secret, seeded=tuple(seeds.sealed)
        )
        return _seal_share(out, seeds.holder, index, share)

    async def _send_chunk(
        self, key: Key, out: Outgoing, kind: type[ShareChunk], server: PartyId, index: int, share: Parcel
    ) -> None:
        body = kind(
            set_id=out.set_id,
            vectors=declare(out.vectors),
            weight=out.weight,
            transcript=out.transcript,
            index=index,
        )
        await self._send_share(key, out.wire.phase.name, server, body, share)

    async def _send_share(
        self, key: Key, phase: str, server: PartyId, body: ShareChunk | ShareSeed, payload: bytes | Parcel
    ) -> None:
        # Refuses an abandoned round: its outbox is gone, so this would be another set.
        self._find_round(key)
        await self._post.send(key, to=server, role=Role.AGGREGATOR, body=body, phase=phase, payload=payload)

    def _make_compact(self, key: Key, phase: str) -> Compact:
        """Derive this round's masks from the group secret, which never goes back to an earlier round."""
        space = self._spaces.open(key.run)
        _, stage = self._seal_of(key, phase)
        with space.lock:
            space.group_secret.advance_to(key.round)
            return Compact(stage, space.group_secret.key_for("masks"))

    def _decode(self, key: Key, job: rounds.DecodeSums) -> Decoded | OtherTranscript:
        if job.phase == SCORES.name:
            return self._decode_scores(key)
        mine, data = self._open_round(key), self._find_round(key)
        transcript = mine.transcript_of(job.phase)
        if differs(transcript, data.sums[job.phase]):
            return OtherTranscript()
        if job.phase not in mine.absorbed:
            self._absorb(key, data, mine, job.phase)
        return Decoded(transcript=transcript)

    def _decode_scores(self, key: Key) -> Decoded | OtherTranscript:
        mine, data = self._open_scores(key), self._find_round(key)
        transcript = mine.verified.transcript_of(SCORES.name)
        if differs(transcript, data.sums[SCORES.name]):
            return OtherTranscript()
        if mine.side.totals is None:
            self._absorb(key, data, mine.verified, SCORES.name)
        totals = mine.side.totals or {}
        self._spaces.open(key.run).note_scores(key.round, {"metrics": totals})
        return Decoded(transcript=transcript, metrics=totals)

    def _absorb(self, key: Key, data: ClientRound, mine: OpenRound, phase: str) -> None:
        """Recombine the sums of a phase and take them in."""
        one, release = next(iter(data.sums[phase].values())), self._read_sums(key, data, phase)
        members = [client for client in data.manifest.clients if client in one.members]
        with mine.lock:
            mine.client_round.absorb(phase, release, len(members))
            mine.note_sums(phase, members, release)
            mine.absorbed.append(phase)

    def _read_sums(self, key: Key, data: ClientRound, phase_name: str) -> Release:
        wire = plan_phase(data.manifest, phase_name)
        if wire.compact:
            return self._read_masked(key, data, wire)
        servers = wire.servers
        seals, stage = self._seal_of(key, phase_name)
        sums = data.sums[phase_name]
        keys = {server: seals.unwrap_sum_key(stage, server, sums[server].wrapped_key) for server in servers}

        def read(place: int, index: int) -> Payload:
            server = servers[place]
            sealed = self._spool.read(place_of(key, phase_name), name_sum(server, index))
            return seals.decrypt_sum(stage, server, keys[server], index, sealed)

        vectors = sums[servers[0]].vectors
        return Release(
            vectors, tuple(recombine_chunks(wire.phase, wire.plan(vectors), vectors, len(servers), read))
        )

    def _read_masked(self, key: Key, data: ClientRound, wire: PhasePlan[PartyId]) -> Release:
        combiner = wire.combiner(key.round)
        one = data.sums[wire.phase.name][combiner]
        place = place_of(key, wire.phase.name)
        members = [client for client in data.manifest.clients if client in one.members]
        compact = self._make_compact(key, wire.phase.name)

        def read(index: int) -> bytes:
            return self._spool.read(place, name_sum(combiner, index))

        values, possible = compact.decode_chunks(wire.plan(one.vectors), one.vectors, members, read)
        return Release(one.vectors, tuple(values), possible)

    # The end of a round ---------------------------------------------------------------------------------

    def _move_on(self, key: Key, *, took_part: bool) -> Concluded:
        space = self._spaces.open(key.run)
        with space.lock:
            space.group_secret.advance_to(key.round)  # Refuses an earlier round.
            if space.applied < key.round:
                mine = self._open_round(key, whole=True)
                conclusion = mine.client_round.conclude(took_part=took_part)
                space.note_round(key.round, conclusion)
                space.advance(key.round, conclusion.theta, conclusion.accumulator, mine.memory, conclusion.history)
            return Concluded(model_hmac=space.model_hmac(), held=self.describe_held(key, space))

    def _evaluate(self, key: Key) -> Evaluated:
        """Score the model on our data; after a restart only if that had not finished."""
        space, sheet = self._spaces.open(key.run), self._find_round(key).manifest.score_sheet
        with space.lock:
            space.group_secret.advance_to(key.round)  # Refuses an earlier round.
            scores, began_s = space.recall_scores(key.round), time.monotonic()
            if scores is None:
                scores = self._tasks.evaluate(key, space)
                space.keep_scores(key.round, scores)
            own = sheet.decode_one(scores)
            space.note_scores(key.round, {"own_metrics": own})
            return Evaluated(own=own, evaluation_s=time.monotonic() - began_s)

    def _open_scores(self, key: Key) -> OpenScores:
        """Return our side of a scores phase; after a restart, rebuild it from the kept scores."""
        space, data = self._spaces.open(key.run), self._find_round(key)
        with space.lock:
            if key.round not in space.scoring:
                scores = space.recall_scores(key.round)
                if scores is None:
                    raise StorageDamaged(scores_file(space.folder, key.round), "is gone")
                side = ScoreRound(data.manifest.score_sheet, scores, space.examples)
                coefficients = self._find_coefficients(key, space) if data.manifest.verified else None
                verified = VerifiedRound(side, (SCORES,), coefficients)
                space.scoring[key.round] = OpenScores(
                    side, OpenRound(verified, None, self._begin_transcript(key, space))
                )
            return space.scoring[key.round]

    def _close_void(self, key: Key) -> Closed:
        space = self._spaces.open(key.run)
        with space.lock:
            space.group_secret.advance_to(key.round)
            return Closed(model_hmac=space.model_hmac(), held=self.describe_held(key, space))

    def describe_held(self, key: Key, space: Workspace) -> HeldModel:
        """Describe the model that we hold after a round; a void round has not moved it."""
        name = space.digest_of(space.theta)
        step = space.step if space.applied >= key.round else 0.0
        return HeldModel(
            sha256=name, step=step, voids=self._ledger.count_voids(name, run=key.run, but_not=key.round)
        )

    def close(self, key: Key, manifest: Manifest, *, has_verdict: bool) -> None:
        """Delete the data of a round that is over or was abandoned."""
        self._spool.drop_round(key)
        space = self._spaces.find(key.run)
        if space is not None:
            space.rounds.pop(key.round, None)
            space.scoring.pop(key.round, None)
        drop_update(self._spaces.folder_of(key.run), key.round)
        drop_scores(self._spaces.folder_of(key.run), key.round)
        phases = (phase.name for phase in phases_of(manifest))
        with space.lock if space else nullcontext(), self._vault.together():
            if has_verdict:
                # Void or not, nobody derives its keys again. A failed round has no verdict, and another round may
                # be open.
                workspace.step(self._vault, key.run, key.round + 1, space)
            run_secrets.drop_outboxes(self._vault, key, phases, has_verdict=has_verdict)
