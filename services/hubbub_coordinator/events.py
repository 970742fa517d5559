"""Events of the coordinator's state machines: checked facts, each with its time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from hubbub.errors import Code, RejectReason
from hubbub.ids import PartyId
from hubbub.messages.rounds import RoundApplied, ScoreClaim
from hubbub.messages.runs import RunKey
from hubbub.messages.shares import SignedReceipt, Traffic, VectorClaim


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened at `at_s`."""

    at_s: float


class Began(Event):
    """The machine was set up and takes its first step."""

    __slots__ = ()


class DeadlinePassed(Event):
    """The phase has taken as long as the manifest allows."""

    __slots__ = ()


class ProposalDue(Event):
    """Time to repeat the proposal to parties that have not answered."""

    __slots__ = ()


class CancelRequested(Event):
    """An operator wants the run to end."""

    __slots__ = ()


class PauseRequested(Event):
    """An operator wants no further round to be opened."""

    __slots__ = ()


class ResumeRequested(Event):
    """An operator wants the run to go on."""

    __slots__ = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PartyJoined(Event):
    """A named party takes part, with this key for the run."""

    party: PartyId
    run_key: RunKey


@dataclass(frozen=True, slots=True, kw_only=True)
class PartyReady(Event):
    """A party has everybody's run keys, and a client the group secret."""

    party: PartyId


@dataclass(frozen=True, slots=True, kw_only=True)
class PartyRefused(Event):
    """A named party does not take part."""

    party: PartyId
    code: Code


@dataclass(frozen=True, slots=True, kw_only=True)
class PartyBroke(Event):
    """A party cannot go on."""

    party: PartyId
    code: Code


class RoundVerdict(StrEnum):
    """Outcome of a round."""

    RELEASED = "released"
    VOID = "void"
    CONTRADICTED = "contradicted"


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundEnded(Event):
    """A round reached its verdict."""

    number: int
    verdict: RoundVerdict
    reason: str = ""
    began_at_s: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Computed from the sum of the clients' scores; empty if there are none."""
    score_members: frozenset[PartyId] = field(default_factory=frozenset)
    """Clients over which scores are summed, fixed in this round or before."""
    present: frozenset[PartyId] = field(default_factory=frozenset)
    """Clients that certainly took part in the round."""
    union_size: int | None = None
    """|V|, from the sizes that aggregators declared; None if the last phase has no sum."""
    payload_bits: int = 0
    wire_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiptArrived(Event):
    """An aggregator holds complete share sets of clients, and has signed for them."""

    phase: str
    receipt: SignedReceipt


@dataclass(frozen=True, slots=True, kw_only=True)
class SetSpoilt(Event):
    """An aggregator refused a client's share set."""

    phase: str
    aggregator: PartyId
    client: PartyId
    reason: RejectReason


@dataclass(frozen=True, slots=True, kw_only=True)
class SumReleased(Event):
    """An aggregator released its sum of a phase."""

    phase: str
    aggregator: PartyId
    members: frozenset[PartyId]
    vectors: tuple[VectorClaim, ...]
    traffic: tuple[Traffic, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class VoidConfirmed(Event):
    """An aggregator ended a phase without a sum."""

    phase: str
    aggregator: PartyId


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderDeclined(Event):
    """An aggregator did not obey an order."""

    phase: str
    aggregator: PartyId
    reason: RejectReason


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateApplied(Event):
    """A client applied the round's sum."""

    client: PartyId
    report: RoundApplied


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoresReported(Event):
    """A client computed the metrics from the sum of the scores; `scores` is empty if there was no sum."""

    client: PartyId
    scores: tuple[ScoreClaim, ...]
    traffic: tuple[Traffic, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateDropped(Event):
    """A client learnt that the round is void."""

    client: PartyId
    traffic: tuple[Traffic, ...]
