"""Events that the trainer's state machines handle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hubbub.ids import PartyId
from hubbub.messages.manifest import MetricClaim, RangeClaim
from hubbub.messages.shares import Traffic
from hubbub.messages.snapshots import Voucher
from hubbub.protocol.layout import Vector


@dataclass(frozen=True, slots=True, kw_only=True)
class InitialModel:
    """The model that a run begins with, and the ledger's data on it. Its digest does not print."""

    sha256: str = field(default="", repr=False)
    """Empty while the model is not here."""
    voids: int = 0
    """Its void rounds, in any run."""
    objection: str = ""
    """The reason why the run may not begin with it, for the data owner alone; empty if it may."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldModel:
    """The model that we hold after a round. Its digest does not print."""

    sha256: str = field(repr=False)
    step: float
    """Distance that the model was moved, as a Euclidean norm."""
    voids: int = 0
    """Void rounds of this model in the ledger, of any run, without this round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposed:
    """The coordinator proposes the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """The task is loaded: its own properties, and those of the model that the run begins with.

    There is no digest if the model is that of a predecessor run that we were not in.
    """

    parameters: int
    initial_model_sha256: str | None
    metrics: tuple[MetricClaim, ...] = ()
    ranges: tuple[RangeClaim, ...] | None = None
    """None if the task declares none, or the strategy has none."""
    initial: InitialModel = InitialModel()


@dataclass(frozen=True, slots=True, kw_only=True)
class KeysArrived:
    """Everybody's run keys, each signed by its owner, and their digest."""

    publics: Mapping[PartyId, bytes]
    keys_sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ContributionArrived:
    """Another client's part of the group secret, sealed."""

    client: PartyId


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupAgreed:
    """All parts are opened and combined into the group secret; the confirmation proves that we hold it."""

    confirmation: str
    samples: int | None = None
    """Our sum of the shares of the clients' numbers of samples, masked; None if these do not count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerConfirmed:
    """Another client's confirmation of the group secret that it holds."""

    client: PartyId
    confirmation: str
    samples: int | None = None
    """Its masked sum of shares, likewise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundOrdered:
    """The coordinator opened a round."""

    number: int
    attended: int = 0
    """The last round that we took part in, according to the coordinator."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundHeardOf:
    """An aggregator sent something of the round after the last ordered one: the order is still on its way."""

    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundOver:
    """A round of ours has its verdict and we have acted on it."""

    number: int
    released: bool
    model_hmac: str
    """Keyed digest of the model that we hold after it."""
    held: HeldModel
    exposed: bool = False
    """True if a share of ours is in a released sum of the round, even of the first phase alone."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """The clients' scores over all members, if they were summed."""
    score_members: frozenset[PartyId] = frozenset()
    """The members that they were summed over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundBroken:
    """A round of ours failed, and we have reported it."""

    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The coordinator ended the run."""

    outcome: str
    at_s: float
    last_round: int = 0
    """The last round that was opened, according to the coordinator."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitIsOver:
    """The run has ended, and its last sums did not come within the phase timeout."""

    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SetAskedFor:
    """An aggregator asks for our share set of a phase again; it named the set that we sent, which was checked."""

    phase: str
    aggregator: PartyId


@dataclass(frozen=True, slots=True, kw_only=True)
class SharesResent:
    """The broker has taken our share set again, or the phase has its verdict and nothing was sent."""

    phase: str
    aggregator: PartyId


@dataclass(frozen=True, slots=True, kw_only=True)
class Overtaken:
    """Later rounds were ordered, so the aggregators have ended this one: their verdicts should be here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SumsLost:
    """A round's verdict should be here and is not: our inbox overflowed while we were away."""

    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Strayed:
    """A round was released over another transcript than ours, so its sums are of no use to us."""

    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotAsked:
    """Another client has lost sums and asks for a model."""

    client: PartyId
    after: int
    giver: PartyId


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotSent:
    """The broker has taken every chunk of our model, or nothing was sent."""

    client: PartyId
    left: bool
    """True if anything was sent; if not, it does not count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """The queue no longer holds all rounds up to this one."""

    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NeverMind:
    """The sums that seemed lost have come after all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AskDue:
    """Ask the peers, for the first time or again."""

    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerVouched:
    """Another client vouches for the models that it held."""

    client: PartyId
    vouchers: tuple[Voucher, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotArrived:
    """A chunk of another client's model after a round, sealed."""

    client: PartyId
    number: int
    index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotTaken:
    """The snapshot is the model that was vouched for, or that the run begins with, and is our model now."""

    held: HeldModel | None = None
    initial: InitialModel | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Inherited:
    """We have the model that the run begins with."""

    initial: InitialModel


@dataclass(frozen=True, slots=True, kw_only=True)
class CaughtUp:
    """We have taken over a peer's model; `number` names the catch-up machine that brought it."""

    number: int
    voucher: Voucher
    held: HeldModel


@dataclass(frozen=True, slots=True, kw_only=True)
class Go:
    """The round before is over: begin."""

    place: int = 1
    """Number of this round among those that are released, from 1: that of a void round is given again."""
    is_scored: bool = False
    """True if a scores phase follows when the round is released."""
    score_members: frozenset[PartyId] = frozenset()
    """The members that the run's scores are summed over; empty before the first time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """Local training is done and its update is compressed."""

    training_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SharesSent:
    """The broker has taken every chunk of our share set."""

    traffic: tuple[Traffic, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SumArrived:
    """A chunk of an aggregator's sum, over members that the manifest allows."""

    phase: str
    aggregator: PartyId
    members: frozenset[PartyId]
    vectors: tuple[Vector, ...]
    transcript: str
    """Transcript of the share sets that were added."""
    wrapped_key: bytes
    index: int
    chunks: int
    wire_bytes: Mapping[str, int]
    at_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RestOverdue:
    """Sums that are not needed have had their time."""

    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class VoidAnnounced:
    """An aggregator ended a phase without a sum."""

    phase: str
    aggregator: PartyId


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """The sums of a phase are recombined and taken in; the transcript is that of its share sets."""

    transcript: str
    metrics: Mapping[str, float] = field(default_factory=dict)
    """The scores over all members, if it was their phase."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherTranscript:
    """The sums of a phase were released over another transcript than ours; they were not opened."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Closed:
    """The void round is over; the digest of the model, which did not change, is keyed by the group secret."""

    model_hmac: str
    held: HeldModel


@dataclass(frozen=True, slots=True, kw_only=True)
class Concluded:
    """The new model is in place; the digest is keyed by the group secret."""

    model_hmac: str
    held: HeldModel


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """The model is scored on our data, and the score is kept to be shared."""

    own: Mapping[str, float] = field(default_factory=dict, repr=False)
    """Our own metrics, which stay here."""
    evaluation_s: float = 0.0
    """Duration of the evaluation, which stays here too."""
