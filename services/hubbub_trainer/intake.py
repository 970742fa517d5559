"""Messages to events: what a claim becomes once the manifest allows it."""

from __future__ import annotations

from hubbub.errors import PeerError, RejectReason
from hubbub.messages.envelope import Envelope
from hubbub.messages.manifest import Manifest
from hubbub.messages.sums import SumChunk
from hubbub.messages.traffic import share_wire_bytes
from hubbub.protocol.layout import chunk_payload_bytes, plan_chunks
from hubbub.strategies.registry import find_strategy
from hubbub_trainer.events import SumArrived, VoidAnnounced


def read_sum(manifest: Manifest, envelope: Envelope, body: SumChunk, size: int) -> SumArrived:
    """Check a chunk of a sum: its phase, its members, its vectors, its length."""
    _check_phase(manifest, envelope)
    members = frozenset(body.members)
    if not members <= set(manifest.clients) or len(members) != len(body.members):
        raise PeerError(RejectReason.NOT_IN_COHORT, "the members are not distinct clients of the cohort")
    if manifest.organisations_of(members) < manifest.min_clients:
        raise PeerError(
            RejectReason.TOO_FEW_MEMBERS,
            f"a sum over {len(members)} members is not for release: the manifest asks for {manifest.min_clients}",
        )
    vectors = tuple(claim.vector for claim in body.vectors)
    find_strategy(manifest.strategy).admit(manifest.protocol_parameters, envelope.phase, vectors)
    plan = plan_chunks(vectors, manifest.chunk_bytes)
    if body.index >= len(plan):
        raise PeerError(RejectReason.WRONG_LENGTH, f"there is no chunk {body.index} among {len(plan)}")
    sizes = chunk_payload_bytes(plan[body.index], vectors)
    if len(envelope.payload) != sum(sizes.values()):
        raise PeerError(
            RejectReason.WRONG_LENGTH,
            f"chunk {body.index} holds {len(envelope.payload)} bytes where it needs {sum(sizes.values())}",
        )
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
    """Check which phase is said to be void."""
    _check_phase(manifest, envelope)
    return VoidAnnounced(phase=envelope.phase, aggregator=envelope.sender)


def _check_phase(manifest: Manifest, envelope: Envelope) -> None:
    if envelope.phase not in [phase.name for phase in find_strategy(manifest.strategy).phases]:
        raise PeerError(RejectReason.UNKNOWN_PHASE, f"the strategy has no phase {envelope.phase!r}")
