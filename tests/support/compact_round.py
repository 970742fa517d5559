"""The aggregators' side of a round on the compact wire, for real trainers: what was dealt, and one masked sum.

Clients made by hand have digits of zero as input, so that what they add to a masked sum is their mask.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from hubbub.ids import PartyId, Role
from hubbub.messages.rounds import MaskedChunk, ReleaseClaim, RoundApplied
from hubbub.messages.shares import DenseShareChunk, ShareSeed, declare
from hubbub.protocol.layout import Vector
from hubbub.protocol.ring import RandomStream
from hubbub.strategies.phase_plan import PhasePlan, plan_phase
from hubbub.strategies.registry import find_strategy
from hubbub.trust.seals import SealContext, mask_stream, share_stream
from hubbub.trust.signed import sign_release
from support import compact_words
from support.compact_words import Parts
from support.parties import identity_of
from support.sealed_shares import open_share
from support.stand_in import StandIn
from support.trainer_scene import Scene

Body = TypeVar("Body", DenseShareChunk, ShareSeed)
Change = Callable[[MaskedChunk], MaskedChunk]
Sent = tuple[str, str, bytes]
"""A set's id, its transcript, and what was sealed."""


def wire(scene: Scene, phase: str) -> PhasePlan:
    return plan_phase(scene.manifest, phase)


def combiner(scene: Scene, number: int, phase: str) -> StandIn:
    return scene.parties[wire(scene, phase).combiner(number)]


# What was dealt -------------------------------------------------------------------------------------------


def sent_sets(scene: Scene, client: PartyId) -> dict[tuple[PartyId, int, str, str, int], list[Sent]]:
    """Everything of a client's sets that aggregators have so far, opened: each copy of each seed and chunk."""
    found: dict[tuple[PartyId, int, str, str, int], list[Sent]] = {}
    for aggregator in scene.aggregators:
        for envelope in aggregator.heard:
            body, seals = envelope.body, scene.peers.seals[aggregator.name]
            stage = scene.stage(envelope.round, envelope.phase)
            if envelope.sender != client or not isinstance(body, DenseShareChunk | ShareSeed):
                continue
            if isinstance(body, ShareSeed):
                index, inside = 0, seals.open_seed(stage, client, body.set_id, envelope.payload)
            else:
                index = body.index
                inside = open_share(seals, stage, client, body.set_id, index, envelope.payload)
            place = (aggregator.name, envelope.round, envelope.phase, body.kind, index)
            found.setdefault(place, []).append((body.set_id, body.transcript, inside))
    return found


async def hear_set(
    scene: Scene, client: PartyId, number: int, phase: str
) -> tuple[tuple[Vector, ...], str, dict[PartyId, Parts]]:
    """Wait for a client's whole set; its vectors, its transcript, and each aggregator's share of it."""
    way = wire(scene, phase)
    holder = way.full_share_holder(client, number)
    body = await _hear_first(scene, scene.parties[holder], DenseShareChunk, client, number, phase)
    vectors = tuple(claim.vector for claim in body.vectors)
    for server in way.servers:
        if server != holder:
            await _hear_first(scene, scene.parties[server], ShareSeed, client, number, phase)
    plan = way.plan(vectors)
    for index in range(len(plan)):
        await _hear_first(scene, scene.parties[holder], DenseShareChunk, client, number, phase, index)
    sent = sent_sets(scene, client)
    shares = {
        server: _expand(
            scene, client, server, number, phase, vectors, sent[server, number, phase, "share-seed", 0]
        )
        for server in way.servers
        if server != holder
    }
    shares[holder] = compact_words.unpack(
        plan, vectors, lambda index: sent[holder, number, phase, "dense-share-chunk", index][0][2]
    )
    return vectors, body.transcript, shares


async def _hear_first(
    scene: Scene,
    party: StandIn,
    kind: type[Body],
    client: PartyId,
    number: int,
    phase: str,
    index: int | None = None,
) -> Body:
    count = 1
    while True:
        heard = await party.hear(kind, count, round_number=number)
        for envelope, body in heard:
            right = (envelope.run, envelope.sender, envelope.phase) == (scene.manifest.run_id, client, phase)
            if right and index in {None, getattr(body, "index", None)}:
                return body
        count = len(heard) + 1


def _expand(
    scene: Scene,
    client: PartyId,
    server: PartyId,
    number: int,
    phase: str,
    vectors: Sequence[Vector],
    copies: Sequence[Sent],
) -> Parts:
    ((_, _, seed), *_) = copies
    stage = scene.stage(number, phase)
    return _whole(scene, phase, vectors, partial(share_stream, stage, seed, client, server))


def mask_of(scene: Scene, client: PartyId, number: int, phase: str, vectors: Sequence[Vector]) -> Parts:
    """What a client's input is masked with, by the group secret as everybody has it."""
    group = scene.peers.agree()
    group.advance_to(number)
    stage = scene.stage(number, phase)
    return _whole(scene, phase, vectors, partial(mask_stream, stage, group.key_for("masks"), client))


def _whole(
    scene: Scene, phase: str, vectors: Sequence[Vector], stream: Callable[[SealContext], RandomStream]
) -> Parts:
    return compact_words.expand(wire(scene, phase).plan(vectors), vectors, stream)


# The masked sum -------------------------------------------------------------------------------------------


async def masked_chunks(
    scene: Scene, number: int, phase: str, members: Sequence[PartyId]
) -> list[tuple[MaskedChunk, bytes]]:
    """What a combiner sends over these members, with every aggregator's signature."""
    sets = [await hear_set(scene, client, number, phase) for client in scene.real if client in members]
    vectors, transcript, _ = sets[0]
    parts = [share for _, _, shares in sets for share in shares.values()]
    parts += [mask_of(scene, client, number, phase, vectors) for client in members if client not in scene.real]
    total = compact_words.add(vectors, parts)
    way = wire(scene, phase)
    signatures = tuple(sign(scene, server, number, phase, members, vectors, transcript) for server in way.servers)
    return [
        (
            MaskedChunk(
                members=tuple(members),
                vectors=declare(vectors),
                transcript=transcript,
                signatures=signatures,
                index=index,
            ),
            compact_words.pack(chunk, vectors, total),
        )
        for index, chunk in enumerate(way.plan(vectors))
    ]


def sign(
    scene: Scene,
    server: PartyId,
    number: int,
    phase: str,
    members: Sequence[PartyId],
    vectors: tuple[Vector, ...],
    transcript: str,
) -> str:
    release = ReleaseClaim(
        aggregator=server, members=tuple(members), vectors=declare(vectors), transcript=transcript
    )
    return sign_release(identity_of(scene.manifest, server), scene.manifest.run_id, number, phase, release)


async def release(
    scene: Scene, number: int, phase: str, members: Sequence[PartyId], *, chunks: slice = slice(None)
) -> None:
    """The combiner sends some chunks of the masked sum, or all, to every real client."""
    found = await masked_chunks(scene, number, phase, members)
    for client in scene.real:
        for body, payload in found[chunks]:
            await combiner(scene, number, phase).say(
                body,
                to=client,
                role=Role.CLIENT,
                run=scene.manifest.run_id,
                round_number=number,
                phase=phase,
                payload=payload,
            )


async def play_round(scene: Scene, number: int, members: Sequence[PartyId]) -> None:
    """All phases of a round."""
    await scene.open_round(number)
    for phase in find_strategy(scene.manifest.strategy).phases:
        await release(scene, number, phase.name, members)
    await scene.hear(scene.coordinator, RoundApplied, number=number)
