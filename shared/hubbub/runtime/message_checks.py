"""Checks of incoming messages that every service makes, and the record of those that it refuses.

First come checks that need no run: rate limits, size, signature, recipient. Then come checks against the manifest.

A flood of refusals must stay cheap. Each refusal is counted. For one reason and one sender, the log has the first
`LINES` of a second line by line and the rest as one line with their number. The audit log has the 1st, 2nd, 4th,
8th and so on.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import Counter
from dataclasses import dataclass

from pydantic import JsonValue

from hubbub.errors import LocalError, PeerError, RejectReason
from hubbub.ids import PartyId, Role
from hubbub.messages.codec import decode
from hubbub.messages.envelope import Envelope
from hubbub.messages.manifest import Manifest
from hubbub.messages.runs import RunProposed
from hubbub.messages.wire_form import Directory
from hubbub.runtime.publisher import authenticate
from hubbub.runtime.telemetry import Counters
from hubbub.transport.base import Delivery, TokenBucket, is_oversized
from hubbub.transport.topology import PEERS_MAX_BYTES, PEERS_MAX_LENGTH
from hubbub.trust.audit import AuditLog, Refusals
from hubbub.trust.identity import Identity
from hubbub.trust.roster import Roster
from hubbub.trust.succession import find_unendorsed

log = logging.getLogger(__name__)

# What honest clients send each other fits into the burst of a bucket, so the rates may be low: at these, to check
# signatures and hash payloads takes about a tenth of a core.
PEER_PER_S = 100
PEER_BYTES_PER_S = 32 * 2**20
LINES = 10
"""Refusals logged line by line within a second, for one reason and one sender."""
_WINDOW_S = 1.0


class PeerLimits:
    """Rate limit on the messages of each other client.

    The broker cannot limit a sender within a queue, and a queue for each pair of clients would make C² of them.
    But it vouches for the sender of each message, so each sender has a token bucket here. A bucket holds as
    much as the whole queue. A chunk of an honest snapshot must never be dropped, because nobody would send it
    again; and a client that sends more than this at once pushes messages out of the queue anyway.
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
    """Refusal of a message or of its event; fields of a message that cannot be decoded are empty."""

    reason: RejectReason
    explanation: str
    kind: str = ""
    sender: str = ""
    run: str = ""
    round: int = 0
    phase: str = ""
    user: str = ""
    """The user who published it, for which the broker vouches."""
    size: int = 0
    sha256: str = ""
    """With the size, all that is kept of a message that is dropped."""

    @classmethod
    def of(cls, reason: RejectReason, explanation: str, envelope: Envelope) -> Refusal:
        """Refuse a message that could be decoded."""
        about = (envelope.kind, envelope.sender, envelope.run, envelope.round, envelope.phase)
        return cls(reason, f"{envelope!r}: {explanation}", *about)


def is_dropped(delivery: Delivery) -> bool:
    """Say whether a message is dropped instead of dead-lettered: it is too large, or names no user."""
    return is_oversized(delivery.body) or not delivery.user


def describe_dropped(delivery: Delivery) -> Refusal:
    """Return the refusal of a message that is dropped; hashing a large one takes time."""
    size, sha256 = len(delivery.body), hashlib.sha256(delivery.body).hexdigest()
    reason, what = (
        (RejectReason.OVERSIZED, "is too large")
        if is_oversized(delivery.body)
        else (RejectReason.NO_USER, "does not name the broker's user who sent it")
    )
    told = f"a message of {delivery.user or 'nobody'} {what} and is dropped: {size} bytes, SHA-256 {sha256}"
    return Refusal(reason, told, user=delivery.user, size=size, sha256=sha256)


def describe_flood(delivery: Delivery) -> Refusal:
    """Return the refusal of a message whose sender has sent too much; it is not hashed, which would cost more."""
    told = f"{delivery.user or 'nobody'} sends too much, and a message of {len(delivery.body)} bytes is dropped"
    return Refusal(RejectReason.FLOOD, told, user=delivery.user)


def admit(identity: Identity, roster: Roster, directory: Directory, frame: bytes) -> Envelope | Refusal:
    """Decode a message; refuse it if the sender's key of the roster has not signed it, or it is not for us.

    The run of a proposal becomes known here, since messages that name it shortly may follow at once.
    """
    try:
        envelope = decode(frame, directory)
    except PeerError as error:
        return Refusal(error.reason, str(error))
    try:
        authenticate(roster, envelope, frame)
    except PeerError as error:
        return Refusal.of(error.reason, str(error), envelope)
    if envelope.recipient != identity.name or identity.role not in envelope.body.recipients:
        told = f"this is for {envelope.recipient}, not for {identity.name}"
        return Refusal.of(RejectReason.WRONG_RECIPIENT, told, envelope)
    if isinstance(envelope.body, RunProposed):
        try:
            directory.add_run(envelope.run)
        except PeerError as error:
            return Refusal.of(error.reason, str(error), envelope)
    return envelope


class RefusalBook:
    """Counts, logs and records what one party refuses."""

    def __init__(self, counters: Counters, audit: AuditLog) -> None:
        self._counters = counters
        self._tally = Refusals(audit)
        self._seen: Counter[tuple[RejectReason, str]] = Counter()
        self._timer: asyncio.TimerHandle | None = None

    async def note(self, refusal: Refusal) -> None:
        """Record a refusal; only what goes into the audit log takes time."""
        self._counters.rejected.labels(refusal.reason).inc()
        self._log(refusal)
        write = self._tally.note(
            refusal.reason.value,
            kind=refusal.kind,
            sender=refusal.sender,
            run=refusal.run,
            by=refusal.user,
            **_describe(refusal),
        )
        if write is None:
            return
        try:
            await asyncio.to_thread(write)
        except LocalError:
            log.exception("the refusal could not be recorded")

    def close(self) -> None:
        """Log what is not logged yet."""
        if self._timer is not None:
            self._timer.cancel()
            self._sum_up()

    def _log(self, refusal: Refusal) -> None:
        like = (refusal.reason, refusal.user or refusal.sender)
        self._seen[like] += 1
        if self._seen[like] <= LINES:
            log.warning("refused: %s", refusal.explanation, extra={"reason": refusal.reason.value})
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_WINDOW_S, self._sum_up)

    def _sum_up(self) -> None:
        seen, self._seen, self._timer = self._seen, Counter(), None
        for (reason, sender), count in seen.items():
            if count > LINES:
                told = (count - LINES, reason.value, sender or "nobody that is known")
                log.warning("refused %d more within a second (%s) from %s", *told, extra={"reason": reason.value})


def _describe(refusal: Refusal) -> dict[str, JsonValue]:
    """Return the optional fields of an audit entry: the broker's user if not the sender, and what was dropped."""
    is_another = refusal.sender and refusal.user not in ("", refusal.sender)
    user: dict[str, JsonValue] = {"user": refusal.user} if is_another else {}
    return {**user, "size": refusal.size, "sha256": refusal.sha256} if refusal.sha256 else user


def role_of(manifest: Manifest, name: PartyId) -> Role | None:
    """Return the role that the manifest gives to this party, or None."""
    if name in manifest.clients:
        return Role.CLIENT
    if name in manifest.aggregators:
        return Role.AGGREGATOR
    return Role.COORDINATOR if name == manifest.coordinator else None


def check_sender(manifest: Manifest, envelope: Envelope) -> None:
    """Raise `PeerError` if the sender's role in this run does not send such messages."""
    if role_of(manifest, envelope.sender) not in envelope.body.senders:
        raise PeerError(
            RejectReason.WRONG_SENDER, f"{envelope.sender} has no part in this run that sends {envelope.kind}"
        )


def check_members(manifest: Manifest, named: tuple[PartyId, ...]) -> frozenset[PartyId]:
    """Raise `PeerError` unless a sum's members are distinct clients of the cohort, of enough organisations."""
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
    """Raise `PeerError` if the manifest is not that of the envelope's run, or not from its coordinator."""
    if manifest.run_id != envelope.run:
        raise PeerError(RejectReason.CONTRADICTION, "the proposed manifest is not that of the run it is sent for")
    check_sender(manifest, envelope)


def find_disagreements(manifest: Manifest, roster: Roster) -> tuple[str, ...]:
    """Return where manifest and roster disagree about parties; a run is joined only if they agree."""
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
