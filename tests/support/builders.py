"""Small valid things for tests; every argument replaces one default."""

from collections.abc import Sequence

from hubbub.errors import RejectReason
from hubbub.ids import PartyId, RunId, SetId
from hubbub.messages.base import Message
from hubbub.messages.envelope import Envelope
from hubbub.messages.manifest import CohortMember, Manifest, default_min_clients
from hubbub.messages.rounds import (
    ClosePhase,
    OrderRefused,
    PhaseReleased,
    PhaseVoided,
    RoundApplied,
    RoundDropped,
    RoundOpened,
    VoidPhase,
)
from hubbub.messages.runs import PartyFailed, RunEnded, RunJoined, RunProposed, RunRefused
from hubbub.messages.shares import Receipt, SetReceived, SetRefused, ShareChunk, VectorClaim, declare
from hubbub.messages.sums import SumChunk, VoidNotice
from hubbub.messages.traffic import Traffic
from hubbub.protocol.layout import Vector

COORDINATOR = PartyId("coordinator")
SET_ID = SetId("5e" * 16)
MESSAGE_ID = "1d" * 16


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
    fields: dict[str, object] = {
        "cohort": make_cohort(client_names(clients)),
        "aggregators": aggregator_names(servers),
        "coordinator": COORDINATOR,
        "min_clients": default_min_clients(clients),
        "strategy": "no-union",
        "rho": 0.1,
        "parameters": 100,
        "task": "synthetic",
        "local_steps": 2,
        "rounds": 2,
        "seed": 7,
        "initial_model_sha256": "0" * 64,
        "nonce": "0" * 32,
    }
    return Manifest.model_validate({**fields, **overrides})


def make_vectors(manifest: Manifest) -> tuple[Vector, ...]:
    """The vectors of the phase `signs` of no-union."""
    parameters = manifest.protocol_parameters
    return (
        Vector("signs", parameters.parameters, parameters.signs_modulus),
        Vector("factors", 1, parameters.factors_modulus),
    )


def make_claims(manifest: Manifest) -> tuple[VectorClaim, ...]:
    return declare(make_vectors(manifest))


def make_receipt(
    manifest: Manifest, *, aggregator: PartyId | None = None, client: PartyId | None = None, set_id: SetId = SET_ID
) -> Receipt:
    return Receipt(
        aggregator=aggregator or manifest.aggregators[0],
        client=client or manifest.clients[0],
        set_id=set_id,
        vectors=make_claims(manifest),
    )


def make_envelope(
    body: Message,
    *,
    sender: PartyId,
    recipient: PartyId,
    manifest: Manifest | None = None,
    run: RunId | None = None,
    round_number: int = 1,
    phase: str = "",
    message_id: str = MESSAGE_ID,
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
        message_id=message_id,
        body=body,
        payload=payload,
        signature=signature,
    )


def make_bodies(manifest: Manifest | None = None) -> tuple[Message, ...]:
    """One message of every kind."""
    manifest = manifest or make_manifest()
    claims, receipt = make_claims(manifest), make_receipt(manifest)
    traffic = (Traffic(counts_as="signs", direction="up", payload_bits=300, wire_bytes=412),)
    return (
        RunProposed(manifest=manifest),
        RunJoined(),
        RunRefused(reason="the task is not installed here"),
        RunEnded(outcome="completed", reason="all rounds are done"),
        PartyFailed(reason="the disk is full"),
        RoundOpened(),
        ClosePhase(members=manifest.clients, receipts=(receipt,)),
        VoidPhase(reason="too few members"),
        PhaseReleased(members=manifest.clients, vectors=claims, traffic=traffic),
        PhaseVoided(),
        OrderRefused(reason=RejectReason.TOO_FEW_MEMBERS, explanation="1 of 3 organisations"),
        RoundApplied(correct=90, total=100, loss=0.25, training_s=1.5, evaluation_s=0.5, traffic=traffic),
        RoundDropped(training_s=1.5, traffic=()),
        ShareChunk(set_id=SET_ID, vectors=claims, index=0),
        SetReceived(receipt=receipt),
        SetRefused(client=manifest.clients[0], set_id=SET_ID, reason=RejectReason.WRONG_LENGTH),
        SumChunk(members=manifest.clients, vectors=claims, index=0),
        VoidNotice(reason="ordered by the coordinator"),
    )
