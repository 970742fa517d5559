"""The edge of a party: what is looked at before anything is known of the run that a message is about."""

from __future__ import annotations

from dataclasses import dataclass

from hubbub.errors import PeerError, RejectReason
from hubbub.messages.codec import decode
from hubbub.messages.envelope import Envelope
from hubbub.runtime.post import authenticate
from hubbub.trust.identity import Identity
from hubbub.trust.roster import Roster


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a message, or what came of it, is refused; what it says of itself is empty where it cannot be read."""

    reason: RejectReason
    explanation: str
    kind: str = ""
    sender: str = ""
    run: str = ""
    round: int = 0
    phase: str = ""

    @classmethod
    def of(cls, reason: RejectReason, explanation: str, envelope: Envelope) -> Refusal:
        """Refuse a message that could be read."""
        about = (envelope.kind, envelope.sender, envelope.run, envelope.round, envelope.phase)
        return cls(reason, f"{envelope!r}: {explanation}", *about)


def admit(identity: Identity, roster: Roster, frame: bytes) -> Envelope | Refusal:
    """Read a message that the sender it names has signed, as the roster knows it, and that is for us."""
    try:
        envelope = decode(frame)
    except PeerError as error:
        return Refusal(error.reason, str(error))
    try:
        authenticate(roster, envelope, frame)
        _check_address(identity, envelope)
    except PeerError as error:
        return Refusal.of(error.reason, str(error), envelope)
    return envelope


def _check_address(me: Identity, envelope: Envelope) -> None:
    if envelope.recipient != me.name or me.role not in envelope.body.recipients:
        raise PeerError(RejectReason.WRONG_RECIPIENT, f"this is for {envelope.recipient}, not for {me.name}")
