"""A real aggregator among parties made by hand, which send whatever a test wants sent."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hubbub.crypto.stream import AesCtrStream
from hubbub.ids import PartyId, Role, RunId, SetId
from hubbub.messages.envelope import Envelope, Message
from hubbub.messages.manifest import Manifest
from hubbub.messages.rounds import ClosePhase, PhaseReleased, SumChunk, VoidPhase
from hubbub.messages.runs import RunEnded, RunJoined, RunKey, RunKeys, RunProposed, RunReady
from hubbub.messages.shares import SetReceived, ShareChunk, SignedReceipt, VectorClaim, declare
from hubbub.protocol import ring
from hubbub.protocol.layout import Vector, pack_chunk, plan_chunks, unpack_chunk
from hubbub.protocol.ring import Residues
from hubbub.transport.memory import MemoryBroker, MemoryTransport
from hubbub.transport.subscription import RetryPause
from hubbub.transport.topology import dead_letter_queue, received_from, topology_for
from hubbub.trust.audit import read_log
from hubbub.trust.seals import RunSeals, Stage
from hubbub_aggregator.policy import AggregatorPolicy
from hubbub_aggregator.service import Aggregator
from support.builders import TRANSCRIPT, make_manifest, make_receipt, make_vectors
from support.deaths import Fate, MortalTransport, make_mortal
from support.parties import identity_of, roster_of, run_keys_of, seals_beside, sign_receipts
from support.sealed_shares import seal_share
from support.spooled import spooled_in
from support.stand_in import StandIn, stand_in

# 1,003 signs of 3 bits, a factor and tags: two chunks of at most 256 bytes.
MANIFEST = make_manifest(clients=3, servers=2, min_clients=2, parameters=1_003, chunk_bytes=256)
ANOTHER = make_manifest(clients=3, servers=2, seed=8)
ME, OTHER = MANIFEST.aggregators
VECTORS = make_vectors(MANIFEST)
PLAN = plan_chunks(VECTORS, MANIFEST.chunk_bytes)
CLIENTS = MANIFEST.clients
PAUSE = RetryPause(first_s=0.01, longest_s=0.05)
CANCELLED = RunEnded(outcome="cancelled", reason="an operator cancelled it")


@dataclass(frozen=True, slots=True)
class ShareSet:
    """What one client sends to this aggregator in a round."""

    set_id: SetId
    values: tuple[Residues, ...]

    def share(self, index: int) -> bytes:
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
    modulus = VECTORS[position].modulus
    return total if modulus == 2**64 else total % np.uint64(modulus)


def make_receipts(
    round_number: int,
    members: tuple[PartyId, ...] = CLIENTS,
    *,
    manifest: Manifest = MANIFEST,
    phase: str = "signs",
    signed_for: int | None = None,
) -> tuple[SignedReceipt, ...]:
    """What every aggregator gives for the members' sets of a round, or of another phase, round or run."""
    sets = {member: make_set(member, round_number).set_id for member in members}
    receipts = [make_receipt(MANIFEST, aggregator=server, sets=sets) for server in (ME, OTHER)]
    return sign_receipts(manifest, receipts, round_number=signed_for or round_number, phase=phase)


class Scene:
    """A broker, the aggregator under test and everybody else, with their keys for each run."""

    def __init__(
        self,
        broker: MemoryBroker,
        coordinator: StandIn,
        clients: dict[PartyId, StandIn],
        folder: Path,
        manifest: Manifest = MANIFEST,
    ) -> None:
        self.broker = broker
        self.coordinator = coordinator
        self.clients = clients
        self.folder = folder
        self.manifest = manifest
        self.run = manifest.run_id
        self.seals: dict[RunId, dict[PartyId, RunSeals]] = {}
        self.policy = AggregatorPolicy.for_demo(roster_of(manifest).digest)
        self.aggregator: Aggregator

    def dead(self) -> list[str]:
        return [letter.reason for letter in self.broker.dead_letters(dead_letter_queue(ME))]

    async def bury(self, count: int = 1) -> list[str]:
        """Wait until that many messages were put aside, and say why they were."""
        while len(self.dead()) < count:
            await self.broker.change()
        return self.dead()

    def late(self, kind: str) -> float:
        registry = self.aggregator.counters.registry
        return registry.get_sample_value("hubbub_messages_late_total", {"kind": kind}) or 0.0

    def recorded(self, *names: str) -> list[tuple[object, ...]]:
        """The audit log: each entry's kind and those of these fields that it has."""
        entries = read_log(self.folder / "audit.jsonl").entries
        return [(entry.kind, *(entry.fields[name] for name in names if name in entry.fields)) for entry in entries]

    def spooled(self) -> dict[str, bytes]:
        return spooled_in(self.folder / "spool")

    def disk(self) -> list[bytes]:
        """Every file that the aggregator keeps."""
        return [path.read_bytes() for path in self.folder.rglob("*") if path.is_file()]

    @asynccontextmanager
    async def start(self, fate: Fate | None = None) -> AsyncIterator[Aggregator]:
        """A process on the folder, and its end; it ends as one does that dies."""
        fate = fate or Fate()
        memory = MemoryTransport(self.broker, topology_for(ME, Role.AGGREGATOR), retry_pause=PAUSE)
        async with MortalTransport(memory, fate) as transport:
            self.aggregator = Aggregator(
                identity=identity_of(self.manifest, ME),
                roster=roster_of(self.manifest),
                read_policy=lambda: self.policy,
                transport=transport,
                folder=self.folder,
            )
            make_mortal(self.aggregator, fate)
            try:
                await self.aggregator.runner.start()
                yield self.aggregator
            finally:
                await self.aggregator.runner.stop()
                self.aggregator.close()

    async def empty_inbox(self) -> None:
        """Wait until all that it was sent is settled: what it gave back once comes again behind the rest."""
        queues = received_from(ME, Role.AGGREGATOR)
        while any(self.broker.waiting_in(each) or self.broker.held_from(each) for each in queues):
            await self.broker.change()

    # Before the first round -----------------------------------------------------------------------------

    async def command(
        self, body: Message, *, run: RunId | None = None, round_number: int = 0, phase: str = ""
    ) -> None:
        """The coordinator says something."""
        await self.coordinator.say(
            body, to=ME, role=Role.AGGREGATOR, run=run or self.run, round_number=round_number, phase=phase
        )

    async def propose(self, manifest: Manifest | None = None) -> tuple[RunKey, ...]:
        """Let the aggregator join, and give all run keys: its own, and those made for everybody else."""
        manifest = manifest or self.manifest
        before = len([each for each in self.coordinator.heard if isinstance(each.body, RunJoined)])
        await self.command(RunProposed(manifest=manifest), run=manifest.run_id)
        _, joined = (await self.coordinator.hear(RunJoined, before + 1))[-1]
        self.seals[manifest.run_id] = seals_beside(manifest, joined.run_key)
        return (joined.run_key, *run_keys_of(self.seals[manifest.run_id]))

    async def join(self, manifest: Manifest | None = None) -> None:
        manifest = manifest or self.manifest
        before = len([each for each in self.coordinator.heard if isinstance(each.body, RunReady)])
        keys = await self.propose(manifest)
        await self.command(RunKeys(keys=keys), run=manifest.run_id)
        await self.coordinator.hear(RunReady, before + 1)

    async def shout(self, frame: bytes) -> None:
        """Somebody sends bytes as they are."""
        await self.clients[CLIENTS[0]].shout(frame, to=ME, role=Role.AGGREGATOR)

    # A round --------------------------------------------------------------------------------------------

    def seal(
        self,
        client: PartyId,
        index: int,
        share: bytes | None = None,
        *,
        round_number: int = 1,
        phase: str = "signs",
        set_id: SetId | None = None,
        run: RunId | None = None,
        to: PartyId = ME,
    ) -> bytes:
        """Seal a chunk of a client's set as it should be, or to another place."""
        share_set = make_set(client, round_number)
        return seal_share(
            self.seals[run or self.run][client],
            Stage(run or self.run, round_number, phase),
            to,
            set_id or share_set.set_id,
            index,
            share_set.share(index) if share is None else share,
        )

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
        transcript: str = TRANSCRIPT,
        run: RunId | None = None,
        recipient: PartyId | None = None,
        sender: PartyId | None = None,
        signer: PartyId | None = None,
        claimed_index: int | None = None,
    ) -> None:
        body = ShareChunk(
            set_id=set_id or make_set(client, round_number).set_id,
            vectors=vectors or declare(VECTORS),
            transcript=transcript,
            index=index if claimed_index is None else claimed_index,
        )
        sealed = self.seal(client, index, round_number=round_number) if payload is None else payload
        await self.clients[client].say(
            body,
            to=ME,
            role=Role.AGGREGATOR,
            run=run or self.run,
            round_number=round_number,
            phase=phase,
            payload=sealed,
            recipient=recipient,
            sender=sender,
            signer=signer,
        )

    async def send_sets(
        self, round_number: int, clients: tuple[PartyId, ...] = CLIENTS, *, transcript: str = TRANSCRIPT
    ) -> None:
        for client in clients:
            for index in reversed(range(len(PLAN))):
                await self.send_chunk(client, index, round_number=round_number, transcript=transcript)
        await self.hear_receipts(round_number, clients)

    async def hear_receipts(
        self, round_number: int = 1, clients: tuple[PartyId, ...] = CLIENTS
    ) -> dict[PartyId, SignedReceipt]:
        """The receipts of these clients; one that comes again is the same."""
        count = 0
        while True:
            heard = await self.coordinator.hear(SetReceived, count, round_number=round_number)
            named = [(client, body.receipt) for _, body in heard for client in body.receipt.receipt.set_of]
            found = dict(named)
            assert all(signed == found[client] for client, signed in named)
            if found.keys() >= set(clients):
                return found
            count = len(heard) + 1

    async def order(self, body: ClosePhase | VoidPhase, round_number: int) -> None:
        await self.command(body, round_number=round_number, phase="signs")

    async def close(self, round_number: int, members: tuple[PartyId, ...] = CLIENTS) -> None:
        receipts = make_receipts(round_number, members)
        await self.order(ClosePhase(members=members, receipts=receipts), round_number)

    async def open_sums(self, client: PartyId, count: int, round_number: int = 1, phase: str = "signs") -> "Sums":
        """What a client is sent in a round, opened with its key; what comes again is the same to the bit."""
        stage = Stage(self.run, round_number, phase)
        chunks = await self.hear_sums(client, count, round_number)
        (wrapped,) = {body.wrapped_key for _, body in chunks}
        key = self.seals[self.run][client].unwrap_sum_key(stage, ME, bytes.fromhex(wrapped))
        return Sums(
            key=key.to_bytes(),
            members={body.members for _, body in chunks},
            sealed={body.index: envelope.payload for envelope, body in chunks},
            packed={
                body.index: bytes(RunSeals.decrypt_sum(stage, ME, key, body.index, envelope.payload))
                for envelope, body in chunks
            },
        )

    async def hear_sums(self, client: PartyId, count: int, round_number: int) -> list[tuple[Envelope, SumChunk]]:
        heard: list[tuple[Envelope, SumChunk]] = []
        while len({body.index for _, body in heard}) < count:
            heard = await self.clients[client].hear(SumChunk, len(heard) + 1, round_number=round_number)
        first = {body.index: (envelope.payload, body) for envelope, body in reversed(heard)}
        assert all((envelope.payload, body) == first[body.index] for envelope, body in heard)
        return heard

    async def check_sum(self, round_number: int, members: tuple[PartyId, ...] = CLIENTS) -> None:
        """Every client gets the sum over the members, whoever it is."""
        expected = [add_up(round_number, members, position) for position in range(len(VECTORS))]
        for client in CLIENTS:
            sums = await self.open_sums(client, len(PLAN), round_number)
            assert sums.members == {members}
            for index, chunk in enumerate(PLAN):
                for piece, values in unpack_chunk(chunk, VECTORS, sums.packed[index]):
                    assert (values == expected[piece.vector][piece.elements]).all()

    async def play_good_round(self, round_number: int) -> None:
        await self.send_sets(round_number)
        await self.close(round_number)
        await self.check_sum(round_number)
        await self.coordinator.hear(PhaseReleased, round_number=round_number)


@dataclass(frozen=True, slots=True)
class Sums:
    """The chunks of one aggregator's sum, as they came and as a client opened them."""

    key: bytes
    members: set[tuple[PartyId, ...]]
    sealed: dict[int, bytes]
    packed: dict[int, bytes]


@asynccontextmanager
async def scene_of(folder: Path) -> AsyncIterator[Scene]:
    """Everybody but the aggregator."""
    broker = MemoryBroker()
    async with AsyncExitStack() as stack:
        coordinator = await stack.enter_async_context(stand_in(broker, MANIFEST.coordinator, Role.COORDINATOR))
        clients = {name: await stack.enter_async_context(stand_in(broker, name, Role.CLIENT)) for name in CLIENTS}
        yield Scene(broker, coordinator, clients, folder)


@asynccontextmanager
async def running_scene(folder: Path) -> AsyncIterator[Scene]:
    async with scene_of(folder) as scene, scene.start():
        await scene.join()
        yield scene


def manifest_of(strategy: str, *, second: bool = False) -> Manifest:
    """This aggregator comes first or second."""
    order = (OTHER, ME) if second else (ME, OTHER)
    return make_manifest(
        clients=3, servers=2, min_clients=2, parameters=100, rho=0.03, strategy=strategy, aggregators=order
    )


async def send_plain(
    scene: Scene, client: PartyId, phase: str, vector: Vector, values: bytes, *, weight: int = 1
) -> None:
    """A set of one chunk, which the aggregator sees when it opens it."""
    set_id = make_set(client, 1).set_id
    body = ShareChunk(set_id=set_id, vectors=declare((vector,)), weight=weight, transcript=TRANSCRIPT, index=0)
    await scene.clients[client].say(
        body,
        to=ME,
        role=Role.AGGREGATOR,
        run=scene.run,
        round_number=1,
        phase=phase,
        payload=scene.seal(client, 0, values, phase=phase),
    )
