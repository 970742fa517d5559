"""Messages about a run as a whole: proposed, joined or refused, ended."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from hubbub.codes import Code
from hubbub.messages.base import COORDINATOR, PARTICIPANT, Message
from hubbub.messages.keys import RunKey
from hubbub.messages.manifest import Manifest


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
