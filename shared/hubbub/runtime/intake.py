"""Checks that every service makes of a message before it believes it."""

from __future__ import annotations

from hubbub.errors import PeerError, RejectReason
from hubbub.ids import PartyId, Role
from hubbub.messages.envelope import Envelope
from hubbub.messages.manifest import Manifest


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


def check_manifest(manifest: Manifest, envelope: Envelope) -> None:
    """Refuse a proposal whose manifest is not the run that the envelope names, or is not its sender's."""
    if manifest.run_id != envelope.run:
        raise PeerError(RejectReason.CONTRADICTION, "the proposed manifest is not that of the run it is sent for")
    check_sender(manifest, envelope)
