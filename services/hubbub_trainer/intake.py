"""Messages to events: what a claim becomes once the manifest allows it."""

from __future__ import annotations

from hubbub.crypto.sealing import SUM_OVERHEAD, Kem, seal_overhead
from hubbub.errors import PeerError, RejectReason
from hubbub.messages.envelope import Envelope
from hubbub.messages.keys import GroupConfirmed, GroupContribution, RunKeys
from hubbub.messages.manifest import Manifest
from hubbub.messages.rounds import RoundOpened
from hubbub.messages.runs import RunEnded
from hubbub.messages.snapshots import ModelVouched, SnapshotChunk, SnapshotRequested
from hubbub.messages.sums import SumChunk
from hubbub.messages.traffic import share_wire_bytes
from hubbub.protocol.layout import check_payload, plan_chunks
from hubbub.strategies.base import Phase
from hubbub.strategies.registry import find_strategy
from hubbub.trust.roster import Roster
from hubbub.trust.signed import check_run_keys, digest_run_keys
from hubbub_trainer.events import (
    ContributionArrived,
    Ended,
    KeysArrived,
    PeerConfirmed,
    PeerVouched,
    RoundOrdered,
    SnapshotArrived,
    SnapshotAsked,
    SumArrived,
    VoidAnnounced,
)
from hubbub_trainer.snapshots import chunk_size


def read_about_run(roster: Roster, manifest: Manifest, envelope: Envelope, now_s: float) -> object:
    """Read what is for the machine of a run."""
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
            return PeerConfirmed(client=envelope.sender, confirmation=confirmation)
        case RoundOpened():
            return RoundOrdered(number=envelope.round)
        case SnapshotRequested():
            return read_request(envelope, body)
    raise PeerError(RejectReason.UNEXPECTED, f"a trainer takes no {envelope.kind}")


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
    sizes = check_payload(plan, vectors, body.index, len(envelope.payload) - SUM_OVERHEAD)
    return SumArrived(
        phase=envelope.phase,
        aggregator=envelope.sender,
        members=members,
        vectors=vectors,
        wrapped_key=bytes.fromhex(body.wrapped_key),
        index=body.index,
        chunks=len(plan),
        wire_bytes=share_wire_bytes(sizes, size),
    )


def read_void(manifest: Manifest, envelope: Envelope) -> VoidAnnounced:
    """Check which phase is said to be void; that ends the round, so every aggregator says it."""
    _find_phase(manifest, envelope)
    return VoidAnnounced(phase=envelope.phase, aggregator=envelope.sender)


def read_request(envelope: Envelope, body: SnapshotRequested) -> SnapshotAsked:
    """Read who has lost sums."""
    return SnapshotAsked(client=envelope.sender, after=body.after, giver=body.giver)


def read_vouchers(envelope: Envelope, body: ModelVouched) -> PeerVouched:
    """Check that a peer vouches once for each round."""
    if len({voucher.round for voucher in body.vouchers}) < len(body.vouchers):
        raise PeerError(RejectReason.CONTRADICTION, f"{envelope.sender} vouches twice for one round")
    return PeerVouched(client=envelope.sender, vouchers=body.vouchers)


def read_snapshot(manifest: Manifest, kem: Kem, envelope: Envelope, body: SnapshotChunk) -> SnapshotArrived:
    """Check the place and the length of a snapshot's chunk."""
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


def _find_phase(manifest: Manifest, envelope: Envelope) -> Phase:
    for phase in find_strategy(manifest.strategy).phases:
        if phase.name == envelope.phase:
            return phase
    raise PeerError(RejectReason.UNKNOWN_PHASE, f"the strategy has no phase {envelope.phase!r}")
