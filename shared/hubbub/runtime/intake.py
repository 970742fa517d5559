"""Checks that every service makes of a message before it believes it."""

from __future__ import annotations

from hubbub.errors import PeerError, RejectReason
from hubbub.ids import PartyId, Role
from hubbub.messages.envelope import Envelope
from hubbub.messages.manifest import Manifest
from hubbub.trust.roster import Roster
from hubbub.trust.succession import find_unendorsed


def role_of(manifest: Manifest, name: PartyId) -> Role | None:
    """What the manifest says that this party is."""
    if name in manifest.clients:
        return Role.CLIENT
    if name in manifest.aggregators:
        return Role.AGGREGATOR
    return Role.COORDINATOR if name == manifest.coordinator else None


def check_sender(manifest: Manifest, envelope: Envelope) -> None:
    """Refuse what this sender has no part to say in this run."""
    if role_of(manifest, envelope.sender) not in envelope.body.senders:
        raise PeerError(
            RejectReason.WRONG_SENDER, f"{envelope.sender} has no part in this run that sends {envelope.kind}"
        )


def check_members(manifest: Manifest, named: tuple[PartyId, ...]) -> frozenset[PartyId]:
    """Refuse a sum that is not over distinct clients of the cohort, of enough organisations."""
    members = frozenset(named)
    if len(members) != len(named) or not members <= set(manifest.clients):
        raise PeerError(RejectReason.NOT_IN_COHORT, "the members are not distinct clients of the cohort")
    if manifest.organisations_of(members) < manifest.min_clients:
        raise PeerError(
            RejectReason.TOO_FEW_MEMBERS,
            f"a sum over {len(members)} members is not for release: the manifest asks for {manifest.min_clients}",
        )
    return members


def check_manifest(manifest: Manifest, envelope: Envelope) -> None:
    """Refuse a proposal whose manifest is not the run that the envelope names, or is not its sender's."""
    if manifest.run_id != envelope.run:
        raise PeerError(RejectReason.CONTRADICTION, "the proposed manifest is not that of the run it is sent for")
    check_sender(manifest, envelope)


def find_disagreements(manifest: Manifest, roster: Roster) -> tuple[str, ...]:
    """What the manifest says of its parties and the roster does not; a run is joined if there is nothing."""
    if manifest.roster_sha256 != roster.digest:
        return (f"the manifest is for the roster {manifest.roster_sha256}; here {roster.digest} is pinned",)
    expected = {
        manifest.coordinator: (Role.COORDINATOR, None),
        **dict.fromkeys(manifest.aggregators, (Role.AGGREGATOR, None)),
        **{member.name: (Role.CLIENT, member.organisation) for member in manifest.cohort},
    }
    disagreements = tuple(
        complaint
        for name, (role, organisation) in expected.items()
        for complaint in _find_disagreement(roster, name, role, organisation)
    )
    return (*disagreements, *find_unendorsed(manifest, roster))


def _find_disagreement(roster: Roster, name: PartyId, role: Role, organisation: PartyId | None) -> tuple[str, ...]:
    party = roster.find(name)
    if party is None:
        return (f"{name} is not in the roster",)
    if party.role is not role:
        return (f"{name} is {party.role.value} in the roster, and {role.value} in the manifest",)
    if organisation not in {None, party.organisation}:
        return (f"{name} belongs to {party.organisation} in the roster, and to {organisation} in the manifest",)
    return ()
