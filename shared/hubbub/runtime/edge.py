"""The edge of a party: what is looked at before anything is known of the run that a message is about."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from hubbub.errors import PeerError, RejectReason
from hubbub.messages.codec import decode
from hubbub.messages.envelope import Envelope
from hubbub.runtime.post import authenticate
from hubbub.transport.base import Delivery, is_oversized
from hubbub.transport.token_bucket import TokenBucket
from hubbub.transport.topology import PEERS_MAX_BYTES, PEERS_MAX_LENGTH
from hubbub.trust.identity import Identity
from hubbub.trust.roster import Roster

PEER_PER_S = 100
PEER_BYTES_PER_S = 32 * 2**20


class PeerLimits:
    """Bounds how much of what each other client sends is looked at.

    The broker cannot bound a sender within a queue, and a queue for each pair of clients would make C² of them.
    But it vouches for the sender of each message, so each sender has a token bucket here. A bucket holds as
    much as the whole queue. A chunk of an honest snapshot must never be dropped, because nobody would send it
    again; and whoever sends more than this at once pushes messages out of the queue anyway.
    """

    def __init__(self) -> None:
        self._buckets: dict[str, tuple[TokenBucket, TokenBucket]] = {}

    def admit(self, delivery: Delivery, now_s: float) -> bool:
        """Charge a message to the user who published it; return False if that user has sent too much."""
        buckets = self._buckets.get(delivery.user)
        if buckets is None:
            messages = TokenBucket(PEERS_MAX_LENGTH, PEER_PER_S)
            buckets = self._buckets[delivery.user] = messages, TokenBucket(PEERS_MAX_BYTES, PEER_BYTES_PER_S)
        messages, size = buckets
        return messages.take(1, now_s) and size.take(len(delivery.body), now_s)


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
    user: str = ""
    """Who published it, for which the broker vouches."""
    size: int = 0
    sha256: str = ""
    """With the size, all that is kept of what is not put aside."""

    @classmethod
    def of(cls, reason: RejectReason, explanation: str, envelope: Envelope) -> Refusal:
        """Refuse a message that could be read."""
        about = (envelope.kind, envelope.sender, envelope.run, envelope.round, envelope.phase)
        return cls(reason, f"{envelope!r}: {explanation}", *about)


def is_dropped(delivery: Delivery) -> bool:
    """Say whether a message is not even put aside: it is too large for that, or nobody vouches for who sent it."""
    return is_oversized(delivery.body) or not delivery.user


def describe_dropped(delivery: Delivery) -> Refusal:
    """Say what is to be known of a message that is dropped; to hash a large one takes time."""
    size, sha256 = len(delivery.body), hashlib.sha256(delivery.body).hexdigest()
    reason, what = (
        (RejectReason.OVERSIZED, "is too large")
        if is_oversized(delivery.body)
        else (RejectReason.NO_USER, "does not name the broker's user who sent it")
    )
    told = f"a message of {delivery.user or 'nobody'} {what} and is dropped: {size} bytes, SHA-256 {sha256}"
    return Refusal(reason, told, user=delivery.user, size=size, sha256=sha256)


def describe_flood(delivery: Delivery) -> Refusal:
    """Say of a message that its sender has sent too much; not even its hash is taken, which would cost more."""
    told = f"{delivery.user or 'nobody'} sends too much, and a message of {len(delivery.body)} bytes is dropped"
    return Refusal(RejectReason.FLOOD, told, user=delivery.user)


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
