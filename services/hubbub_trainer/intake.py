"""Messages to events: what a claim becomes once the manifest allows it."""

from __future__ import annotations

from hubbub.errors import PeerError, RejectReason
from hubbub.messages.envelope import Envelope
from hubbub.messages.manifest import Manifest
from hubbub.messages.sums import SumChunk
from hubbub.messages.traffic import share_wire_bytes
from hubbub.protocol.layout import check_payload, plan_chunks
from hubbub.strategies.base import Phase
from hubbub.strategies.registry import find_strategy
from hubbub_trainer.events import SumArrived, VoidAnnounced


def read_sum(manifest: Manifest, envelope: Envelope, body: SumChunk, size: int) -> SumArrived:
    """Check a chunk of a sum: its phase, its members, its vectors, its length."""
    phase = _find_phase(manifest, envelope)
    if envelope.sender not in phase.aggregators(manifest.aggregators):
        raise PeerError(RejectReason.WRONG_SENDER, f"{envelope.sender} takes no part in {envelope.phase}")
    members = frozenset(body.members)
    if not members <= set(manifest.clients) or len(members) != len(body.members):
        raise PeerError(RejectReason.NOT_IN_COHORT, "the members are not distinct clients of the cohort")
    if manifest.organisations_of(members) < manifest.min_clients:
        raise PeerError(
            RejectReason.TOO_FEW_MEMBERS,
            f"a sum over {len(members)} members is not for release: the manifest asks for {manifest.min_clients}",
        )
    vectors = tuple(claim.vector for claim in body.vectors)
    strategy = find_strategy(manifest.strategy)
    strategy.admit_release(manifest.protocol_parameters, envelope.phase, vectors)
    plan = plan_chunks(vectors, manifest.chunk_bytes)
    sizes = check_payload(plan, vectors, body.index, envelope.payload)
    return SumArrived(
        phase=envelope.phase,
        aggregator=envelope.sender,
        members=members,
        vectors=vectors,
        index=body.index,
        chunks=len(plan),
        wire_bytes=share_wire_bytes(sizes, size),
    )


def read_void(manifest: Manifest, envelope: Envelope) -> VoidAnnounced:
    """Check which phase is said to be void; that ends the round, so every aggregator says it."""
    _find_phase(manifest, envelope)
    return VoidAnnounced(phase=envelope.phase, aggregator=envelope.sender)


def _find_phase(manifest: Manifest, envelope: Envelope) -> Phase:
    for phase in find_strategy(manifest.strategy).phases:
        if phase.name == envelope.phase:
            return phase
    raise PeerError(RejectReason.UNKNOWN_PHASE, f"the strategy has no phase {envelope.phase!r}")
