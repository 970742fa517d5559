"""Messages by which a run's parties agree on keys before its first round."""

from typing import Annotated, ClassVar

from pydantic import Field, StringConstraints

from hubbub.messages.base import CLIENT, COORDINATOR, PARTICIPANT, Claim, Message
from hubbub.messages.manifest import Digest, Name

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
