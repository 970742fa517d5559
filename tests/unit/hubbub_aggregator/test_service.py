"""A real aggregator among parties made by hand: whatever they send, it goes on and adds rightly."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from hubbub.crypto.stream import AesCtrStream
from hubbub.errors import RejectReason
from hubbub.ids import PartyId, Role, RunId, SetId
from hubbub.messages.codec import encode
from hubbub.messages.manifest import Manifest
from hubbub.messages.rounds import ClosePhase, OrderRefused, PhaseReleased, PhaseVoided, VoidPhase
from hubbub.messages.runs import RunEnded, RunJoined, RunProposed, RunRefused
from hubbub.messages.shares import Receipt, SetReceived, SetRefused, ShareChunk, VectorClaim, declare
from hubbub.messages.sums import SumChunk, VoidNotice
from hubbub.protocol import ring
from hubbub.protocol.layout import Vector, pack_chunk, plan_chunks, unpack_chunk
from hubbub.protocol.ring import Residues
from hubbub.transport.memory import MemoryBroker, MemoryTransport
from hubbub.transport.topology import dead_letter_queue, topology_for
from hubbub_aggregator.service import Aggregator
from support.aio import aio
from support.builders import make_envelope, make_manifest, make_vectors
from support.stand_in import StandIn, stand_in

# 1,003 signs of 3 bits and a factor: two chunks of at most 256 bytes.
MANIFEST = make_manifest(clients=3, servers=2, min_clients=2, parameters=1_003, chunk_bytes=256)
ME, OTHER = MANIFEST.aggregators
VECTORS = make_vectors(MANIFEST)
PLAN = plan_chunks(VECTORS, MANIFEST.chunk_bytes)
CLIENTS = MANIFEST.clients


@dataclass(frozen=True, slots=True)
class ShareSet:
    """What one client sends to this aggregator in a round."""

    set_id: SetId
    values: tuple[Residues, ...]

    def payload(self, index: int) -> bytes:
        return pack_chunk(
            PLAN[index], VECTORS, [self.values[piece.vector][piece.elements] for piece in PLAN[index]]
        )


def make_set(client: PartyId, round_number: int) -> ShareSet:
    number = 10 * round_number + CLIENTS.index(client)
    stream = AesCtrStream(number.to_bytes(32, "big"))
    values = tuple(ring.sample(stream, vector.length, vector.modulus) for vector in VECTORS)
    return ShareSet(SetId(f"{number:032x}"), values)


def add_up(round_number: int, members: tuple[PartyId, ...], position: int) -> NDArray[np.uint64]:
    """The sum of one vector, without any of the code under test."""
    total = np.zeros(VECTORS[position].length, dtype=np.uint64)
    for member in members:
        total += make_set(member, round_number).values[position]
    return total % np.uint64(VECTORS[position].modulus)


class Scene:
    """A broker, the aggregator under test and everybody else."""

    def __init__(
        self, broker: MemoryBroker, coordinator: StandIn, clients: dict[PartyId, StandIn], *, manifest: Manifest
    ) -> None:
        self.broker = broker
        self.coordinator = coordinator
        self.clients = clients
        self.run = manifest.run_id
        self.aggregator: Aggregator

    @property
    def client(self) -> StandIn:
        return self.clients[CLIENTS[0]]

    def dead(self) -> list[str]:
        return [letter.reason for letter in self.broker.dead_letters(dead_letter_queue(ME))]

    def late(self, kind: str) -> float:
        registry = self.aggregator.counters.registry
        return registry.get_sample_value("hubbub_messages_late_total", {"kind": kind}) or 0.0

    @asynccontextmanager
    async def start(self, folder: Path) -> AsyncIterator[Aggregator]:
        async with MemoryTransport(self.broker, topology_for(ME, Role.AGGREGATOR)) as transport:
            self.aggregator = Aggregator(name=ME, transport=transport, folder=folder)
            await self.aggregator.runner.start()
            try:
                yield self.aggregator
            finally:
                await self.aggregator.runner.stop()
                self.aggregator.close()

    async def propose(self, manifest: Manifest = MANIFEST) -> None:
        before = len([each for each in self.coordinator.heard if isinstance(each.body, RunJoined)])
        await self.coordinator.say(
            RunProposed(manifest=manifest), to=ME, role=Role.AGGREGATOR, run=manifest.run_id
        )
        await self.coordinator.hear(RunJoined, before + 1)

    async def send_chunk(
        self,
        client: PartyId,
        index: int,
        *,
        round_number: int = 1,
        phase: str = "signs",
        payload: bytes | None = None,
        set_id: SetId | None = None,
        vectors: tuple[VectorClaim, ...] | None = None,
        run: RunId | None = None,
        recipient: PartyId | None = None,
        sender: PartyId | None = None,
        claimed_index: int | None = None,
    ) -> None:
        share_set = make_set(client, round_number)
        body = ShareChunk(
            set_id=set_id or share_set.set_id,
            vectors=vectors or declare(VECTORS),
            index=index if claimed_index is None else claimed_index,
        )
        await self.clients[client].say(
            body,
            to=ME,
            role=Role.AGGREGATOR,
            run=run or self.run,
            round_number=round_number,
            phase=phase,
            payload=share_set.payload(index) if payload is None else payload,
            recipient=recipient,
            sender=sender,
        )

    async def send_sets(self, round_number: int, clients: tuple[PartyId, ...] = CLIENTS) -> None:
        for client in clients:
            for index in reversed(range(len(PLAN))):
                await self.send_chunk(client, index, round_number=round_number)
        await self.coordinator.hear(SetReceived, len(clients), round_number=round_number)

    async def order(self, body: ClosePhase | VoidPhase, round_number: int) -> None:
        await self.coordinator.say(
            body, to=ME, role=Role.AGGREGATOR, run=self.run, round_number=round_number, phase="signs"
        )

    async def close(self, round_number: int, members: tuple[PartyId, ...] = CLIENTS) -> None:
        receipts = tuple(
            Receipt(
                aggregator=server,
                client=member,
                set_id=make_set(member, round_number).set_id,
                vectors=declare(VECTORS),
            )
            for member in members
            for server in (ME, OTHER)
        )
        await self.order(ClosePhase(members=members, receipts=receipts), round_number)

    async def check_sum(self, round_number: int, members: tuple[PartyId, ...] = CLIENTS) -> None:
        """Every client gets the sum over the members, whoever it is."""
        expected = [add_up(round_number, members, position) for position in range(len(VECTORS))]
        for client in self.clients.values():
            chunks = await client.hear(SumChunk, len(PLAN), round_number=round_number)
            assert len(chunks) == len(PLAN)
            for envelope, body in chunks:
                assert body.members == members
                for piece, values in unpack_chunk(PLAN[body.index], VECTORS, envelope.payload):
                    assert (values == expected[piece.vector][piece.elements]).all()

    async def play_good_round(self, round_number: int) -> None:
        await self.send_sets(round_number)
        await self.close(round_number)
        await self.check_sum(round_number)
        await self.coordinator.hear(PhaseReleased, round_number=round_number)


@asynccontextmanager
async def scene_of() -> AsyncIterator[Scene]:
    """Everybody but the aggregator."""
    broker = MemoryBroker()
    async with AsyncExitStack() as stack:
        coordinator = await stack.enter_async_context(stand_in(broker, MANIFEST.coordinator, Role.COORDINATOR))
        clients = {name: await stack.enter_async_context(stand_in(broker, name, Role.CLIENT)) for name in CLIENTS}
        yield Scene(broker, coordinator, clients, manifest=MANIFEST)


@asynccontextmanager
async def running_scene(folder: Path) -> AsyncIterator[Scene]:
    async with scene_of() as scene, scene.start(folder):
        await scene.propose()
        yield scene


def test_the_sets_of_these_tests_have_several_chunks() -> None:
    assert len(PLAN) == 2


@aio
async def test_rounds_one_after_the_other_give_the_right_sums(tmp_path: Path) -> None:
    async with running_scene(tmp_path) as scene:
        for round_number in (1, 2, 3):
            await scene.play_good_round(round_number)
        assert scene.dead() == []
        assert not list((tmp_path / "spool").rglob("*.chunk")), "shares do not stay on disk"


# What ends among the dead letters -----------------------------------------------------------------------

Misdeed = Callable[[Scene], Awaitable[None]]


async def a_short_share(scene: Scene) -> None:
    await scene.send_chunk(CLIENTS[0], 0, payload=make_set(CLIENTS[0], 1).payload(0)[:-1])


async def a_long_share(scene: Scene) -> None:
    await scene.send_chunk(CLIENTS[0], 1, payload=make_set(CLIENTS[0], 1).payload(1) + b"\0")


async def another_n(scene: Scene) -> None:
    signs, factors = declare(VECTORS)
    await scene.send_chunk(CLIENTS[0], 0, vectors=(signs.model_copy(update={"length": 1_004}), factors))


async def another_m(scene: Scene) -> None:
    signs, factors = declare(VECTORS)
    await scene.send_chunk(CLIENTS[0], 0, vectors=(signs.model_copy(update={"modulus": 8}), factors))


async def a_vector_too_few(scene: Scene) -> None:
    await scene.send_chunk(CLIENTS[0], 0, vectors=declare(VECTORS)[:1])


async def a_chunk_that_does_not_exist(scene: Scene) -> None:
    await scene.send_chunk(CLIENTS[0], 0, claimed_index=len(PLAN))


async def an_unknown_run(scene: Scene) -> None:
    await scene.send_chunk(CLIENTS[0], 0, run=make_manifest(seed=8).run_id)


async def a_future_round(scene: Scene) -> None:
    await scene.send_chunk(CLIENTS[0], 0, round_number=2)


async def an_order_for_a_future_round(scene: Scene) -> None:
    await scene.close(2)


async def an_unknown_phase(scene: Scene) -> None:
    await scene.send_chunk(CLIENTS[0], 0, phase="union")


async def a_share_of_a_stranger(scene: Scene) -> None:
    await scene.send_chunk(CLIENTS[0], 0, sender=PartyId("mallory"))


async def a_share_of_the_coordinator(scene: Scene) -> None:
    await scene.send_chunk(CLIENTS[0], 0, sender=MANIFEST.coordinator)


async def an_order_of_a_client(scene: Scene) -> None:
    body = VoidPhase(reason="because I say so")
    await scene.client.say(body, to=ME, role=Role.AGGREGATOR, run=scene.run, round_number=1, phase="signs")


async def a_message_for_somebody_else(scene: Scene) -> None:
    await scene.send_chunk(CLIENTS[0], 0, recipient=OTHER)


async def a_message_that_no_aggregator_takes(scene: Scene) -> None:
    body = SumChunk(members=CLIENTS, vectors=declare(VECTORS), index=0)
    await scene.client.say(
        body, to=ME, role=Role.AGGREGATOR, run=scene.run, round_number=1, phase="signs", sender=OTHER
    )


async def a_second_set(scene: Scene) -> None:
    await scene.send_chunk(CLIENTS[0], 0)
    await scene.send_chunk(CLIENTS[0], 1, set_id=SetId("f" * 32))


async def poison(scene: Scene) -> None:
    await scene.client.shout(b"\xde\xad\xbe\xef" * 50, to=ME, role=Role.AGGREGATOR)


async def a_truncated_frame(scene: Scene) -> None:
    await scene.client.shout(good_frame()[:-1], to=ME, role=Role.AGGREGATOR)


async def trailing_bytes(scene: Scene) -> None:
    await scene.client.shout(good_frame() + b"!", to=ME, role=Role.AGGREGATOR)


async def a_version_of_the_future(scene: Scene) -> None:
    frame = bytearray(good_frame())
    frame[4:6] = (99).to_bytes(2, "big")
    await scene.client.shout(bytes(frame), to=ME, role=Role.AGGREGATOR)


async def a_manifest_of_another_run(scene: Scene) -> None:
    body = RunProposed(manifest=make_manifest(seed=9))
    await scene.coordinator.say(body, to=ME, role=Role.AGGREGATOR, run=make_manifest(seed=8).run_id)


def good_frame() -> bytes:
    share_set = make_set(CLIENTS[0], 1)
    body = ShareChunk(set_id=share_set.set_id, vectors=declare(VECTORS), index=0)
    return encode(
        make_envelope(
            body, sender=CLIENTS[0], recipient=ME, manifest=MANIFEST, phase="signs", payload=share_set.payload(0)
        )
    )


@pytest.mark.parametrize(
    ("misdeed", "reason"),
    [
        (a_short_share, RejectReason.WRONG_LENGTH),
        (a_long_share, RejectReason.WRONG_LENGTH),
        (another_n, RejectReason.WRONG_LENGTH),
        (another_m, RejectReason.WRONG_RING),
        (a_vector_too_few, RejectReason.WRONG_LENGTH),
        (a_chunk_that_does_not_exist, RejectReason.WRONG_LENGTH),
        (an_unknown_run, RejectReason.UNKNOWN_RUN),
        (a_future_round, RejectReason.TOO_EARLY),
        (an_order_for_a_future_round, RejectReason.TOO_EARLY),
        (an_unknown_phase, RejectReason.UNKNOWN_PHASE),
        (a_share_of_a_stranger, RejectReason.WRONG_SENDER),
        (a_share_of_the_coordinator, RejectReason.WRONG_SENDER),
        (an_order_of_a_client, RejectReason.WRONG_SENDER),
        (a_message_for_somebody_else, RejectReason.WRONG_RECIPIENT),
        (a_message_that_no_aggregator_takes, RejectReason.WRONG_RECIPIENT),
        (a_second_set, RejectReason.SECOND_SET),
        (poison, RejectReason.MALFORMED),
        (a_truncated_frame, RejectReason.MALFORMED),
        (trailing_bytes, RejectReason.MALFORMED),
        (a_version_of_the_future, RejectReason.UNKNOWN_VERSION),
        (a_manifest_of_another_run, RejectReason.CONTRADICTION),
    ],
)
@aio
async def test_a_bad_message_is_put_aside_and_the_round_completes(
    tmp_path: Path, misdeed: Misdeed, reason: RejectReason
) -> None:
    async with running_scene(tmp_path) as scene:
        await misdeed(scene)
        await scene.play_good_round(1)
        assert scene.dead() == [reason.value]
        assert scene.aggregator.counters.rejections(reason) == 1
        await scene.play_good_round(2)
        assert len(scene.dead()) == 1


# What is counted and changes nothing --------------------------------------------------------------------


@aio
async def test_a_value_outside_its_ring_spoils_the_set_of_its_sender_only(tmp_path: Path) -> None:
    async with running_scene(tmp_path) as scene:
        bad, *good = CLIENTS
        # Every 3 bits are 7, which Z_7 does not have; both chunks are broken, and one is enough.
        for index in range(len(PLAN)):
            payload = b"\xff" * len(make_set(bad, 1).payload(index))
            await scene.send_chunk(bad, index, payload=payload)
        ((_, refusal),) = await scene.coordinator.hear(SetRefused)
        assert (refusal.client, refusal.reason) == (bad, RejectReason.RESIDUE_OUT_OF_RANGE)
        assert scene.aggregator.counters.rejections(RejectReason.RESIDUE_OUT_OF_RANGE) >= 1
        await scene.send_sets(1, tuple(good))
        await scene.close(1)
        ((_, declined),) = await scene.coordinator.hear(OrderRefused)
        assert declined.reason is RejectReason.MISSING_RECEIPT
        await scene.close(1, tuple(good))
        await scene.check_sum(1, tuple(good))
        await scene.play_good_round(2)
        assert len(await scene.coordinator.hear(SetRefused)) == 1


@aio
async def test_a_duplicate_chunk_is_added_once(tmp_path: Path) -> None:
    async with running_scene(tmp_path) as scene:
        for _ in range(3):
            await scene.send_chunk(CLIENTS[0], 0)
        scene.broker.lose_next_confirmation()  # The sender sends it again without knowing.
        await scene.send_chunk(CLIENTS[1], 0)
        await scene.play_good_round(1)
        assert len(await scene.coordinator.hear(SetReceived, 3)) == 3
        ((_, released),) = await scene.coordinator.hear(PhaseReleased)
        arrived = sum(row.wire_bytes for row in released.traffic)
        frames = len(good_frame()) * len(CLIENTS) * len(PLAN)
        assert arrived < frames * 1.1, "first deliveries only"
        assert scene.dead() == []


@aio
async def test_a_late_share_is_counted_and_not_added(tmp_path: Path) -> None:
    async with running_scene(tmp_path) as scene:
        await scene.send_sets(1, CLIENTS[:2])
        await scene.close(1, CLIENTS[:2])
        await scene.check_sum(1, CLIENTS[:2])
        for index in range(len(PLAN)):
            await scene.send_chunk(CLIENTS[2], index, round_number=1)
        await scene.play_good_round(2)
        assert scene.late("share-chunk") == len(PLAN)
        assert scene.dead() == []
        assert len(await scene.coordinator.hear(SetReceived, 2, round_number=1)) == 2


# Orders -------------------------------------------------------------------------------------------------


@aio
async def test_a_wrong_order_is_refused_and_the_phase_stays_open(tmp_path: Path) -> None:
    async with running_scene(tmp_path) as scene:
        await scene.send_sets(1)
        await scene.close(1, CLIENTS[:1])
        ((_, refusal),) = await scene.coordinator.hear(OrderRefused)
        assert refusal.reason is RejectReason.TOO_FEW_MEMBERS
        await scene.close(1)
        await scene.check_sum(1)


@aio
async def test_a_void_round_is_told_to_everybody_and_its_shares_are_forgotten(tmp_path: Path) -> None:
    async with running_scene(tmp_path) as scene:
        await scene.send_sets(1)
        await scene.order(VoidPhase(reason="too few"), 1)
        await scene.coordinator.hear(PhaseVoided)
        for client in scene.clients.values():
            ((_, notice),) = await client.hear(VoidNotice)
            assert notice.reason == "too few"
        await scene.close(1)  # Too late, and ignored.
        await scene.play_good_round(2)
        assert not [each for each in scene.client.heard if isinstance(each.body, SumChunk) and each.round == 1]


@aio
async def test_a_void_without_any_share_opens_the_next_round(tmp_path: Path) -> None:
    async with running_scene(tmp_path) as scene:
        await scene.order(VoidPhase(reason="nobody came"), 1)
        await scene.coordinator.hear(PhaseVoided)
        await scene.play_good_round(2)


@aio
async def test_an_aggregator_that_was_restarted_joins_no_run_again(tmp_path: Path) -> None:
    async with scene_of() as scene:
        async with scene.start(tmp_path):
            await scene.propose()
            await scene.play_good_round(1)
        async with scene.start(tmp_path):
            await scene.coordinator.say(RunProposed(manifest=MANIFEST), to=ME, role=Role.AGGREGATOR, run=scene.run)
            ((_, refusal),) = await scene.coordinator.hear(RunRefused)
            assert "a run is joined once" in refusal.reason
            await scene.send_sets(1)
            fresh = make_manifest(clients=3, servers=2, seed=8)
            await scene.propose(fresh)
            for client in scene.clients.values():
                assert len(await client.hear(SumChunk, len(PLAN))) == len(PLAN), "nothing was released twice"


@aio
async def test_after_the_last_word_a_run_is_over_for_good(tmp_path: Path) -> None:
    async with running_scene(tmp_path) as scene:
        await scene.send_chunk(CLIENTS[0], 0)
        body = RunEnded(outcome="cancelled", reason="an operator cancelled it")
        await scene.coordinator.say(body, to=ME, role=Role.AGGREGATOR, run=scene.run)
        await scene.send_chunk(CLIENTS[0], 1)
        await scene.coordinator.say(RunProposed(manifest=MANIFEST), to=ME, role=Role.AGGREGATOR, run=scene.run)
        fresh = make_manifest(clients=3, servers=2, seed=8)
        await scene.propose(fresh)
        assert scene.late("share-chunk") == scene.late("run-proposed") == 1
        assert not list((tmp_path / "spool").rglob("*.chunk"))


@aio
async def test_a_run_that_does_not_name_it_is_refused(tmp_path: Path) -> None:
    names = (PartyId("aggregator-8"), PartyId("aggregator-9"))
    manifest = make_manifest(aggregators=names)
    async with running_scene(tmp_path) as scene:
        await scene.coordinator.say(
            RunProposed(manifest=manifest), to=ME, role=Role.AGGREGATOR, run=manifest.run_id
        )
        ((_, refusal),) = await scene.coordinator.hear(RunRefused)
        assert "not among the manifest's aggregators" in refusal.reason


# Phases that only the first aggregator takes part in ----------------------------------------------------


def manifest_of(strategy: str, *, second: bool = False) -> Manifest:
    """This aggregator comes first or second."""
    order = (OTHER, ME) if second else (ME, OTHER)
    return make_manifest(
        clients=3, servers=2, min_clients=2, parameters=100, rho=0.03, strategy=strategy, aggregators=order
    )


@aio
async def test_fedavg_averages_by_weight_and_sends_everybody_the_same(tmp_path: Path) -> None:
    manifest = manifest_of("fedavg")
    vectors = (Vector("update", 100, 2**32),)
    updates = [np.random.default_rng(number).standard_normal(100).astype(np.float32) for number in range(3)]
    weights = (1, 2, 5)
    async with running_scene(tmp_path) as scene:
        await scene.propose(manifest)
        scene.run = manifest.run_id
        for client, update, weight in zip(CLIENTS, updates, weights, strict=True):
            body = ShareChunk(set_id=make_set(client, 1).set_id, vectors=declare(vectors), weight=weight, index=0)
            await scene.clients[client].say(
                body,
                to=ME,
                role=Role.AGGREGATOR,
                run=scene.run,
                round_number=1,
                phase="update",
                payload=update.astype("<f4").tobytes(),
            )
        received = await scene.coordinator.hear(SetReceived, 3)
        receipts = tuple(body.receipt for _, body in received)
        order = ClosePhase(members=CLIENTS, receipts=receipts)
        await scene.coordinator.say(
            order, to=ME, role=Role.AGGREGATOR, run=scene.run, round_number=1, phase="update"
        )
        total = sum(update.astype(np.float64) * weight for update, weight in zip(updates, weights, strict=True))
        expected = np.asarray(total / 8).astype("<f4").tobytes()
        for listener in scene.clients.values():
            ((envelope, _),) = await listener.hear(SumChunk)
            assert envelope.payload == expected
        ((_, released),) = await scene.coordinator.hear(PhaseReleased)
        assert released.vectors == declare(vectors)
        assert sum(row.payload_bits for row in released.traffic if row.direction == "down") == 3 * 3_200


@aio
async def test_marks_in_the_open_are_for_the_first_aggregator_alone(tmp_path: Path) -> None:
    manifest = manifest_of("plaintext-union", second=True)
    async with running_scene(tmp_path) as scene:
        await scene.propose(manifest)
        body = ShareChunk(set_id=SetId("a" * 32), vectors=declare((Vector("union", 100, 2),)), index=0)
        await scene.client.say(
            body,
            to=ME,
            role=Role.AGGREGATOR,
            run=manifest.run_id,
            round_number=1,
            phase="union",
            payload=bytes(13),
        )
        await scene.play_good_round(1)  # Of the other run.
        assert scene.dead() == [RejectReason.UNKNOWN_PHASE.value]


@pytest.mark.parametrize("phase", ["union", "signs"])
@aio
async def test_a_void_of_any_phase_ends_the_round_for_an_aggregator_with_part_in_one(
    tmp_path: Path, phase: str
) -> None:
    manifest = manifest_of("plaintext-union", second=True)
    async with running_scene(tmp_path) as scene:
        await scene.propose(manifest)
        for number in (1, 2):
            await scene.coordinator.say(
                VoidPhase(reason="somebody is missing"),
                to=ME,
                role=Role.AGGREGATOR,
                run=manifest.run_id,
                round_number=number,
                phase=phase,
            )
            await scene.coordinator.hear(PhaseVoided, round_number=number)
            for client in scene.clients.values():
                await client.hear(VoidNotice, round_number=number)
        assert scene.dead() == []
