"""One phase through real aggregators, fed by simulated clients and a coordinator that need next to no memory.

The aggregators are the real services: they take messages, spool, open, check, journal, add, combine and release.
A client's share is drawn, dealt, sealed and signed chunk by chunk when it is sent, by the trainer's own functions.
Its values are drawn again to check the sum. At most a few chunks are in flight, so a vector may have any length.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np

from benchmarks.peers.contest import SumIsWrong
from benchmarks.peers.metering import CountingTransport, Meter
from benchmarks.peers.stopwatch import Stopwatch
from hubbub.crypto.stream import KEY_BYTES, AesCtrStream
from hubbub.errors import ProtocolError
from hubbub.ids import PartyId, Role, SetId
from hubbub.machine.effects import Key
from hubbub.messages.codec import decode, encode
from hubbub.messages.envelope import Envelope, Message
from hubbub.messages.manifest import Manifest
from hubbub.messages.rounds import ClosePhase, MaskedChunk, PhaseReleased
from hubbub.messages.runs import RunJoined, RunKeys, RunProposed, RunReady
from hubbub.messages.shares import DenseShareChunk, SetReceived, ShareSeed, SignedReceipt, declare
from hubbub.protocol.dense import Digits
from hubbub.protocol.layout import Chunk, Piece, Vector
from hubbub.protocol.metrics import Metric
from hubbub.protocol.ring import word_type
from hubbub.protocol.sharing import unmask
from hubbub.run_options import RunOptions
from hubbub.runtime.publisher import sign
from hubbub.strategies.base import Theta
from hubbub.strategies.phase_plan import plan_phase
from hubbub.transport.base import ACK, Address, Delivery, Transport, Verdict
from hubbub.transport.memory import MemoryBroker, MemoryTransport
from hubbub.transport.topology import inbox, route, topology_for
from hubbub.trust.seals import RunSeals, SealContext, ShareKey, Stage, derive_share_key, draw_run_key, mask_stream
from hubbub_aggregator.policy import AggregatorPolicy
from hubbub_aggregator.service import Aggregator
from hubbub_local.attribution import AttributingLoop
from hubbub_local.federation import Parties, make_parties
from hubbub_trainer.learning.synthetic import SyntheticLearner
from hubbub_trainer.planning import draw_up_manifest
from hubbub_trainer.round_jobs import Compact

M = TypeVar("M", bound=Message)

PHASE, ROUND = "signs", 1
FEW_CHUNKS = 2
CLIENT = "client"
_GROUP_KEY = bytes(KEY_BYTES)
_TRANSCRIPT = "0" * 64


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseCost:
    """Cost of one phase of all N elements."""

    parameters: int
    clients: int
    servers: int
    client_s: float
    """CPU time of one client: deal, seal, sign, encode; decode and unmask."""
    server_s: float
    """CPU time of one aggregator, the mean over them."""
    link_payload_bytes: int
    """Bytes sent and received by one client, packed and not sealed, without seeds."""
    seed_bytes: int
    """Bytes of seeds that one client sends instead of shares."""
    link_wire_bytes: int
    """Bytes of all messages that one client sends and receives."""
    all_bytes: int
    """Bytes of all messages of all parties."""
    wall_s: float


class NumbersTask:
    """Task of a given size whose model is never in memory."""

    name = "numbers"
    metrics: tuple[Metric, ...] = ()

    def __init__(self, parameters: int) -> None:
        self._parameters = parameters

    def count_parameters(self) -> int:
        return self._parameters

    def initial_model(self, seed: int) -> Theta:
        del seed
        return np.zeros(1, dtype=np.float32)

    def learner(self, *, index: int, clients: int, seed: int) -> SyntheticLearner:
        raise NotImplementedError


def measure_phase(parameters: int, clients: int, servers: int) -> PhaseCost:
    """Run a phase in this process, preferably a fresh one, and return its cost."""
    parties = make_parties(clients=clients, servers=servers)
    manifest = draw_up_phase(parties, parameters)
    meter = Meter(frozenset(manifest.clients))
    with asyncio.Runner(loop_factory=partial(AttributingLoop, meter.attribution)) as runner:
        crowd = runner.run(_run(manifest, parties, meter))
    spent_s = meter.attribution.read()
    return PhaseCost(
        parameters=parameters,
        clients=clients,
        servers=servers,
        client_s=crowd.watch.spent_s[CLIENT] / clients + crowd.decoding.spent_s[CLIENT],
        server_s=sum(spent_s[name] for name in manifest.aggregators) / servers,
        link_payload_bytes=crowd.share_bytes // clients + crowd.sum_bytes,
        seed_bytes=(servers - 1) * KEY_BYTES,
        link_wire_bytes=(meter.up_bytes + meter.down_bytes) // clients,
        all_bytes=meter.up_bytes + meter.down_bytes + meter.others_bytes,
        wall_s=crowd.wall_s,
    )


def draw_up_phase(parties: Parties, parameters: int) -> Manifest:
    """Return the manifest of a run with one phase, of all signs, without tags: they need a whole vector."""
    options = RunOptions(strategy="no-union", local_steps=1, rounds=1, seed=0, verified=False)
    return draw_up_manifest(NumbersTask(parameters), options, roster=parties.roster)


async def _run(manifest: Manifest, parties: Parties, meter: Meter) -> Crowd:
    with tempfile.TemporaryDirectory(prefix="hubbub-bench-") as folder:
        async with _connect(manifest, meter) as transports, _start(manifest, parties, transports, Path(folder)):
            crowd = Crowd(manifest, parties, transports)
            await crowd.subscribe()
            began_s = time.monotonic()
            await crowd.run()
            crowd.wall_s = time.monotonic() - began_s
            return crowd


class CarryingTransport(CountingTransport):
    """Transport that counts and drops messages for the ignored clients."""

    def __init__(self, meter: Meter, party: PartyId, inner: Transport, ignored: frozenset[PartyId]) -> None:
        super().__init__(meter, party, inner)
        self._ignored = ignored

    async def publish(self, address: Address, body: bytes) -> None:
        if address.routing_key in self._ignored:
            self._meter.count(self._party, address, len(body))
        else:
            await super().publish(address, body)
        # Waiting for a broker's confirmation would let the other tasks run, too.
        await asyncio.sleep(0)


@asynccontextmanager
async def _connect(manifest: Manifest, meter: Meter) -> AsyncIterator[dict[PartyId, Transport]]:
    """Connect all parties over short queues, so that senders wait: the broker's queue is not what is measured."""
    roles = {
        manifest.coordinator: Role.COORDINATOR,
        **dict.fromkeys(manifest.aggregators, Role.AGGREGATOR),
        **dict.fromkeys(manifest.clients, Role.CLIENT),
    }
    broker, transports = MemoryBroker(), dict[PartyId, Transport]()
    ignored = frozenset(manifest.clients[1:])
    async with AsyncExitStack() as stack:
        for name, role in roles.items():
            topology = topology_for(name, role)
            queues = tuple(
                replace(spec, max_length=FEW_CHUNKS) if spec.name == inbox(name) else spec
                for spec in topology.queues
            )
            inner = MemoryTransport(broker, replace(topology, queues=queues))
            transports[name] = await stack.enter_async_context(CarryingTransport(meter, name, inner, ignored))
        yield transports


@asynccontextmanager
async def _start(
    manifest: Manifest, parties: Parties, transports: Mapping[PartyId, Transport], folder: Path
) -> AsyncIterator[None]:
    async with AsyncExitStack() as stack:
        for name in manifest.aggregators:
            aggregator = Aggregator(
                identity=parties.identities[name],
                roster=parties.roster,
                read_policy=partial(AggregatorPolicy.for_demo, parties.roster.digest),
                transport=transports[name],
                folder=folder / name,
            )
            stack.callback(aggregator.close)
            stack.push_async_callback(aggregator.runner.stop)
            await aggregator.runner.start()
        yield


class Crowd:
    """Every party but the aggregators."""

    def __init__(self, manifest: Manifest, parties: Parties, transports: Mapping[PartyId, Transport]) -> None:
        self.manifest = manifest
        self.watch, self.decoding = Stopwatch(time.thread_time), Stopwatch(time.thread_time)
        self.share_bytes = self.sum_bytes = 0
        self.wall_s = 0.0
        self._parties = parties
        self._directory = parties.roster.directory(manifest.run_id)
        self._transports = transports
        self._wire = plan_phase(manifest, PHASE)
        numbers = manifest.protocol_parameters
        self._vectors = (
            Vector("signs", manifest.parameters, numbers.signs_modulus),
            Vector("factors", 1, numbers.factors_modulus),
        )
        self._plan = self._wire.plan(self._vectors)
        self._awaited = set(range(len(self._plan)))
        self._checked = asyncio.Event()
        self._reports: asyncio.Queue[Message] = asyncio.Queue()
        self._stage = Stage(manifest.run_id, ROUND, PHASE)
        self._compact = Compact(self._stage, _GROUP_KEY)
        self._seals: dict[PartyId, RunSeals] = {}
        self._share_keys: dict[PartyId, ShareKey] = {}

    @property
    def chunks(self) -> int:
        """Number of chunks of a share, and of the sum."""
        return len(self._plan)

    async def subscribe(self) -> None:
        """Subscribe the coordinator and one client."""
        coordinator, first = self.manifest.coordinator, self.manifest.clients[0]
        await self._transports[coordinator].subscribe(inbox(coordinator), self._note_report)
        await self._transports[first].subscribe(inbox(first), self._check_sum)

    async def run(self) -> None:
        """Agree on keys, send all shares, close, and wait for the sum."""
        run = Key("run", self.manifest.run_id)
        await self._order(run, RunProposed(manifest=self.manifest))
        joined = [await self._expect(RunJoined) for _ in self.manifest.aggregators]
        self._make_seals({each.run_key.party: bytes.fromhex(each.run_key.public_key) for each in joined})
        keys = (*(each.run_key for each in joined), *(seals.claim for seals in self._seals.values()))
        await self._order(run, RunKeys(keys=keys))
        for _ in self.manifest.aggregators:
            await self._expect(RunReady)
        await self._send_shares()
        awaited, receipts = len(self.manifest.clients) * len(self.manifest.aggregators), list[SignedReceipt]()
        while sum(len(signed.receipt.sets) for signed in receipts) < awaited:
            receipts.append((await self._expect(SetReceived)).receipt)
        await self._order(self._phase, ClosePhase(members=self.manifest.clients, receipts=tuple(receipts)))
        for _ in self.manifest.aggregators:
            await self._expect(PhaseReleased)
        await self._checked.wait()

    @property
    def _phase(self) -> Key:
        return Key("phase", self.manifest.run_id, ROUND, PHASE)

    def _make_seals(self, servers: Mapping[PartyId, bytes]) -> None:
        kem = self._parties.roster.kem
        for client in self.manifest.clients:
            identity = self._parties.identities[client]
            self._seals[client] = RunSeals(identity, self.manifest.run_id, draw_run_key(kem))
        own = {name: bytes.fromhex(seals.claim.public_key) for name, seals in self._seals.items()}
        for seals in self._seals.values():
            seals.accept({**servers, **own})

    # What is sent ---------------------------------------------------------------------------------------

    async def _order(self, key: Key, body: Message) -> None:
        for server in self.manifest.aggregators:
            frame = self._frame(key, self.manifest.coordinator, server, body)
            await self._publish(self.manifest.coordinator, server, frame)

    async def _send_shares(self) -> None:
        for place, client in enumerate(self.manifest.clients):
            for server in self._seeded(client):
                with self.watch.on(CLIENT):
                    frame = self._make_seed(place, client, server)
                await self._publish(client, server, frame)
        for index, chunk in enumerate(self._plan):
            for place, client in enumerate(self.manifest.clients):
                values = self._draw_values(place, chunk)
                with self.watch.on(CLIENT):
                    frame = self._make_share(place, client, index, chunk, values)
                await self._publish(client, self._holder(client), frame)

    def _holder(self, client: PartyId) -> PartyId:
        return self._wire.full_share_holder(client, ROUND)

    def _seeded(self, client: PartyId) -> list[PartyId]:
        return [server for server in self._wire.servers if server != self._holder(client)]

    def _make_seed(self, place: int, client: PartyId, server: PartyId) -> bytes:
        seed = self._compact.seed_for(_secret_of(place), server)
        payload = self._seals[client].seal_seed(self._stage, server, _set_of(place), seed)
        body = ShareSeed(set_id=_set_of(place), vectors=declare(self._vectors), transcript=_TRANSCRIPT)
        return self._frame(self._phase, client, server, body, payload)

    def _make_share(
        self, place: int, client: PartyId, index: int, chunk: Chunk, values: tuple[Digits, ...]
    ) -> bytes:
        here = tuple(Piece(piece.vector, 0, piece.stop - piece.start) for piece in chunk)
        share = self._compact.deal_chunk(
            index, here, self._vectors, values, me=client, secret=_secret_of(place), seeded=self._seeded(client)
        )
        self.share_bytes += len(share)
        payload = self._share_key(place, client).seal(index, share)
        body = DenseShareChunk(
            set_id=_set_of(place), vectors=declare(self._vectors), transcript=_TRANSCRIPT, index=index
        )
        return self._frame(self._phase, client, self._holder(client), body, payload)

    def _share_key(self, place: int, client: PartyId) -> ShareKey:
        """Return the key of a client's full share, sealed once."""
        if client not in self._share_keys:
            holder, set_id = self._holder(client), _set_of(place)
            key = derive_share_key(self._stage, _secret_of(place), holder)
            self._share_keys[client] = self._seals[client].make_share_key(self._stage, holder, set_id, key)
        return self._share_keys[client]

    def _draw_values(self, place: int, chunk: Chunk) -> tuple[Digits, ...]:
        """Return a chunk's part of each vector; a chunk has at most one piece of a vector."""
        pieces = {piece.vector: piece for piece in chunk}
        return tuple(
            self._draw(place, pieces[number]) if number in pieces else np.empty(0, dtype=np.uint8)
            for number in range(len(self._vectors))
        )

    def _frame(self, key: Key, sender: PartyId, to: PartyId, body: Message, payload: bytes = b"") -> bytes:
        envelope = Envelope(
            run=key.run,
            round=key.round,
            phase=key.phase,
            sender=sender,
            recipient=to,
            body=body,
            payload=payload,
        )
        return encode(sign(self._parties.identities[sender], envelope, self._directory), self._directory)

    async def _publish(self, sender: PartyId, to: PartyId, frame: bytes) -> None:
        address = route(self._parties.identities[sender].role, Role.AGGREGATOR, to)
        await self._transports[sender].publish(address, frame)

    # What is received -----------------------------------------------------------------------------------

    async def _expect(self, kind: type[M]) -> M:
        report = await self._reports.get()
        if not isinstance(report, kind):
            raise ProtocolError(f"an aggregator says {report!r} and not {kind.kind}")
        return report

    async def _note_report(self, delivery: Delivery) -> Verdict:
        self._reports.put_nowait(decode(delivery.body, self._directory).body)
        return ACK

    async def _check_sum(self, delivery: Delivery) -> Verdict:
        with self.decoding.on(CLIENT):
            envelope = decode(delivery.body, self._directory)
            body = envelope.body
            if not isinstance(body, MaskedChunk):
                raise ProtocolError(f"an aggregator sends a client {envelope.kind}")
            chunk = self._plan[body.index]
            masks = [partial(self._mask, client, body.index) for client in self.manifest.clients]
            sums = list(unmask(chunk, self._vectors, envelope.payload, masks))
        self.sum_bytes += len(envelope.payload)
        for piece, got, _ in sums:
            self._compare(piece, got)
        self._awaited.discard(body.index)
        if not self._awaited:
            self._checked.set()
        return ACK

    def _draw(self, place: int, piece: Piece) -> Digits:
        """Draw a piece of a client's values: the same each time, so that none is stored. Sums do not wrap."""
        modulus = self._vectors[piece.vector].modulus
        generator = np.random.default_rng((place, piece.vector, piece.start))
        values = (modulus - 1) // len(self.manifest.clients) + 1
        return generator.integers(values, size=piece.stop - piece.start, dtype=word_type(modulus))

    def _mask(self, client: PartyId, index: int, vector: Vector) -> AesCtrStream:
        return mask_stream(self._stage, _GROUP_KEY, client, SealContext(vector.name, vector.modulus, index))

    def _compare(self, piece: Piece, got: Digits) -> None:
        total = np.zeros(got.size, dtype=np.uint32)
        for place in range(len(self.manifest.clients)):
            total += self._draw(place, piece)
        if not np.array_equal(total, got):
            raise SumIsWrong(f"the sum of elements {piece.start} to {piece.stop} is wrong")


def _secret_of(place: int) -> bytes:
    return place.to_bytes(KEY_BYTES, "big")


def _set_of(place: int) -> SetId:
    return SetId(f"{place:032x}")
