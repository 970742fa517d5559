"""Messages about a run as a whole: proposal, joining or refusal, key agreement before the first round, end."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, StringConstraints

from hubbub.errors import Code
from hubbub.messages.envelope import CLIENT, COORDINATOR, PARTICIPANT, Claim, Message
from hubbub.messages.manifest import Digest, Manifest, Name

PublicKey = Annotated[str, StringConstraints(pattern=r"^(?:[0-9a-f]{2}){32,1216}$")]
Signature = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{128}$")]


class RunKey(Claim):
    """The public key to which messages for a party are sealed in one run, signed by its identity key."""

    party: Name
    public_key: PublicKey
    signature: Signature


class RunKeys(Message):
    """The coordinator passes on everybody's run keys; only their owners' signatures make them valid."""

    kind: ClassVar[str] = "run-keys"
    senders = COORDINATOR
    recipients = PARTICIPANT

    keys: Annotated[tuple[RunKey, ...], Field(max_length=4096)]


class GroupContribution(Message):
    """A client's part of the group secret; the payload is sealed to its recipient."""

    kind: ClassVar[str] = "group-contribution"
    senders = CLIENT
    recipients = CLIENT


class GroupConfirmed(Message):
    """A client's digest of its group secret; if these differ, somebody sent different contributions."""

    kind: ClassVar[str] = "group-confirmed"
    senders = CLIENT
    recipients = CLIENT

    confirmation: Digest


class RunReady(Message):
    """A party has checked everybody's run keys, and a client also has the group secret: rounds may begin."""

    kind: ClassVar[str] = "run-ready"
    senders = PARTICIPANT
    recipients = COORDINATOR


class RunProposed(Message):
    """The coordinator asks a party named in the manifest to take part."""

    kind: ClassVar[str] = "run-proposed"
    senders = COORDINATOR
    recipients = PARTICIPANT

    manifest: Manifest


class RunJoined(Message):
    """A party takes part, and this is its key for the run."""

    kind: ClassVar[str] = "run-joined"
    senders = PARTICIPANT
    recipients = COORDINATOR

    run_key: RunKey


class RunRefused(Message):
    """A party refuses to take part; the reason in words stays in its own log."""

    kind: ClassVar[str] = "run-refused"
    senders = PARTICIPANT
    recipients = COORDINATOR

    code: Code


class RunEnded(Message):
    """The coordinator ends a run, and names the last round that it opened: slow parties wait for that one."""

    kind: ClassVar[str] = "run-ended"
    senders = COORDINATOR
    recipients = PARTICIPANT

    outcome: Literal["completed", "failed", "cancelled"]
    reason: str
    last_round: Annotated[int, Field(ge=0, lt=2**31)] = 0


class PartyFailed(Message):
    """A party leaves the run because of its policy, its disk or another party."""

    kind: ClassVar[str] = "party-failed"
    senders = PARTICIPANT
    recipients = COORDINATOR

    code: Code
