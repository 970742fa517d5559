"""Succession: a run that starts from the model of a completed run, which that run's clients endorse.

A model is not named by its plain digest, which would confirm a guess at it. The commitment is to a salt, which is
derived from the clients' group secret and which no server has, followed by the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from hubbub.crypto.signing import bind
from hubbub.errors import ConfigurationError, PeerError, RejectReason
from hubbub.ids import Role, RunId
from hubbub.messages.envelope import Claim
from hubbub.messages.manifest import (
    CohortMember,
    Count,
    Digest,
    Endorsement,
    Manifest,
    Predecessor,
    describe,
)
from hubbub.trust.identity import Identity
from hubbub.trust.roster import Roster, read_claim
from hubbub.trust.signed import check_signature

DOMAIN = "succession"


class EndorsedModel(Claim):
    """Endorsement of the model that a client's run ended with; it is not secret."""

    run: Digest
    cohort: tuple[CohortMember, ...]
    min_clients: Count
    commitment: Digest
    seed: int
    """Seed of the run: frozen parts of a model may depend on it, so a successor keeps it."""
    endorsement: Endorsement


def endorse(identity: Identity, manifest: Manifest, commitment: str) -> EndorsedModel:
    """Sign the commitment to the model that a run of ours ended with."""
    content = _content(manifest.run_id, manifest.cohort, manifest.min_clients, commitment)
    signature = identity.key.sign(DOMAIN, content).hex()
    return EndorsedModel(
        run=manifest.run_id,
        cohort=manifest.cohort,
        min_clients=manifest.min_clients,
        commitment=commitment,
        seed=manifest.seed,
        endorsement=Endorsement(client=identity.name, signature=signature),
    )


def _content(run: str, cohort: Sequence[CohortMember], min_clients: int, commitment: str) -> bytes:
    members = (part for member in cohort for part in (member.name, member.organisation))
    return bind(run, commitment, min_clients, len(cohort), *members)


def gather(endorsed: Sequence[EndorsedModel]) -> tuple[str, Predecessor]:
    """Return the commitment on which clients of one run agree, and the predecessor for a successor's manifest."""
    said = {(each.run, each.cohort, each.min_clients, each.commitment, each.seed) for each in endorsed}
    if len(said) != 1:
        raise ConfigurationError(
            f"the endorsements speak of {len(said)} different models or runs: take those of one run, one a client"
        )
    ((run, cohort, min_clients, commitment, _),) = said
    try:
        return commitment, Predecessor(
            run=RunId(run),
            cohort=cohort,
            min_clients=min_clients,
            endorsements=tuple(each.endorsement for each in endorsed),
        )
    except ValidationError as error:
        raise ConfigurationError(f"these endorsements are not enough: {describe(error)}") from None


def read_endorsement(path: Path) -> EndorsedModel:
    """Read the file that a trainer leaves when a run is completed."""
    return read_claim(path, EndorsedModel, "an endorsement")


def find_unendorsed(manifest: Manifest, roster: Roster) -> tuple[str, ...]:
    """Return complaints about endorsements of a successor's manifest that do not hold."""
    predecessor = manifest.predecessor
    if predecessor is None:
        return ()
    content = _content(predecessor.run, predecessor.cohort, predecessor.min_clients, manifest.initial_model_sha256)
    members = {member.name: member for member in predecessor.cohort}
    complaints = []
    for endorsement in predecessor.endorsements:
        try:
            _check_endorser(roster, members[endorsement.client])
            check_signature(roster, endorsement.client, bytes.fromhex(endorsement.signature), DOMAIN, content)
        except PeerError as error:
            complaints.append(f"the endorsement of {endorsement.client} does not hold: {error}")
    return tuple(complaints)


def _check_endorser(roster: Roster, member: CohortMember) -> None:
    """Raise `PeerError` if the roster has another role or organisation: organisations are counted."""
    party = roster.find(member.name)
    if party is None:
        raise PeerError(RejectReason.NOT_IN_ROSTER, f"{member.name} is not in the roster")
    if party.role is not Role.CLIENT:
        raise PeerError(
            RejectReason.WRONG_SENDER, f"{member.name} is {party.role.value} in the roster, not client"
        )
    if party.organisation != member.organisation:
        raise PeerError(
            RejectReason.CONTRADICTION,
            f"{member.name} belongs to {party.organisation} in the roster, and to {member.organisation} in the "
            "predecessor's cohort",
        )
