"""Predicted bytes of every message of a round: its payload, and the heads, signatures and seals beside it.

The heads are those of sample messages, encoded as the services encode them, so this follows the format by itself.
Vectors have other names and lengths in a real run, which changes a head by a few bytes. All clients take part and
deliver at about the same time, so that an aggregator gives one receipt for all sets. No message is lost, and the
round is not scored.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
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
from hubbub.strategies.base import Strategy
from hubbub.strategies.phase_plan import PhasePlan

KEM = Kem.X25519
DIGEST, SIGNATURE = "00" * 32, "00" * 64
SET_ID = SetId("00" * 16)
RUN = RunId("00" * 32)
ROUND = 100
MANY = 2**16 - 1
"""Stands for lengths and counts of bytes; larger ones take two bytes more each."""


def count_sent(strategy: Strategy, phases: Mapping[str, int], run: Parameters) -> int:
    """Predict the bytes of every message of a round; `phases` has its payload in bits, by what they count as."""
    clients, federation = run.clients, _Federation.of(run.clients, run.servers)
    total = sum(phases.values()) // 8
    total += clients * (federation.size(RoundOpened(attended=ROUND)) + federation.size(_make_report(phases)))
    for place, phase in enumerate(strategy.phases):
        plan = PhasePlan(phase, place, federation.clients, federation.servers, run.wire, CHUNK_BYTES)
        taking_part = len(plan.servers)
        copies = 2 * clients + taking_part - 1 if plan.compact else 2 * clients * taking_part
        chunks = max(1, -(-phases[phase.name] // (8 * copies * CHUNK_BYTES)))
        has_factors = "factors" in phases and phase is strategy.phases[-1]
        messages = _list_messages(plan, chunks=chunks, has_factors=has_factors)
        total += sum(count * (federation.size(body) + sealing) for count, body, sealing in messages)
    return total


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


def _make_report(phases: Mapping[str, int]) -> Message:
    traffic = tuple(Traffic(counts_as=name, direction="up", payload_bits=MANY) for name in phases)
    return RoundApplied(model_hmac=DIGEST, traffic=traffic)


def _list_messages(plan: PhasePlan, *, chunks: int, has_factors: bool) -> Iterator[tuple[int, Message, int]]:
    """Yield the messages of a phase: how many there are, one of them, and the bytes that sealing adds to each."""
    phase, servers = plan.phase, plan.servers
    vectors = (
        VectorClaim(name=phase.name, length=MANY, modulus=11),
        *([VectorClaim(name="factors", length=1, modulus=2**32)] if has_factors else []),
        *([VectorClaim(name="tags", length=3, modulus=2**64)] if phase.tagged else []),
    )
    members, count = plan.clients, len(plan.clients)
    claim: dict[str, Any] = {"vectors": vectors, "transcript": DIGEST}
    share = {"set_id": SET_ID, **claim}
    released = {"members": members, **claim}
    sets = tuple(ReceivedSet(client=client, set_id=SET_ID) for client in members)
    receipts = tuple(
        SignedReceipt(
            receipt=Receipt(aggregator=server, sets=sets, **claim),
            # No two are alike, or they would be sent as one.
            signature=f"{place:0128x}",
        )
        for place, server in enumerate(servers)
    )
    row = Traffic(counts_as=phase.name, direction="across", payload_bits=MANY, wire_bytes=MANY)
    traffic = (row,) * (1 + len(vectors))
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
    yield len(servers), SetReceived(receipt=receipts[0]), 0
    yield len(servers), ClosePhase(members=members, receipts=receipts), 0
    yield len(servers), PhaseReleased(members=members, vectors=vectors, traffic=traffic), 0
