"""Checks incoming messages against the manifest and turns them into events."""

from __future__ import annotations

from hubbub.crypto.sealing import CHUNK_OVERHEAD, Kem, seal_overhead
from hubbub.errors import PeerError, RejectReason
from hubbub.ids import PartyId
from hubbub.messages.envelope import Envelope
from hubbub.messages.manifest import Manifest
from hubbub.messages.rounds import MaskedChunk, ReleaseClaim, RoundOpened, SumChunk
from hubbub.messages.runs import GroupConfirmed, GroupContribution, RunEnded, RunKeys
from hubbub.messages.shares import share_wire_bytes
from hubbub.messages.snapshots import ModelVouched, SnapshotChunk, SnapshotRequested
from hubbub.protocol import weights
from hubbub.protocol.layout import check_payload
from hubbub.runtime.message_checks import check_members
from hubbub.strategies.phase_plan import admit_release, plan_phase
from hubbub.trust.roster import Roster
from hubbub.trust.signed import check_release, check_run_keys, digest_run_keys
from hubbub_trainer.events import (
    ContributionArrived,
    Ended,
    KeysArrived,
    PeerConfirmed,
    PeerVouched,
    RoundOrdered,
    SetAskedFor,
    SnapshotArrived,
    SnapshotAsked,
    SumArrived,
    VoidAnnounced,
)
from hubbub_trainer.snapshots import chunk_size


def read_about_run(roster: Roster, manifest: Manifest, envelope: Envelope, now_s: float) -> object:
    """Read a message for the machine of a run."""
    body = envelope.body
    match body:
        case RunEnded(outcome=outcome, last_round=last_round):
            return Ended(outcome=outcome, at_s=now_s, last_round=last_round)
        case RunKeys():
            publics = check_run_keys(roster, manifest, body)
            return KeysArrived(publics=publics, keys_sha256=digest_run_keys(envelope.run, publics))
        case GroupContribution():
            return ContributionArrived(client=envelope.sender)
        case GroupConfirmed(confirmation=confirmation):
            return PeerConfirmed(
                client=envelope.sender,
                confirmation=confirmation,
                samples=_read_samples(manifest, envelope),
            )
        case RoundOpened(attended=attended):
            return RoundOrdered(number=envelope.round, attended=attended)
        case SnapshotRequested(after=after, giver=giver):
            return SnapshotAsked(client=envelope.sender, after=after, giver=giver)
    raise PeerError(RejectReason.UNEXPECTED, f"a trainer takes no {envelope.kind}")


def _read_samples(manifest: Manifest, envelope: Envelope) -> int | None:
    """Read a peer's masked sum of shares; there is none unless updates are weighed by samples."""
    expected = weights.SHARE_BYTES if manifest.weights == "samples" else 0
    if len(envelope.payload) != expected:
        raise PeerError(
            RejectReason.WRONG_LENGTH,
            f"{envelope.kind} has {len(envelope.payload)} bytes of samples, and should have {expected}",
        )
    return int.from_bytes(envelope.payload, "big") if expected else None


def read_sum(
    roster: Roster, manifest: Manifest, envelope: Envelope, body: SumChunk | MaskedChunk, size: int, now_s: float
) -> SumArrived:
    """Check a chunk of a sum: its phase, sender, members, vectors and length, and the signed releases.

    On the paper's wire each aggregator signs and sends its own sum. On the compact wire the combiner sends that of
    all, and every aggregator has signed its release.
    """
    wire = plan_phase(manifest, envelope.phase)
    masked = isinstance(body, MaskedChunk)
    if wire.compact is not masked or envelope.sender not in wire.releasers(envelope.round):
        raise PeerError(
            RejectReason.WRONG_SENDER, f"{envelope.sender} sends no {envelope.kind} of {envelope.phase}"
        )
    if isinstance(body, MaskedChunk):
        signers, signatures = wire.servers, body.signatures
        overhead, wrapped_key = 0, b""
    else:
        signers, signatures = (envelope.sender,), (body.signature,)
        overhead, wrapped_key = CHUNK_OVERHEAD, bytes.fromhex(body.wrapped_key)
    if len(signatures) != len(signers):
        raise PeerError(RejectReason.BAD_SIGNATURE, f"{len(signatures)} signatures where {len(signers)} release")
    for server, signature in zip(signers, signatures, strict=True):
        release = ReleaseClaim(
            aggregator=server, members=body.members, vectors=body.vectors, transcript=body.transcript
        )
        check_release(roster, envelope.run, envelope.round, envelope.phase, release, signature)
    members = check_members(manifest, body.members)
    wire.check_members(members)
    vectors = tuple(claim.vector for claim in body.vectors)
    admit_release(manifest, envelope.phase, vectors)
    plan = wire.plan(vectors)
    sizes = check_payload(plan, vectors, body.index, len(envelope.payload), wire.encoding, overhead=overhead)
    return SumArrived(
        phase=envelope.phase,
        aggregator=envelope.sender,
        members=members,
        vectors=vectors,
        transcript=body.transcript,
        wrapped_key=wrapped_key,
        index=body.index,
        chunks=len(plan),
        wire_bytes=share_wire_bytes(sizes, size),
        at_s=now_s,
    )


def read_void(manifest: Manifest, envelope: Envelope) -> VoidAnnounced:
    """Check the phase of a void notice. A void ends the round, so every aggregator announces it."""
    plan_phase(manifest, envelope.phase)
    return VoidAnnounced(phase=envelope.phase, aggregator=envelope.sender)


def read_resend(me: PartyId, manifest: Manifest, envelope: Envelope) -> SetAskedFor:
    """Check that an aggregator that asks for a set again was sent a full share: a seed is not spooled."""
    wire = plan_phase(manifest, envelope.phase)
    if envelope.sender not in wire.servers:
        raise PeerError(RejectReason.WRONG_SENDER, f"{envelope.sender} takes no part in {envelope.phase}")
    if wire.compact and wire.full_share_holder(me, envelope.round) != envelope.sender:
        raise PeerError(RejectReason.UNEXPECTED, f"{envelope.sender} was sent a seed, and no share")
    return SetAskedFor(phase=envelope.phase, aggregator=envelope.sender)


def read_vouchers(envelope: Envelope, body: ModelVouched) -> PeerVouched:
    """Check that a peer vouches once for each round."""
    if len({voucher.round for voucher in body.vouchers}) < len(body.vouchers):
        raise PeerError(RejectReason.CONTRADICTION, f"{envelope.sender} vouches twice for one round")
    return PeerVouched(client=envelope.sender, vouchers=body.vouchers)


def read_snapshot(manifest: Manifest, kem: Kem, envelope: Envelope, body: SnapshotChunk) -> SnapshotArrived:
    """Check the round and the length of a snapshot's chunk."""
    first = 1 if manifest.predecessor is None else 0
    if not first <= envelope.round <= manifest.rounds + manifest.max_void_rounds:
        raise PeerError(RejectReason.OVER, f"the manifest has no round {envelope.round} to have a snapshot of")
    expected = chunk_size(manifest, envelope.round, body.index) + seal_overhead(kem)
    if len(envelope.payload) != expected:
        raise PeerError(
            RejectReason.WRONG_LENGTH,
            f"chunk {body.index} of a snapshot has {len(envelope.payload)} bytes, and should have {expected}",
        )
    return SnapshotArrived(client=envelope.sender, number=envelope.round, index=body.index)
