"""A real aggregator of three on the compact wire; the other two, and everybody else, are made by hand.

What they deal and add is computed whole vector by whole vector: of the code under test only the streams and the
packing are used, which have test vectors of their own.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

from hubbub.crypto.stream import AesCtrStream
from hubbub.ids import PartyId, Role, SetId
from hubbub.messages.manifest import Manifest
from hubbub.messages.rounds import ClosePhase, MaskedChunk, PartialChunk, PhaseReleased, ReleaseClaim
from hubbub.messages.shares import DenseShareChunk, ShareChunk, ShareSeed, SignedReceipt, declare
from hubbub.protocol.layout import DENSE, Chunk, plan_chunks
from hubbub.transport.memory import MemoryBroker
from hubbub.trust.seals import Stage, share_stream
from hubbub.trust.signed import check_release, sign_release
from support import compact_words
from support.aggregator_scene import Scene
from support.builders import (
    TRANSCRIPT,
    aggregator_names,
    client_names,
    make_manifest,
    make_receipt,
    make_vectors,
)
from support.compact_words import Parts, Words
from support.parties import identity_of, roster_of, sign_receipts
from support.sealed_shares import seal_share
from support.stand_in import StandIn, stand_in

CLIENTS = client_names(3)
ME, SECOND, THIRD = aggregator_names(3)
PHASE = "signs"


@cache
def manifest_where(*, combines: bool) -> Manifest:
    """Whoever comes second combines the first round's sums."""
    order = (SECOND, ME, THIRD) if combines else (ME, SECOND, THIRD)
    # 1,003 signs of 2.8 bits, a factor and tags: two chunks of at most 256 bytes.
    return make_manifest(
        clients=3,
        servers=3,
        min_clients=2,
        parameters=1_003,
        chunk_bytes=256,
        aggregators=order,
        wire="compact",
    )


VECTORS = make_vectors(manifest_where(combines=True))
PLAN = plan_chunks(VECTORS, 256, DENSE)


def cut(words: Sequence[Words], chunk: Chunk) -> bytes:
    return compact_words.pack(chunk, VECTORS, words)


def add(parts: Sequence[Sequence[Words]]) -> Parts:
    """Add whole vectors."""
    return compact_words.add(VECTORS, parts)


@dataclass(frozen=True)
class Deal:
    """One client's set in one round: what it adds up to, and each aggregator's part of it."""

    manifest: Manifest
    client: PartyId
    number: int

    @property
    def set_id(self) -> SetId:
        return SetId(self._draw("set")[:16].hex())

    @property
    def values(self) -> Parts:
        """What all shares add up to: an input under its mask, which may be anything."""
        return compact_words.expand(PLAN, VECTORS, lambda place: AesCtrStream(self._draw(f"values at {place}")))

    @property
    def holder(self) -> PartyId:
        """Who is sent the share in full."""
        servers = self.manifest.aggregators
        return servers[(self.manifest.clients.index(self.client) + self.number) % len(servers)]

    def seed(self, server: PartyId) -> bytes:
        return self._draw(f"seed {server}")

    def share(self, server: PartyId) -> Parts:
        if server != self.holder:
            return self._expand(server)
        rest = add([self._expand(each) for each in self.manifest.aggregators if each != server])
        return compact_words.subtract(VECTORS, self.values, rest)

    def _expand(self, server: PartyId) -> Parts:
        stage = Stage(self.manifest.run_id, self.number, PHASE)
        stream = partial(share_stream, stage, self.seed(server), self.client, server)
        return compact_words.expand(PLAN, VECTORS, stream)

    def _draw(self, what: str) -> bytes:
        return hashlib.sha256(f"{what} of {self.client} in {self.number}".encode()).digest()


class CompactScene(Scene):
    """The other aggregators are `others`."""

    others: dict[PartyId, StandIn]

    @property
    def combiner(self) -> PartyId:
        """Of the first round."""
        return self.combiner_of(1)

    def combiner_of(self, number: int) -> PartyId:
        return self.manifest.aggregators[number % 3]

    def deal(self, client: PartyId, number: int = 1) -> Deal:
        return Deal(self.manifest, client, number)

    def stage(self, number: int = 1) -> Stage:
        return Stage(self.run, number, PHASE)

    # What clients send ------------------------------------------------------------------------------------

    def owes_all(self, number: int = 1) -> PartyId:
        """The client that owes the aggregator under test its full share."""
        return next(client for client in CLIENTS if self.deal(client, number).holder == ME)

    def owes_seed(self, number: int = 1) -> PartyId:
        """One that owes a seed."""
        return next(client for client in CLIENTS if self.deal(client, number).holder != ME)

    async def send_seed(self, client: PartyId, number: int = 1, *, payload: bytes | None = None) -> None:
        deal, seals = self.deal(client, number), self.seals[self.run][client]
        sealed = seals.seal_seed(self.stage(number), ME, deal.set_id, deal.seed(ME))
        body = ShareSeed(set_id=deal.set_id, vectors=declare(VECTORS), transcript=TRANSCRIPT)
        await self.send(client, body, sealed if payload is None else payload, number)

    async def send_full(
        self,
        client: PartyId,
        index: int,
        number: int = 1,
        *,
        kind: type[DenseShareChunk] = DenseShareChunk,
        share: bytes | None = None,
    ) -> None:
        deal, seals = self.deal(client, number), self.seals[self.run][client]
        packed = cut(deal.share(ME), PLAN[index]) if share is None else share
        sealed = seal_share(seals, self.stage(number), ME, deal.set_id, index, packed)
        body = kind(set_id=deal.set_id, vectors=declare(VECTORS), transcript=TRANSCRIPT, index=index)
        await self.send(client, body, sealed, number)

    async def send(
        self, sender: PartyId, body: ShareChunk | ShareSeed | PartialChunk, payload: bytes, number: int = 1
    ) -> None:
        """Any party sends something of the phase."""
        party = {**self.clients, **self.others, self.coordinator.name: self.coordinator}[sender]
        await party.say(
            body, to=ME, role=Role.AGGREGATOR, run=self.run, round_number=number, phase=PHASE, payload=payload
        )

    async def deal_all(self, number: int = 1, clients: Sequence[PartyId] = CLIENTS) -> None:
        """Everybody's whole set, and the receipts for it."""
        for client in clients:
            if self.deal(client, number).holder != ME:
                await self.send_seed(client, number)
                continue
            for index in reversed(range(len(PLAN))):
                await self.send_full(client, index, number)
        await self.hear_receipts(number, tuple(clients))

    def show_receipts(self, number: int, members: Sequence[PartyId]) -> tuple[SignedReceipt, ...]:
        sets = {each: self.deal(each, number).set_id for each in members}
        receipts = [make_receipt(self.manifest, aggregator=each, sets=sets) for each in self.manifest.aggregators]
        return sign_receipts(self.manifest, receipts, round_number=number)

    async def order_close(self, number: int = 1, members: Sequence[PartyId] = CLIENTS) -> None:
        body = ClosePhase(members=tuple(members), receipts=self.show_receipts(number, members))
        await self.command(body, round_number=number, phase=PHASE)

    # What aggregators send --------------------------------------------------------------------------------

    def partial(self, server: PartyId, number: int = 1, members: Sequence[PartyId] = CLIENTS) -> Parts:
        """An aggregator's sum, added here."""
        return add([self.deal(member, number).share(server) for member in members])

    def claim(self, server: PartyId, members: Sequence[PartyId] = CLIENTS) -> ReleaseClaim:
        return ReleaseClaim(
            aggregator=server, members=tuple(members), vectors=declare(VECTORS), transcript=TRANSCRIPT
        )

    def make_partial(
        self,
        server: PartyId,
        index: int,
        number: int = 1,
        *,
        members: Sequence[PartyId] = CLIENTS,
        signature: str | None = None,
    ) -> PartialChunk:
        """A chunk's message, with the release that its aggregator signs."""
        release = self.claim(server, members)
        signed = sign_release(identity_of(self.manifest, server), self.run, number, PHASE, release)
        return PartialChunk(
            members=release.members,
            vectors=release.vectors,
            transcript=release.transcript,
            signature=signature or signed,
            index=index,
        )

    def seal_partial(self, server: PartyId, index: int, packed: bytes, number: int = 1) -> bytes:
        return self.seals[self.run][server].seal_partial(self.stage(number), ME, index, packed)

    async def send_partial(
        self,
        server: PartyId,
        index: int,
        number: int = 1,
        *,
        members: Sequence[PartyId] = CLIENTS,
        packed: bytes | None = None,
    ) -> None:
        content = cut(self.partial(server, number, members), PLAN[index]) if packed is None else packed
        body = self.make_partial(server, index, number, members=members)
        await self.send(server, body, self.seal_partial(server, index, content, number), number)

    async def send_partials(self, number: int = 1, members: Sequence[PartyId] = CLIENTS) -> None:
        """Both other aggregators' sums."""
        for server in self.others:
            for index in reversed(range(len(PLAN))):
                await self.send_partial(server, index, number, members=members)

    # What comes out ---------------------------------------------------------------------------------------

    async def check_partials(self, number: int = 1, members: Sequence[PartyId] = CLIENTS) -> None:
        """The combiner, and nobody else, gets our sum over the members; sent again, it is the same."""
        combiner = self.combiner_of(number)
        expected = self.partial(ME, number, members)
        opened: dict[int, bytes] = {}
        heard = 0
        while opened.keys() != set(range(len(PLAN))):
            chunks = await self.others[combiner].hear(PartialChunk, heard + 1, round_number=number)
            heard = len(chunks)
            for envelope, body in chunks:
                assert body == self.make_partial(ME, body.index, number, members=members)
                packed = self.seals[self.run][combiner].open_partial(
                    self.stage(number), ME, body.index, envelope.payload
                )
                assert packed == cut(expected, PLAN[body.index])
                opened[body.index] = packed
        everybody = [*self.clients.values(), *(each for name, each in self.others.items() if name != combiner)]
        assert not [
            each
            for party in everybody
            for each in party.heard
            if isinstance(each.body, PartialChunk | MaskedChunk) and each.round == number
        ]

    async def check_masked(self, number: int = 1, members: Sequence[PartyId] = CLIENTS) -> None:
        """Every client gets what all shares of the members add up to, with everybody's word for it."""
        expected = add([self.deal(member, number).values for member in members])
        for client in CLIENTS:
            chunks = await self.hear_masked(client, number)
            for index, chunk in enumerate(PLAN):
                body, payload = chunks[index]
                self._check_claims(body, number, members)
                assert payload == cut(expected, chunk)
        assert not [
            each
            for party in self.others.values()
            for each in party.heard
            if isinstance(each.body, PartialChunk) and each.round == number
        ]

    def _check_claims(self, body: MaskedChunk, number: int, members: Sequence[PartyId]) -> None:
        assert body.members == tuple(members)
        for server, signature in zip(self.manifest.aggregators, body.signatures, strict=True):
            release = self.claim(server, members)
            check_release(roster_of(self.manifest), self.run, number, PHASE, release, signature)

    async def hear_masked(self, client: PartyId, number: int) -> dict[int, tuple[MaskedChunk, bytes]]:
        """The chunks that a client is sent; one that comes again is the same to the bit."""
        found: dict[int, tuple[MaskedChunk, bytes]] = {}
        heard = 0
        while len(found) < len(PLAN):
            chunks = await self.clients[client].hear(MaskedChunk, heard + 1, round_number=number)
            heard = len(chunks)
            for envelope, body in chunks:
                assert found.setdefault(body.index, (body, envelope.payload)) == (body, envelope.payload)
        return found

    async def check_release(self, number: int = 1, members: Sequence[PartyId] = CLIENTS) -> None:
        """What this aggregator owes in a round, whether it combines in it or not."""
        check = self.check_masked if self.combiner_of(number) == ME else self.check_partials
        await check(number, members)
        await self.coordinator.hear(PhaseReleased, round_number=number)

    async def play_round(self, number: int = 1, members: Sequence[PartyId] = CLIENTS) -> None:
        await self.deal_all(number, members)
        await self.order_close(number, members)
        if self.combiner_of(number) == ME:
            await self.send_partials(number, members)
        await self.check_release(number, members)


@asynccontextmanager
async def compact_scene(folder: Path, *, combines: bool) -> AsyncIterator[CompactScene]:
    """Everybody but the aggregator, which combines the first round's sums or does not."""
    broker, manifest = MemoryBroker(), manifest_where(combines=combines)
    async with AsyncExitStack() as stack:

        async def enter(name: PartyId, role: Role) -> StandIn:
            return await stack.enter_async_context(stand_in(broker, name, role))

        coordinator = await enter(manifest.coordinator, Role.COORDINATOR)
        clients = {name: await enter(name, Role.CLIENT) for name in CLIENTS}
        scene = CompactScene(broker, coordinator, clients, folder, manifest)
        scene.others = {name: await enter(name, Role.AGGREGATOR) for name in (SECOND, THIRD)}
        yield scene


@asynccontextmanager
async def running_compact(folder: Path, *, combines: bool) -> AsyncIterator[CompactScene]:
    async with compact_scene(folder, combines=combines) as scene, scene.start():
        await scene.join()
        yield scene
