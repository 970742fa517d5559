"""Measures the memory that an aggregator needs for one round; run as a process of its own.

`python -m support.memory_probe PARAMETERS COHORT SENDERS FOLDER`, then a line of JSON: how far the process's peak
rose above what it held before the aggregator was made, and whether the sum that came out is right. The other
parties live in the same process, so they are made to need little: a share is drawn chunk by chunk when it is sent
and drawn again when the sum is checked, and at most a few chunks are between feeder and aggregator at any time.
"""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import numpy as np

from hubbub.ids import PartyId, Role, SetId
from hubbub.machine.effects import Key
from hubbub.messages.codec import decode
from hubbub.messages.envelope import Message
from hubbub.messages.manifest import Manifest
from hubbub.messages.rounds import ClosePhase, PhaseReleased, SumChunk
from hubbub.messages.runs import RunJoined, RunKeys, RunProposed, RunReady
from hubbub.messages.shares import SetReceived, ShareChunk, declare
from hubbub.protocol.layout import Chunk, Payload, Piece, Vector, pack_chunk, plan_chunks, unpack_chunk
from hubbub.protocol.ring import MAX_MODULUS, Residues
from hubbub.runtime.publisher import Post
from hubbub.transport.base import ACK, Delivery, Verdict
from hubbub.transport.memory import MemoryBroker, MemoryTransport
from hubbub.transport.topology import Topology, inbox, topology_for
from hubbub.trust.seals import RunSeals, Stage
from hubbub_aggregator.policy import AggregatorPolicy
from hubbub_aggregator.service import Aggregator
from support.builders import TRANSCRIPT, make_manifest
from support.parties import identity_of, roster_of, run_keys_of, seals_beside, sign_receipts
from support.sealed_shares import seal_share

AGGREGATOR, OTHER, COORDINATOR = PartyId("aggregator-1"), PartyId("aggregator-2"), PartyId("coordinator")
PHASE = "signs"
FEW_CHUNKS = 2

M = TypeVar("M", bound=Message)


def read_memory_bytes(field: str) -> int:
    """VmRSS or VmHWM of this process.

    Not getrusage: its maximum is inherited from the process that started this one, and would hide ours.
    """
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise LookupError(f"/proc/self/status has no {field}")


def draw_share(sender: int, piece: Piece, modulus: int) -> Residues:
    """A piece of a sender's share: always the same, so that it need not be kept."""
    generator = np.random.default_rng((sender, piece.vector, piece.start))
    return generator.integers(modulus, size=piece.stop - piece.start, dtype=np.uint32)


def add_shares(senders: int, piece: Piece, modulus: int) -> Residues:
    """What the aggregator should find for a piece, added without anything of Hubbub's."""
    total = np.zeros(piece.stop - piece.start, dtype=np.uint32)
    for sender in range(senders):
        total += draw_share(sender, piece, modulus)
    # Words of 32 bits are added modulo 2^32 by themselves; small residues do not come near it.
    if modulus < MAX_MODULUS:
        np.remainder(total, np.uint32(modulus), out=total)
    return total


def with_short_inbox(topology: Topology) -> Topology:
    """The feeder waits when so many chunks wait: what is being measured is not the broker's queue."""
    queues = tuple(
        replace(spec, max_length=FEW_CHUNKS) if spec.name == inbox(AGGREGATOR) else spec
        for spec in topology.queues
    )
    return replace(topology, queues=queues)


class Round:
    """Every party but the aggregator that is measured."""

    def __init__(self, manifest: Manifest, senders: int, broker: MemoryBroker) -> None:
        self.manifest = manifest
        self.members = manifest.clients[:senders]
        parameters = manifest.protocol_parameters
        self.vectors = (
            Vector("signs", manifest.parameters, parameters.signs_modulus),
            Vector("factors", 1, parameters.factors_modulus),
        )
        self.plan = plan_chunks(self.vectors, manifest.chunk_bytes)
        self.seals: dict[PartyId, RunSeals] = {}
        self.stage = Stage(manifest.run_id, 1, PHASE)
        self.wrong = 0
        self.checked = asyncio.Event()
        self._awaited = set(range(len(self.plan)))
        self.reports: asyncio.Queue[Message] = asyncio.Queue()
        self._broker = broker
        self._transports: dict[PartyId, MemoryTransport] = {}

    async def open(self) -> None:
        """Connect everybody, and let everybody take what comes."""
        roles = {COORDINATOR: Role.COORDINATOR, **dict.fromkeys(self.manifest.clients, Role.CLIENT)}
        for name, role in roles.items():
            transport = MemoryTransport(self._broker, topology_for(name, role))
            self._transports[name] = await transport.__aenter__()
        await self._transports[COORDINATOR].subscribe(inbox(COORDINATOR), self._note_report)
        for client in self.manifest.clients:
            handler = self._check_sum if client == self.members[0] else self._drop
            await self._transports[client].subscribe(inbox(client), handler)

    async def close(self) -> None:
        for transport in self._transports.values():
            await transport.close()

    async def run(self) -> None:
        """One round: propose, send all shares, close, and wait for the release."""
        await self._order(RunProposed(manifest=self.manifest), Key("run", self.manifest.run_id))
        await self._agree_on_keys(self._expect(await self.reports.get(), RunJoined))
        for index, chunk in enumerate(self.plan):
            for sender in range(len(self.members)):
                await self._send(sender, index, chunk)
        signed = [self._expect(await self.reports.get(), SetReceived).receipt for _ in self.members]
        same = [each.receipt.model_copy(update={"aggregator": OTHER}) for each in signed]
        receipts = (*signed, *sign_receipts(self.manifest, same, phase=PHASE))
        await self._order(ClosePhase(members=self.members, receipts=receipts), self._phase)
        self._expect(await self.reports.get(), PhaseReleased)
        await self.checked.wait()

    async def _agree_on_keys(self, joined: RunJoined) -> None:
        self.seals = seals_beside(self.manifest, joined.run_key)
        keys = (joined.run_key, *run_keys_of(self.seals))
        await self._order(RunKeys(keys=keys), Key("run", self.manifest.run_id))
        self._expect(await self.reports.get(), RunReady)

    @property
    def _phase(self) -> Key:
        return Key("phase", self.manifest.run_id, 1, PHASE)

    async def _order(self, body: Message, key: Key) -> None:
        await self._post(COORDINATOR).send(key, to=AGGREGATOR, role=Role.AGGREGATOR, body=body)

    async def _send(self, sender: int, index: int, chunk: Chunk) -> None:
        client, set_id = self.members[sender], SetId(f"{sender:032x}")
        body = ShareChunk(set_id=set_id, vectors=declare(self.vectors), transcript=TRANSCRIPT, index=index)
        shares = [draw_share(sender, piece, self.vectors[piece.vector].modulus) for piece in chunk]
        share = pack_chunk(chunk, self.vectors, shares)
        payload = seal_share(self.seals[client], self.stage, AGGREGATOR, set_id, index, share)
        await self._post(client).send(self._phase, to=AGGREGATOR, role=Role.AGGREGATOR, body=body, payload=payload)

    def _post(self, name: PartyId) -> Post:
        return Post(self._transports[name], identity_of(self.manifest, name))

    @staticmethod
    def _expect(report: Message, kind: type[M]) -> M:
        if not isinstance(report, kind):
            raise TypeError(f"the aggregator says {report!r}")
        return report

    # What the aggregator sends --------------------------------------------------------------------------

    async def _note_report(self, delivery: Delivery) -> Verdict:
        self.reports.put_nowait(decode(delivery.body).body)
        return ACK

    async def _drop(self, delivery: Delivery) -> Verdict:
        del delivery
        return ACK

    async def _check_sum(self, delivery: Delivery) -> Verdict:
        envelope = decode(delivery.body)
        body = self._expect(envelope.body, SumChunk)
        seals = self.seals[envelope.recipient]
        sum_key = seals.unwrap_sum_key(self.stage, AGGREGATOR, bytes.fromhex(body.wrapped_key))
        packed = seals.decrypt_sum(self.stage, AGGREGATOR, sum_key, body.index, envelope.payload)
        self.wrong += self._count_wrong(self.plan[body.index], packed)
        self._awaited.discard(body.index)
        if not self._awaited:
            self.checked.set()
        return ACK

    def _count_wrong(self, chunk: Chunk, packed: Payload) -> int:
        return sum(
            int(np.count_nonzero(got != add_shares(len(self.members), piece, self.vectors[piece.vector].modulus)))
            for piece, got in unpack_chunk(chunk, self.vectors, packed)
        )


async def measure(parameters: int, cohort: int, senders: int, folder: Path) -> dict[str, int]:
    """Run one round through an aggregator and say what it took."""
    broker = MemoryBroker()
    manifest = make_manifest(clients=cohort, parameters=parameters, min_clients=2, rounds=1, verified=False)
    peers = Round(manifest, senders, broker)
    await peers.open()
    before = read_memory_bytes("VmRSS")
    topology = with_short_inbox(topology_for(AGGREGATOR, Role.AGGREGATOR))
    async with MemoryTransport(broker, topology) as transport:
        aggregator = Aggregator(
            identity=identity_of(manifest, AGGREGATOR),
            roster=roster_of(manifest),
            read_policy=lambda: AggregatorPolicy.for_demo(roster_of(manifest).digest),
            transport=transport,
            folder=folder,
        )
        await aggregator.runner.start()
        await peers.run()
        peak = read_memory_bytes("VmHWM")
        await aggregator.runner.stop()
        aggregator.close()
    await peers.close()
    return {"growth_bytes": peak - before, "chunks": len(peers.plan), "wrong": peers.wrong}


def main() -> None:
    parameters, cohort, senders = (int(argument) for argument in sys.argv[1:4])
    result = asyncio.run(measure(parameters, cohort, senders, Path(sys.argv[4])))
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
