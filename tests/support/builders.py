"""Small valid things for tests; every argument replaces one default."""

import hashlib
from collections.abc import Mapping, Sequence

from hubbub.crypto.sealing import Kem, SealingKey
from hubbub.errors import Code, RejectReason
from hubbub.ids import PartyId, RunId, SetId, is_party_id
from hubbub.messages.envelope import Envelope, Message
from hubbub.messages.manifest import CohortMember, Manifest, default_min_clients
from hubbub.messages.rounds import (
    ClosePhase,
    MaskedChunk,
    OrderRefused,
    PartialChunk,
    PhaseReleased,
    PhaseVoided,
    RoundApplied,
    RoundDropped,
    RoundOpened,
    RoundScored,
    ScoreClaim,
    SumChunk,
    VoidNotice,
    VoidPhase,
)
from hubbub.messages.runs import (
    GroupConfirmed,
    GroupContribution,
    PartyFailed,
    RunEnded,
    RunJoined,
    RunKey,
    RunKeys,
    RunProposed,
    RunReady,
    RunRefused,
)
from hubbub.messages.shares import (
    DenseShareChunk,
    Receipt,
    ReceivedSet,
    ResendSet,
    SetReceived,
    SetRefused,
    ShareChunk,
    ShareSeed,
    Traffic,
    VectorClaim,
    declare,
)
from hubbub.messages.snapshots import ModelVouched, SnapshotChunk, SnapshotRequested, Voucher
from hubbub.protocol.layout import Vector
from hubbub.trust.signed import sign_run_key
from support.frames import know
from support.parties import COORDINATOR, identity_of, make_parties, sign_receipts

SET_ID = SetId("5e" * 16)
TRANSCRIPT = "7a" * 32
WRAPPED_KEY = "3b" * 80
SIGNATURE = "5a" * 64
MODEL_HMAC = "4d" * 32


def client_names(count: int) -> tuple[PartyId, ...]:
    return tuple(PartyId(f"client-{number}") for number in range(1, count + 1))


def aggregator_names(count: int) -> tuple[PartyId, ...]:
    return tuple(PartyId(f"aggregator-{number}") for number in range(1, count + 1))


def make_cohort(clients: Sequence[PartyId]) -> tuple[CohortMember, ...]:
    """Every client is an organisation of its own."""
    return tuple(
        CohortMember(name=name, organisation=PartyId(f"org-{number}")) for number, name in enumerate(clients, 1)
    )


def make_manifest(*, clients: int = 3, servers: int = 2, **overrides: object) -> Manifest:
    """`clients` and `servers` are counts; every other argument is a field of the manifest."""
    cohort, aggregators = make_cohort(client_names(clients)), aggregator_names(servers)
    fields: dict[str, object] = {
        "cohort": cohort,
        "aggregators": aggregators,
        "coordinator": COORDINATOR,
        "roster_sha256": _roster_digest(
            overrides.get("cohort", cohort),
            overrides.get("aggregators", aggregators),
            overrides.get("coordinator", COORDINATOR),
        ),
        "min_clients": default_min_clients(clients),
        "strategy": "no-union",
        # Where every aggregator gets and sends the same, as most tests that act as one have it.
        "wire": "paper",
        "rho": 0.1,
        "parameters": 100,
        "task": "synthetic",
        "local_steps": 2,
        "rounds": 2,
        "seed": 7,
        "initial_model_sha256": "0" * 64,
        "nonce": "0" * 32,
    }
    return know(Manifest.model_validate({**fields, **overrides}))


def _roster_digest(cohort: object, aggregators: object, coordinator: object) -> str:
    """Of the roster that `parties_of` makes; of none where a test's parties make no roster."""
    if not isinstance(cohort, tuple) or not isinstance(aggregators, tuple) or not isinstance(coordinator, str):
        return "0" * 64
    members = tuple((member.name, member.organisation) for member in cohort)
    names = [*(name for name, _ in members), *aggregators, coordinator]
    if len(set(names)) != len(names) or not all(map(is_party_id, names)):
        return "0" * 64
    return make_parties(members, aggregators, PartyId(coordinator)).roster.digest


def make_vectors(manifest: Manifest) -> tuple[Vector, ...]:
    """The vectors of the phase `signs` of no-union."""
    parameters = manifest.protocol_parameters
    return (
        Vector("signs", parameters.model_size, parameters.signs_modulus),
        Vector("factors", 1, parameters.factors_modulus),
        *([Vector("tags", 3, 2**64)] if manifest.verified else []),
    )


def make_claims(manifest: Manifest) -> tuple[VectorClaim, ...]:
    return declare(make_vectors(manifest))


def make_receipt(
    manifest: Manifest,
    *,
    aggregator: PartyId | None = None,
    client: PartyId | None = None,
    set_id: SetId = SET_ID,
    sets: Mapping[PartyId, SetId] | None = None,
    transcript: str = TRANSCRIPT,
) -> Receipt:
    """Of one client's set, or of several."""
    return Receipt(
        transcript=transcript,
        aggregator=aggregator or manifest.aggregators[0],
        sets=name_sets(sets or {client or manifest.clients[0]: set_id}),
        vectors=make_claims(manifest),
    )


def name_sets(sets: Mapping[PartyId, SetId]) -> tuple[ReceivedSet, ...]:
    return tuple(ReceivedSet(client=client, set_id=set_id) for client, set_id in sets.items())


def make_sum_chunk(
    manifest: Manifest, *, vectors: tuple[VectorClaim, ...] | None = None, index: int = 0
) -> SumChunk:
    """A chunk of a sum over all clients, with a signature that nobody made."""
    return SumChunk(
        members=manifest.clients,
        vectors=vectors or make_claims(manifest),
        transcript=TRANSCRIPT,
        signature=SIGNATURE,
        wrapped_key=WRAPPED_KEY,
        index=index,
    )


def make_run_key(manifest: Manifest, party: PartyId | None = None) -> RunKey:
    """A signed run key whose public part follows from the party's name, so that it is the same every time."""
    name = party or manifest.clients[0]
    public = SealingKey.from_bytes(Kem.X25519, hashlib.sha256(f"run key {name}".encode()).digest()).public
    return sign_run_key(identity_of(manifest, name), manifest.run_id, Kem.X25519, public)


def make_envelope(
    body: Message,
    *,
    sender: PartyId,
    recipient: PartyId,
    manifest: Manifest | None = None,
    run: RunId | None = None,
    round_number: int = 1,
    phase: str = "",
    payload: bytes = b"",
    signature: bytes = b"",
) -> Envelope:
    """An envelope of `run`, or of the manifest's run."""
    return Envelope(
        run=run or (manifest or make_manifest()).run_id,
        round=round_number,
        phase=phase,
        sender=sender,
        recipient=recipient,
        body=body,
        payload=payload,
        signature=signature,
    )


def make_bodies(manifest: Manifest | None = None) -> tuple[Message, ...]:
    """One message of every kind."""
    manifest = manifest or make_manifest()
    claims = make_claims(manifest)
    (receipt,) = sign_receipts(manifest, [make_receipt(manifest)])
    run_key = make_run_key(manifest)
    traffic = (Traffic(counts_as="signs", direction="up", payload_bits=300, wire_bytes=412),)
    return (
        RunProposed(manifest=manifest),
        RunJoined(run_key=run_key),
        RunRefused(code=Code.PROTOCOL_TASK),
        RunEnded(outcome="completed", reason="all rounds are done"),
        PartyFailed(code=Code.DISK_FAILED),
        RunKeys(keys=(run_key,)),
        GroupContribution(),
        GroupConfirmed(confirmation="c0" * 32),
        RunReady(),
        RoundOpened(),
        ClosePhase(members=manifest.clients, receipts=(receipt,)),
        VoidPhase(),
        PhaseReleased(members=manifest.clients, vectors=claims, traffic=traffic),
        PhaseVoided(),
        OrderRefused(reason=RejectReason.TOO_FEW_MEMBERS),
        RoundApplied(
            model_hmac=MODEL_HMAC,
            traffic=traffic,
        ),
        RoundScored(scores=(ScoreClaim(name="accuracy", value=0.9),), traffic=traffic),
        RoundDropped(traffic=()),
        ShareChunk(set_id=SET_ID, vectors=claims, transcript=TRANSCRIPT, index=0),
        DenseShareChunk(set_id=SET_ID, vectors=claims, transcript=TRANSCRIPT, index=0),
        ShareSeed(set_id=SET_ID, vectors=claims, transcript=TRANSCRIPT),
        PartialChunk(
            members=manifest.clients, vectors=claims, transcript=TRANSCRIPT, signature=SIGNATURE, index=0
        ),
        MaskedChunk(
            members=manifest.clients,
            vectors=claims,
            transcript=TRANSCRIPT,
            signatures=(SIGNATURE, "5b" * 64),
            index=0,
        ),
        SetReceived(receipt=receipt),
        SetRefused(client=manifest.clients[0], set_id=SET_ID, reason=RejectReason.WRONG_LENGTH),
        make_sum_chunk(manifest, vectors=claims),
        VoidNotice(),
        SnapshotRequested(after=1, giver=manifest.clients[1]),
        ModelVouched(vouchers=(Voucher(round=2, released=1, model_hmac=MODEL_HMAC),)),
        SnapshotChunk(index=0),
        ResendSet(set_id=SET_ID),
    )
