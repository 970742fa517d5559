"""Going on from the model of a run that is completed: what its clients sign, and what a successor must show.

A model is not named by its plain digest, which would tell who guesses it right. The commitment is of a salt, which
follows from the clients' group secret and which no server has, followed by the model.
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
from hubbub.trust.roster import Roster
from hubbub.trust.signed import check_signature

DOMAIN = "succession"


class EndorsedModel(Claim):
    """What a client says of the model that its run ended with; it may be shown to anybody."""

    run: Digest
    cohort: tuple[CohortMember, ...]
    min_clients: Count
    commitment: Digest
    seed: int
    """The run's: what is frozen in a model may follow from it, so a successor keeps it."""
    endorsement: Endorsement


def endorse(identity: Identity, manifest: Manifest, commitment: str) -> EndorsedModel:
    """Sign the model that a run of ours ended with."""
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
    """The commitment that clients of one run agree on, and what a successor's manifest says of that run."""
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
    try:
        return EndorsedModel.model_validate_json(path.read_bytes())
    except OSError as error:
        raise ConfigurationError(f"the endorsement {path} cannot be read: {error.strerror}") from None
    except ValidationError as error:
        raise ConfigurationError(f"{path} is not an endorsement: {describe(error)}") from None


def find_unendorsed(manifest: Manifest, roster: Roster) -> tuple[str, ...]:
    """Which endorsements of a successor's manifest are not what their clients signed."""
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
    """Organisations are counted, so the word of those who sign is not taken for their own."""
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
