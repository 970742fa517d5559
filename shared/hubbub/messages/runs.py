"""Messages by which a run's parties agree on keys before its first round.

Messages about a run as a whole: proposed, joined or refused, ended.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, StringConstraints

from hubbub.errors import Code
from hubbub.messages.envelope import CLIENT, COORDINATOR, PARTICIPANT, Claim, Message
from hubbub.messages.manifest import Digest, Manifest, Name

PublicKey = Annotated[str, StringConstraints(pattern=r"^(?:[0-9a-f]{2}){32,1216}$")]
Signature = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{128}$")]


class RunKey(Claim):
    """The public key to which a party's messages of one run are sealed, signed by its identity key."""

    party: Name
    public_key: PublicKey
    signature: Signature


class RunKeys(Message):
    """The coordinator passes on everybody's run keys; their owners' signatures are what makes them true."""

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
    """A client's word on which group secret it holds: the same from all, or somebody dealt different parts."""

    kind: ClassVar[str] = "group-confirmed"
    senders = CLIENT
    recipients = CLIENT

    confirmation: Digest


class RunReady(Message):
    """A party has checked everybody's run keys, a client has the group secret too: rounds may begin."""

    kind: ClassVar[str] = "run-ready"
    senders = PARTICIPANT
    recipients = COORDINATOR


class RunProposed(Message):
    """The coordinator asks a party that the manifest names to take part."""

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
    """A party does not take part; the sentence on it stays in its own log."""

    kind: ClassVar[str] = "run-refused"
    senders = PARTICIPANT
    recipients = COORDINATOR

    code: Code


class RunEnded(Message):
    """The coordinator's last word on a run, and the last round that it opened: who is slow waits for that one."""

    kind: ClassVar[str] = "run-ended"
    senders = COORDINATOR
    recipients = PARTICIPANT

    outcome: Literal["completed", "failed", "cancelled"]
    reason: str
    last_round: Annotated[int, Field(ge=0, lt=2**31)] = 0


class PartyFailed(Message):
    """A party does not go on with the run: its policy, its disk or another party keeps it from that."""

    kind: ClassVar[str] = "party-failed"
    senders = PARTICIPANT
    recipients = COORDINATOR

    code: Code
