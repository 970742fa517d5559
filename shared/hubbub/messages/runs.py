"""Messages about a run as a whole: proposal, joining or refusal, key agreement before the first round, end."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from hubbub.errors import Code
from hubbub.messages.envelope import CLIENT, COORDINATOR, PARTICIPANT, Claim, Message, WireMark
from hubbub.messages.manifest import MAX_COHORT, Digest, Index, Manifest, Name, Signature

PublicKey = Annotated[str, StringConstraints(pattern=r"^(?:[0-9a-f]{2}){32,1216}$"), WireMark.HEX]


class RunKey(Claim):
    """The public key to which messages for a party are sealed in one run, signed by its identity key."""

    party: Name
    public_key: PublicKey
    signature: Signature


class RunKeys(Message, kind="run-keys", senders=COORDINATOR, recipients=PARTICIPANT):
    """The coordinator passes on everybody's run keys; only their owners' signatures make them valid."""

    keys: Annotated[tuple[RunKey, ...], Field(max_length=MAX_COHORT)]


class GroupContribution(Message, kind="group-contribution", senders=CLIENT, recipients=CLIENT):
    """A client's part of the group secret; the payload is sealed to its recipient."""


class GroupConfirmed(Message, kind="group-confirmed", senders=CLIENT, recipients=CLIENT):
    """A client's digest of its group secret; if these differ, somebody sent different contributions."""

    confirmation: Digest


class RunReady(Message, kind="run-ready", senders=PARTICIPANT, recipients=COORDINATOR):
    """A party has checked everybody's run keys, and a client also has the group secret: rounds may begin."""


class RunProposed(Message, kind="run-proposed", senders=COORDINATOR, recipients=PARTICIPANT):
    """The coordinator asks a party named in the manifest to take part."""

    manifest: Manifest


class RunJoined(Message, kind="run-joined", senders=PARTICIPANT, recipients=COORDINATOR):
    """A party takes part, and this is its key for the run."""

    run_key: RunKey


class RunRefused(Message, kind="run-refused", senders=PARTICIPANT, recipients=COORDINATOR):
    """A party refuses to take part; the reason in words stays in its own log."""

    code: Code


class RunEnded(Message, kind="run-ended", senders=COORDINATOR, recipients=PARTICIPANT):
    """The coordinator ends a run, and names the last round that it opened: slow parties wait for that one."""

    outcome: Literal["completed", "failed", "cancelled"]
    reason: str
    last_round: Index = 0


class PartyFailed(Message, kind="party-failed", senders=PARTICIPANT, recipients=COORDINATOR):
    """A party leaves the run because of its policy, its disk or another party."""

    code: Code
