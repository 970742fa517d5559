"""Jobs of a round at a client, in the order of an update's way.

    train -> compress (the strategy) -> make a share set -> deal -> seal -> publish
    read the sums -> decode -> apply to the model -> evaluate -> close

The first part converts vectors to chunks of shares, and chunks of sums back to vectors, on either wire.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import sha256

import numpy as np

from hubbub.crypto.key_derivation import Transcript
from hubbub.crypto.peer_ciphers import PEER_CIPHERS
from hubbub.crypto.signing import bind
from hubbub.crypto.stream import AesCtrStream
from hubbub.errors import LocalError, StorageDamaged
from hubbub.ids import PartyId, Role, SetId
from hubbub.machine.effects import Key
from hubbub.messages.manifest import Manifest
from hubbub.messages.shares import (
    DenseShareChunk,
    ShareChunk,
    ShareSeed,
    count_payload,
    count_seeds,
    declare,
)
from hubbub.protocol.compression import Indices
from hubbub.protocol.dense import Digits
from hubbub.protocol.layout import Chunk, Payload, Vector, pack_chunk, unpack_chunk
from hubbub.protocol.ring import RandomStream, Residues, residue_type, word_type
from hubbub.protocol.sharing import share_masked, unmask
from hubbub.runtime.publisher import Parcel, overlapping
from hubbub.runtime.spool import ChunkRef
from hubbub.strategies.base import ClientInput, Phase, Release
from hubbub.strategies.phase_plan import PhasePlan, phases_of, plan_phase
from hubbub.strategies.registry import find_strategy
from hubbub.strategies.scores import SCORES, ScoreRound
from hubbub.strategies.verified import VerifiedRound
from hubbub.trust.seals import (
    SealContext,
    ShareKey,
    Stage,
    TagCoefficients,
    derive_seed,
    derive_share_key,
    mask_stream,
    share_stream,
)
from hubbub_trainer.events import (
    Closed,
    Concluded,
    Decoded,
    Evaluated,
    OtherTranscript,
    SharesResent,
    SharesSent,
    Trained,
)
from hubbub_trainer.phases import round as rounds
from hubbub_trainer.phases.round import ClientRound, Sum
from hubbub_trainer.run_context import RunContext
from hubbub_trainer.workspace import (
    Learnt,
    OpenRound,
    Workspace,
    digest_parts,
    drop_update,
    scores_file,
    update_file,
)

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
    places: Collection[int],
    read: Callable[[int, int], Payload],
) -> list[Residues]:
    """Recombine the sums of servers, chunk by chunk; `read(place, index)` gives a chunk's payload."""
    sums: list[Residues] = [np.empty(vector.length, dtype=residue_type(vector.modulus)) for vector in vectors]
    for index, chunk in enumerate(plan):
        parts = {place: list(unpack_chunk(chunk, vectors, read(place, index))) for place in places}
        for position, piece in enumerate(chunk):
            totals = {place: part[position][1] for place, part in parts.items()}
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
class ShareSet:
    """Share set to be sent. Its secrets do not print.

    On the paper's wire every aggregator gets a full share. On the compact wire one does, and all others get seeds.
    """

    wire: PhasePlan
    set_id: SetId
    secret: bytes = field(repr=False)
    """The secret that its shares derive from."""
    vectors: tuple[Vector, ...]
    values: tuple[Digits, ...] = field(repr=False)
    weight: int
    transcript: str
    keys: Mapping[PartyId, ShareKey]
    """Keys for the aggregators that get a full share."""
    seeds: Mapping[PartyId, bytes]
    """Sealed seeds for all other aggregators."""
    compact: Compact | None


class RoundJobs:
    """Runs the jobs of one round.

    The data of the round's machine are looked up when they are needed: a round may be abandoned during a job, and
    is then refused.
    """

    def __init__(self, run: RunContext, key: Key) -> None:
        self.run = run
        self.key = key

    @property
    def me(self) -> PartyId:
        """The name of this client."""
        return self.run.me

    def _find_round(self) -> ClientRound:
        live = self.run.runner.machines.get(self.key)
        if live is None or not isinstance(live.data, ClientRound):
            raise LocalError(f"{self.key} is over, or is no round")
        return live.data

    def is_overtaken(self) -> bool:
        """Return whether we have meanwhile taken over a peer's model of a later round."""
        space = self.run.space
        return space is not None and space.group is not None and space.group.round > self.key.round

    # Training -------------------------------------------------------------------------------------------

    async def train(self, job: rounds.Train) -> Trained:
        """Train, and compress the update."""
        began_s, tasks = time.monotonic(), self.run.tasks
        async with tasks.slots:
            spare_s = await asyncio.to_thread(self._train, idle=job.idle)
            if spare_s:
                await tasks.sleep(spare_s)
        return Trained(training_s=time.monotonic() - began_s)

    def _train(self, *, idle: bool) -> float:
        """Train and keep the update; after a restart only if training had not finished.

        For a round that was closed without us, an empty update is kept, so that its sums can be taken in. Returns
        the number of seconds that training would still have taken: 0 unless it failed.
        """
        space, data, spare_s = self.run.open(), self._find_round(), 0.0
        number = self.key.round
        with space.at_round(number):
            if space.recall_update(number) is None:
                if idle:
                    space.keep_update(number, Learnt(np.zeros_like(space.theta), space.memory))
                else:
                    mask = self._draw_mask(space)
                    begin = partial(self._begin, space, mask=mask)
                    learnt, begun, spare_s = self.run.tasks.train(
                        self.key, space, data.manifest, begin, movable=mask, place=data.place
                    )
                    space.keep_update(number, learnt)
                    space.rounds[number] = begun
            self._open_round()
        return spare_s

    # Our side of a round, made or rebuilt ---------------------------------------------------------------

    def _draw_mask(self, space: Workspace) -> Indices | None:
        """Draw the coordinates that the round trains; None for all of them."""
        manifest = self.run.manifest
        strategy = find_strategy(manifest.strategy)
        if strategy.support != "mask":
            return None
        stream = self.run.begin_shared_stream(space, self.key.round, "mask")
        return strategy.draw_mask(manifest.protocol_parameters, space.tensors, stream)

    def _begin(self, space: Workspace, learnt: Learnt, *, mask: Indices | None) -> OpenRound:
        """Compress the update; raise an error if it cannot be sent."""
        key, manifest = self.key, self.run.manifest
        mine = ClientInput(
            theta=space.theta,
            update=learnt.update,
            accumulator=space.accumulator,
            samples=self.run.samples,
            weight=self.run.weight,
            stream=AesCtrStream(space.secret.key_for("strategy", run=key.run, round_number=key.round)),
            history=space.history,
            silent=learnt.silent,
            shared=self.run.begin_shared_stream(space, key.round, "strategy"),
            mask=mask,
            coefficients=self._find_coefficients(space),
            place=manifest.clients.index(self.me),
            ciphers=PEER_CIPHERS,
            progress=partial(self.run.tasks.report, key),
        )
        client_round = find_strategy(manifest.strategy).begin(manifest.protocol_parameters, mine)
        return OpenRound(client_round, learnt.memory, self._begin_transcript(space))

    def _find_coefficients(self, space: Workspace) -> TagCoefficients:
        """Derive the coefficients of this round's tags from the group secret."""
        return TagCoefficients(self.key.run, self.key.round, space.group_secret.key_for("tags"))

    def _begin_transcript(self, space: Workspace) -> Transcript:
        """Begin a round's transcript with the state that the clients share."""
        transcript = Transcript(space.group_secret.key_for("transcript"))
        shared = digest_parts(space.history, space.velocity)
        transcript.note(self.key.run, self.key.round, bytes.fromhex(space.agreed_sha256), *shared)
        if self.run.is_weighted:
            transcript.note(self.run.secrets.cohort_samples())
        return transcript

    def _open_phase(self, phase: str) -> OpenRound:
        """Return our side of a phase, which may be the scores."""
        return self._open_scores() if phase == SCORES.name else self._open_round()

    def _open_round(self, *, whole: bool = False) -> OpenRound:
        """Return our side of the round; after a restart, rebuild it from the update and the decoded sums."""
        space, number = self.run.open(), self.key.round
        if number not in space.rounds:
            learnt = space.recall_update(number)
            if learnt is None:
                raise StorageDamaged(update_file(space.folder, number), "is gone")
            space.group_secret.advance_to(number)
            space.rounds[number] = self._begin(space, learnt, mask=self._draw_mask(space))
        mine, data = space.rounds[number], self._find_round()
        learning = find_strategy(data.manifest.strategy).phases
        decoded = tuple(phase.name for phase in learning) if whole else data.decoded
        for phase in decoded[len(mine.absorbed) :]:
            self._absorb(data, mine, phase)
        return mine

    def _open_scores(self) -> OpenRound:
        """Return our side of a scores phase; after a restart, rebuild it from the kept scores."""
        space, manifest, number = self.run.open(), self._find_round().manifest, self.key.round
        with space.lock:
            if number not in space.scoring:
                scores = space.recall_scores(number)
                if scores is None:
                    raise StorageDamaged(scores_file(space.folder, number), "is gone")
                space.group_secret.advance_to(number)
                side = ScoreRound(manifest.score_sheet, scores, space.examples)
                coefficients = self._find_coefficients(space) if manifest.verified else None
                verified = VerifiedRound(side, (SCORES,), coefficients)
                space.scoring[number] = OpenRound(verified, None, self._begin_transcript(space), side)
            return space.scoring[number]

    # Shares ---------------------------------------------------------------------------------------------

    async def send_shares(self, job: rounds.SendShares) -> SharesSent:
        """Send every aggregator its share, or its seed."""
        await asyncio.to_thread(self.run.ledger.count, self.key.run)
        out = await asyncio.to_thread(self._make_set, job.phase)
        seed = ShareSeed(
            set_id=out.set_id, vectors=declare(out.vectors), weight=out.weight, transcript=out.transcript
        )
        for server, sealed in out.seeds.items():
            await self._publish(out, server, seed, sealed)
        await self._send_in_full(out, out.keys)
        full = count_payload(out.vectors, "up", copies=len(out.keys), encoding=out.wire.encoding)
        return SharesSent(traffic=(*full, *count_seeds(out.vectors, copies=len(out.seeds))))

    async def resend_shares(self, job: rounds.ResendShares) -> SharesResent:
        """Resend one aggregator its share; a set that was never begun is not begun for this."""
        out = await asyncio.to_thread(self._make_set_again, job.phase)
        if out is not None and job.aggregator in out.keys:
            await self._send_in_full(out, (job.aggregator,))
        return SharesResent(phase=job.phase, aggregator=job.aggregator)

    def _make_set_again(self, phase: str) -> ShareSet | None:
        """Make the same set as before; None if the phase's sums were taken in meanwhile."""
        if self.run.secrets.find_set(self.key.round, phase) is None:
            return None
        # The workspace's lock comes first, as when a round is concluded: the other order could deadlock.
        with self.run.open().lock:
            mine = self._open_phase(phase)
            with mine.lock:
                return None if phase in mine.absorbed else self._make_set(phase)

    def _make_set(self, phase: str) -> ShareSet:
        mine, seals, stage = self._open_phase(phase), self.run.seals, self._stage(phase)
        wire = plan_phase(self._find_round().manifest, phase)
        vectors, values = mine.client_round.vectors(phase), mine.client_round.contribute(phase)
        weight, transcript = mine.client_round.weight, mine.transcript_of(phase)
        content = digest_content(vectors, values, weight, transcript)
        set_id, secret = self.run.secrets.get_or_create_outbox(self.key.round, phase, content)
        in_full = (wire.full_share_holder(self.me, self.key.round),) if wire.compact else wire.servers
        keys = {
            server: seals.make_share_key(stage, server, set_id, derive_share_key(stage, secret, server))
            for server in in_full
        }
        seeds = {
            server: seals.seal_seed(stage, server, set_id, derive_seed(stage, secret, server))
            for server in wire.servers
            if server not in keys
        }
        compact = self._make_compact(phase) if wire.compact else None
        return ShareSet(wire, set_id, secret, vectors, values, weight, transcript, keys, seeds, compact)

    async def _send_in_full(self, out: ShareSet, to: Collection[PartyId]) -> None:
        """Deal, seal and publish shares to those in `to`; a chunk is made while earlier ones are on their way."""
        kind = DenseShareChunk if out.compact else ShareChunk
        stream = AesCtrStream(out.secret)
        async with overlapping() as overlap:
            for index, chunk in enumerate(out.wire.plan(out.vectors)):
                body = kind(
                    set_id=out.set_id,
                    vectors=declare(out.vectors),
                    weight=out.weight,
                    transcript=out.transcript,
                    index=index,
                )
                sealed = await asyncio.to_thread(self._seal_chunk, out, to, index, chunk, stream)
                for server, share in sealed:
                    await overlap.begin(self._publish, out, server, body, share)

    def _seal_chunk(
        self, out: ShareSet, to: Collection[PartyId], index: int, chunk: Chunk, stream: RandomStream
    ) -> list[tuple[PartyId, Parcel]]:
        """Deal one chunk, and seal and hash the shares of those in `to`."""
        if out.compact:
            only = out.compact.deal_chunk(
                index, chunk, out.vectors, out.values, me=self.me, secret=out.secret, seeded=tuple(out.seeds)
            )
            shares = [only]
        else:
            shares = deal_chunk(out.wire.phase, chunk, out.vectors, out.values, len(out.keys), stream)
        dealt = zip(out.keys.items(), shares, strict=True)
        return [(server, Parcel.of(key.seal(index, share))) for (server, key), share in dealt if server in to]

    async def _publish(
        self, out: ShareSet, server: PartyId, body: ShareChunk | ShareSeed, payload: bytes | Parcel
    ) -> None:
        # Refuses an abandoned round: its outbox is gone, so this would be another set.
        self._find_round()
        await self.run.runner.post.send(
            self.key, to=server, role=Role.AGGREGATOR, body=body, phase=out.wire.phase.name, payload=payload
        )

    def _stage(self, phase: str) -> Stage:
        return Stage(self.key.run, self.key.round, phase)

    def _make_compact(self, phase: str) -> Compact:
        """Derive this round's masks from the group secret, which never goes back to an earlier round."""
        space = self.run.open()
        with space.at_round(self.key.round):
            return Compact(self._stage(phase), space.group_secret.key_for("masks"))

    # Sums -----------------------------------------------------------------------------------------------

    def decode(self, job: rounds.DecodeSums) -> Decoded | OtherTranscript:
        """Take in the sums of a phase, unless they were released over another transcript than ours."""
        mine, data = self._open_phase(job.phase), self._find_round()
        transcript = mine.transcript_of(job.phase)
        if differs(transcript, data.sums[job.phase]):
            return OtherTranscript()
        if job.phase not in mine.absorbed:
            self._absorb(data, mine, job.phase)
        if mine.scores is None:
            return Decoded(transcript=transcript)
        totals = mine.scores.totals or {}
        self.run.open().note(self.key.round, {"metrics": totals})
        self._keep_best(data.manifest, totals)
        return Decoded(transcript=transcript, metrics=totals)

    def _keep_best(self, manifest: Manifest, totals: Mapping[str, float]) -> None:
        """Keep the round's model if no earlier one of the run has a better headline metric."""
        space, metric = self.run.open(), manifest.headline
        with space.lock:
            # The model may be a later one of a peer's by now.
            if metric is not None and space.applied == self.key.round:
                space.keep_best(
                    metric, totals[metric.name], run=self.key.run, task=manifest.task, seed=manifest.seed
                )

    def _absorb(self, data: ClientRound, mine: OpenRound, phase: str) -> None:
        """Recombine the sums of a phase and take them in."""
        one, release = next(iter(data.sums[phase].values())), self._read_sums(data, phase)
        members = [client for client in data.manifest.clients if client in one.members]
        places = tuple(map(data.manifest.clients.index, members))
        with mine.lock:
            mine.client_round.absorb(phase, replace(release, members=places), len(members))
            is_personal = plan_phase(data.manifest, phase).phase.personal
            mine.note_sums(phase, members, Release((), ()) if is_personal else release)
            mine.absorbed.append(phase)

    def _read_sums(self, data: ClientRound, phase: str) -> Release:
        wire, sums = plan_phase(data.manifest, phase), data.sums[phase]
        if wire.compact:
            return self._read_masked(data, wire)
        servers, seals, stage = wire.servers, self.run.seals, self._stage(phase)
        here = {place: server for place, server in enumerate(servers) if server in sums and sums[server].complete}
        keys = {server: seals.unwrap_sum_key(stage, server, sums[server].wrapped_key) for server in here.values()}

        def read(place: int, index: int) -> Payload:
            server = here[place]
            sealed = self.run.spool.read(place_of(self.key, phase), name_sum(server, index))
            return seals.decrypt_sum(stage, server, keys[server], index, sealed)

        vectors = next(iter(sums.values())).vectors
        return Release(vectors, tuple(recombine_chunks(wire.phase, wire.plan(vectors), vectors, here, read)))

    def _read_masked(self, data: ClientRound, wire: PhasePlan) -> Release:
        phase, combiner = wire.phase.name, wire.combiner(self.key.round)
        one = data.sums[phase][combiner]
        members = [client for client in data.manifest.clients if client in one.members]

        def read(index: int) -> bytes:
            return self.run.spool.read(place_of(self.key, phase), name_sum(combiner, index))

        values, possible = self._make_compact(phase).decode_chunks(
            wire.plan(one.vectors), one.vectors, members, read
        )
        return Release(one.vectors, tuple(values), possible)

    # The end of a round ---------------------------------------------------------------------------------

    def conclude(self, job: rounds.Conclude) -> Concluded:
        """Apply the sums to the model."""
        space, number = self.run.open(), self.key.round
        with space.at_round(number):
            if space.applied < number:
                mine = self._open_round(whole=True)
                conclusion = mine.client_round.conclude(took_part=job.took_part)
                manifest = self.run.manifest
                # The transcript of the whole round covers the one that it began with, the members and the sums.
                sums = mine.transcript.digest("sums") if find_strategy(manifest.strategy).own_models else ""
                space.conclude(number, conclusion, mine.memory, manifest.server_momentum, sums)
            return Concluded(model_hmac=space.model_hmac(), held=self.run.describe_held(number))

    def close_void(self, _: rounds.CloseVoid) -> Closed:
        """Describe the model after a void round, which leaves it as it is."""
        space, number = self.run.open(), self.key.round
        with space.at_round(number):
            return Closed(model_hmac=space.model_hmac(), held=self.run.describe_held(number))

    async def evaluate(self, _: rounds.Evaluate) -> Evaluated:
        """Score the model on our data."""
        async with self.run.tasks.slots:
            return await asyncio.to_thread(self._evaluate)

    def _evaluate(self) -> Evaluated:
        """Score the model; after a restart only if that had not finished."""
        space, sheet, number = self.run.open(), self._find_round().manifest.score_sheet, self.key.round
        with space.at_round(number):
            scores, began_s = space.recall_scores(number), time.monotonic()
            if scores is None:
                scores = self.run.tasks.evaluate(self.key, space)
                space.keep_scores(number, scores)
            own = sheet.decode_one(scores)
            space.note(number, {"own_metrics": own})
            return Evaluated(own=own, evaluation_s=time.monotonic() - began_s)

    def close(self, *, has_verdict: bool) -> None:
        """Delete the data of a round that is over or was abandoned."""
        run, number = self.run, self.key.round
        run.spool.drop_round(self.key)
        if run.space is not None:
            run.space.rounds.pop(number, None)
            run.space.scoring.pop(number, None)
        drop_update(run.folder, number)
        scores_file(run.folder, number).unlink(missing_ok=True)
        phases = (phase.name for phase in phases_of(run.manifest))
        with run.space.lock if run.space else nullcontext(), run.secrets.together():
            if has_verdict:
                # Void or not, nobody derives its keys again. A failed round has no verdict, and another round may
                # be open.
                run.step_group(number + 1)
            run.secrets.drop_outboxes(number, phases, has_verdict=has_verdict)
