"""What the trainer's machines can see."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hubbub.ids import PartyId
from hubbub.messages.manifest import MetricClaim
from hubbub.messages.shares import Traffic
from hubbub.messages.snapshots import Voucher
from hubbub.protocol.layout import Vector


@dataclass(frozen=True, slots=True, kw_only=True)
class InitialModel:
    """The model that a run begins with, and what the ledger says of it. Its digest does not print."""

    sha256: str = field(default="", repr=False)
    """Empty while the model is not here."""
    voids: int = 0
    """Its void rounds, in any run."""
    objection: str = ""
    """Why the run may not begin with it, in words for the data owner alone; empty if it may."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldModel:
    """The model that we hold after a round. Its digest does not print."""

    sha256: str = field(repr=False)
    step: float
    """How far the model was moved, as a Euclidean norm."""
    voids: int = 0
    """Void rounds that the ledger has of it, of any run, less this round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposed:
    """The coordinator proposes the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """The task is loaded: what it says of itself, and of the model that the run begins with.

    There is no digest if the model is a predecessor's that we were no part of.
    """

    parameters: int
    initial_model_sha256: str | None
    metrics: tuple[MetricClaim, ...] = ()
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
    """All parts are opened and make one secret; this is what confirms it."""

    confirmation: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerConfirmed:
    """Another client says which group secret it holds."""

    client: PartyId
    confirmation: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundOrdered:
    """The coordinator opened a round."""

    number: int
    attended: int = 0
    """The last round that we took part in, by the coordinator's word."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundHeardOf:
    """An aggregator speaks of the round after the last that was ordered: the order is still on its way."""

    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundOver:
    """A round of ours has its verdict and we have acted on it."""

    number: int
    released: bool
    model_hmac: str
    """Of the model that we hold after it."""
    held: HeldModel
    exposed: bool = False
    """Whether a share of ours is in a sum of it that was released, be it of the first phase alone."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """What the clients' scores come to, if they were summed."""
    score_members: frozenset[PartyId] = frozenset()
    """Over whom they were."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundBroken:
    """A round of ours could not be finished, and we have said so."""

    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The coordinator's last word on the run."""

    outcome: str
    at_s: float
    last_round: int = 0
    """The last that was opened, by the coordinator's word."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitIsOver:
    """The run has ended, and its last sums have not come in all the time that a phase may take."""

    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SetAskedFor:
    """An aggregator asks for our share set of a phase again; that it names the set which we sent was checked."""

    phase: str
    aggregator: PartyId


@dataclass(frozen=True, slots=True, kw_only=True)
class SharesResent:
    """The broker has taken our share set once more, or the phase has its verdict and nothing left."""

    phase: str
    aggregator: PartyId


@dataclass(frozen=True, slots=True, kw_only=True)
class Overtaken:
    """Later rounds were ordered, so the aggregators have ended this one: what they said of it should be here."""


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
    """Another client has lost sums."""

    client: PartyId
    after: int
    giver: PartyId


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotSent:
    """The broker has taken every chunk of our model, or nothing of it left."""

    client: PartyId
    left: bool
    """Whether anything left; if not, it does not count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """The queue no longer holds all rounds up to this one."""

    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NeverMind:
    """What seemed lost has come after all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AskDue:
    """Ask the peers, for the first time or again."""

    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerVouched:
    """Another client says which models it held."""

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
    """Our model is a peer's now; `number` names the machine that brought it."""

    number: int
    voucher: Voucher
    held: HeldModel


@dataclass(frozen=True, slots=True, kw_only=True)
class Go:
    """The round before is over: begin."""

    is_scored: bool = False
    """Whether a scores phase follows when the round is released."""
    score_members: frozenset[PartyId] = frozenset()
    """Over whom the run's scores are summed; nobody before the first time."""


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
    """Of the share sets that were added."""
    wrapped_key: bytes
    index: int
    chunks: int
    wire_bytes: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class VoidAnnounced:
    """An aggregator ended a phase without a sum."""

    phase: str
    aggregator: PartyId


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """The sums of a phase are recombined and taken in; the transcript is the one of its share sets."""

    transcript: str
    metrics: Mapping[str, float] = field(default_factory=dict)
    """What the scores come to, if it was their phase."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherTranscript:
    """The sums of a phase were released over another transcript than ours; nothing of them was looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Closed:
    """The void round is behind us; the digest of the model, which is what it was, is keyed by the group secret."""

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
    """How long it took, which stays here too."""
