"""Checks incoming messages against the manifest and turns them into events."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from hubbub.crypto.sealing import Kem, seal_overhead, share_overhead
from hubbub.crypto.stream import KEY_BYTES as SEED_BYTES
from hubbub.errors import PeerError, RejectReason
from hubbub.ids import PartyId
from hubbub.messages.envelope import Envelope
from hubbub.messages.manifest import Manifest
from hubbub.messages.rounds import ClosePhase, PartialChunk, ReleaseClaim
from hubbub.messages.shares import DenseShareChunk, ShareChunk, ShareSeed, SignedReceipt, share_wire_bytes
from hubbub.protocol.layout import Vector, check_payload
from hubbub.runtime.message_checks import check_members
from hubbub.strategies.phase_plan import PhasePlan, admit, plan_phase
from hubbub.trust.roster import Roster
from hubbub.trust.signed import check_receipt, check_release
from hubbub_aggregator.events import ChunkArrived, CloseOrdered, PartialArrived


def read_share(
    me: PartyId,
    manifest: Manifest,
    kem: Kem,
    envelope: Envelope,
    body: ShareChunk | ShareSeed,
    *,
    size: int,
    at_s: float,
) -> ChunkArrived:
    """Check a chunk of a share set, or the seed of a whole one: its form, its vectors, its length."""
    wire = plan_phase(manifest, envelope.phase)
    if me not in wire.servers:
        raise PeerError(RejectReason.UNKNOWN_PHASE, f"{me} takes no part in {envelope.phase}")
    _check_form(me, wire, envelope)
    vectors = tuple(claim.vector for claim in body.vectors)
    admit(manifest, envelope.phase, vectors)
    index, chunks, sizes = _measure(wire, kem, body, vectors, len(envelope.payload))
    return ChunkArrived(
        client=envelope.sender,
        set_id=body.set_id,
        vectors=vectors,
        weight=body.weight,
        transcript=body.transcript,
        index=index,
        chunks=chunks,
        wire_bytes=share_wire_bytes(sizes, size),
        at_s=at_s,
        seed=envelope.payload if isinstance(body, ShareSeed) else b"",
    )


def _check_form(me: PartyId, wire: PhasePlan, envelope: Envelope) -> None:
    """Refuse a share of the wrong form: on the compact wire one aggregator gets it in full, all others a seed."""
    expected: type[ShareChunk | ShareSeed] = ShareChunk
    if wire.compact:
        full = wire.full_share_holder(envelope.sender, envelope.round) == me
        expected = DenseShareChunk if full else ShareSeed
    if type(envelope.body) is not expected:
        raise PeerError(
            RejectReason.UNEXPECTED, f"{envelope.sender} owes {me} a {expected.kind} here, not a {envelope.kind}"
        )


def _measure(
    wire: PhasePlan, kem: Kem, body: ShareChunk | ShareSeed, vectors: Sequence[Vector], size: int
) -> tuple[int, int, dict[str, int]]:
    """Check a payload's length; return the chunk's index, the number of chunks, and its bytes by category."""
    if isinstance(body, ShareChunk):
        plan, overhead = wire.plan(vectors), share_overhead(kem)
        sizes = check_payload(plan, vectors, body.index, size, wire.encoding, overhead=overhead)
        return body.index, len(plan), sizes
    sealed = SEED_BYTES + seal_overhead(kem)
    if size != sealed:
        raise PeerError(RejectReason.WRONG_LENGTH, f"a sealed seed has {sealed} bytes, not {size}")
    return 0, 1, {vectors[0].counts_as: SEED_BYTES}


def read_partial(
    me: PartyId, manifest: Manifest, roster: Roster, envelope: Envelope, body: PartialChunk, size: int
) -> PartialArrived:
    """Check a chunk of another aggregator's sum.

    Only the combiner takes one. Its release has a signature of its own, which the combiner passes on to clients.
    """
    wire = plan_phase(manifest, envelope.phase)
    if not wire.compact or me != wire.combiner(envelope.round) or envelope.sender not in wire.servers:
        raise PeerError(RejectReason.UNEXPECTED, f"{me} combines no sum of {envelope.sender} in this phase")
    vectors = tuple(claim.vector for claim in body.vectors)
    admit(manifest, envelope.phase, vectors)
    check_members(manifest, body.members)
    release = ReleaseClaim(
        aggregator=envelope.sender, members=body.members, vectors=body.vectors, transcript=body.transcript
    )
    check_release(roster, envelope.run, envelope.round, envelope.phase, release, body.signature)
    plan = wire.plan(vectors)
    sizes = check_payload(
        plan, vectors, body.index, len(envelope.payload), wire.encoding, overhead=seal_overhead(roster.kem)
    )
    return PartialArrived(
        aggregator=envelope.sender,
        members=body.members,
        vectors=vectors,
        transcript=body.transcript,
        signature=body.signature,
        index=body.index,
        chunks=len(plan),
        wire_bytes=share_wire_bytes(sizes, size),
    )


def read_order(
    roster: Roster, envelope: Envelope, body: ClosePhase, ours: Collection[SignedReceipt] = ()
) -> CloseOrdered:
    """Check every receipt's signature in an order to close a phase: the receipts are its proof.

    Receipts in `ours` are skipped: this process signed them itself, for this phase.
    """
    for signed in body.receipts:
        if signed not in ours:
            check_receipt(roster, envelope.run, envelope.round, envelope.phase, signed)
    receipts = tuple(signed.receipt for signed in body.receipts)
    return CloseOrdered(members=body.members, receipts=receipts)
