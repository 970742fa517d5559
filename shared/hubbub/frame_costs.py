"""Predicted bytes of every message of a round: its payload, and the heads, signatures and seals beside it.

The heads are those of sample messages, encoded as the services encode them, so this follows the format by itself.
Vectors have other names and lengths in a real run, which changes a head by a few bytes. All clients take part and
deliver at about the same time, so that an aggregator gives one receipt for all sets. No message is lost.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from hubbub.crypto.sealing import CHUNK_KEY_BYTES, CHUNK_OVERHEAD, Kem, seal_overhead, share_overhead
from hubbub.ids import PartyId, RunId, SetId
from hubbub.messages.codec import SIGNATURE_BYTES, encode
from hubbub.messages.envelope import Envelope, Message
from hubbub.messages.manifest import CHUNK_BYTES
from hubbub.messages.rounds import (
    ClosePhase,
    MaskedChunk,
    PartialChunk,
    PhaseReleased,
    RoundApplied,
    RoundOpened,
    RoundScored,
    ScoreClaim,
    SumChunk,
)
from hubbub.messages.shares import (
    DenseShareChunk,
    Receipt,
    ReceivedSet,
    SetReceived,
    ShareChunk,
    ShareSeed,
    SignedReceipt,
    Traffic,
    VectorClaim,
)
from hubbub.messages.wire_form import Directory
from hubbub.parameters import Parameters
from hubbub.strategies.phase_plan import PhasePlan
from hubbub.strategies.registry import find_strategy
from hubbub.strategies.scores import SCORES

KEM = Kem.X25519
DIGEST, SIGNATURE = "00" * 32, "00" * 64
SET_ID = SetId("00" * 16)
RUN = RunId("00" * 32)
ROUND = 100
MANY = 2**16 - 1
"""Stands for lengths and counts of bytes; larger ones take two bytes more each."""


def count_sent(strategy: str, payload: Mapping[str, int], run: Parameters) -> int:
    """Predict the bytes of every message of a round; `payload` has its bits, by what they count as.

    The round is scored if there is payload of scores.
    """
    total = sum(payload.values()) // 8 + count_orders(strategy, frozenset(payload), run)
    for sample in _plan_phases(strategy, payload, run):
        plan = sample.plan
        copies = 2 * run.clients + len(plan.servers) - 1 if plan.compact else 2 * run.clients * len(plan.servers)
        chunks = max(1, -(-payload[plan.phase.name] // (8 * copies * CHUNK_BYTES)))
        total += sum(count * (sample.size(body) + sealing) for count, body, sealing in sample.list_chunks(chunks))
    return total


@lru_cache  # The rounds of a run ask for the same.
def count_orders(strategy: str, names: frozenset[str], run: Parameters) -> int:
    """Predict the bytes of a round's messages from and to the coordinator: orders, receipts and reports.

    `names` are what its payload counts as so far. Only phases among them are counted.
    """
    federation = _Federation.of(run.clients, run.servers)
    traffic = tuple(Traffic(counts_as=name, direction="up", payload_bits=MANY) for name in names)
    report = RoundApplied(model_hmac=DIGEST, traffic=traffic)
    return run.clients * (federation.size(RoundOpened(attended=ROUND)) + federation.size(report)) + sum(
        count * sample.size(body)
        for sample in _plan_phases(strategy, names, run)
        for count, body in sample.list_orders()
    )


@dataclass(frozen=True, slots=True)
class _Federation:
    clients: tuple[PartyId, ...]
    servers: tuple[PartyId, ...]
    directory: Directory

    @classmethod
    def of(cls, clients: int, servers: int) -> _Federation:
        names = tuple(PartyId(f"p{number}") for number in range(clients + servers))
        return cls(names[:clients], names[clients:], Directory(names, [RUN]))

    def size(self, body: Message) -> int:
        """Return the bytes of a message without payload, its signature included."""
        sender, recipient = self.clients[0], self.servers[0]
        envelope = Envelope(run=RUN, round=ROUND, phase="signs", sender=sender, recipient=recipient, body=body)
        return len(encode(envelope, self.directory)) + SIGNATURE_BYTES


def _plan_phases(strategy: str, names: Collection[str], run: Parameters) -> Iterator[_SamplePhase]:
    """Yield those phases of a round whose payload is among `names`."""
    federation, phases = _Federation.of(run.clients, run.servers), find_strategy(strategy).phases
    for place, phase in enumerate((*phases, SCORES)):
        if phase.name in names:
            plan = PhasePlan(phase, place, federation.clients, federation.servers, run.wire, CHUNK_BYTES)
            yield _SamplePhase(federation, plan, has_factors="factors" in names and phase is phases[-1])


@dataclass(frozen=True, slots=True)
class _SamplePhase:
    """Sample messages of a phase."""

    federation: _Federation
    plan: PhasePlan
    has_factors: bool

    def size(self, body: Message) -> int:
        """Return the bytes of a message without payload, its signature included."""
        return self.federation.size(body)

    @property
    def vectors(self) -> tuple[VectorClaim, ...]:
        """Vectors of the phase."""
        return (
            VectorClaim(name=self.plan.phase.name, length=MANY, modulus=11),
            *([VectorClaim(name="factors", length=1, modulus=2**32)] if self.has_factors else []),
            *([VectorClaim(name="tags", length=3, modulus=2**64)] if self.plan.phase.tagged else []),
        )

    def list_chunks(self, chunks: int) -> Iterator[tuple[int, Message, int]]:
        """Yield the messages with payload: how many there are, one of them, and what sealing adds to each."""
        plan, servers, count = self.plan, self.plan.servers, len(self.plan.clients)
        claim: dict[str, Any] = {"vectors": self.vectors, "transcript": DIGEST}
        share = {"set_id": SET_ID, **claim}
        released = {"members": plan.clients, **claim}
        if plan.compact:
            others = len(servers) - 1
            yield count * others, ShareSeed(**share), seal_overhead(KEM)
            yield count * chunks, DenseShareChunk(**share, index=0), share_overhead(KEM)
            yield others * chunks, PartialChunk(**released, signature=SIGNATURE, index=0), seal_overhead(KEM)
            yield count * chunks, MaskedChunk(**released, signatures=(SIGNATURE,) * len(servers), index=0), 0
        else:
            yield count * len(servers) * chunks, ShareChunk(**share, index=0), share_overhead(KEM)
            wrapped = "00" * (seal_overhead(KEM) + CHUNK_KEY_BYTES)
            body = SumChunk(**released, signature=SIGNATURE, wrapped_key=wrapped, index=0)
            yield count * len(servers) * chunks, body, CHUNK_OVERHEAD

    def list_orders(self) -> Iterator[tuple[int, Message]]:
        """Yield the messages from and to the coordinator: how many there are, and one of them."""
        members, servers, vectors = self.plan.clients, self.plan.servers, self.vectors
        sets = tuple(ReceivedSet(client=client, set_id=SET_ID) for client in members)
        receipts = tuple(
            SignedReceipt(
                receipt=Receipt(aggregator=server, sets=sets, vectors=vectors, transcript=DIGEST),
                # No two are alike, or they would be sent as one.
                signature=f"{place:0128x}",
            )
            for place, server in enumerate(servers)
        )
        row = Traffic(counts_as=self.plan.phase.name, direction="across", payload_bits=MANY, wire_bytes=MANY)
        traffic = (row,) * (1 + len(vectors))
        yield len(servers), SetReceived(receipt=receipts[0])
        yield len(servers), ClosePhase(members=members, receipts=receipts)
        yield len(servers), PhaseReleased(members=members, vectors=vectors, traffic=traffic)
        if self.plan.phase is SCORES:
            claims = tuple(ScoreClaim(name=name, value=0.5) for name in ("accuracy", "loss"))
            yield len(members), RoundScored(scores=claims, traffic=traffic)
