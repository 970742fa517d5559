"""What the trainer's machines can see."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hubbub.ids import PartyId
from hubbub.messages.traffic import Traffic
from hubbub.protocol.layout import Vector
from hubbub_trainer.learning.task import Score


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposed:
    """The coordinator proposes the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """The task is loaded: what it says of itself."""

    parameters: int
    initial_model_sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundOrdered:
    """The coordinator opened a round."""

    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundOver:
    """A round of ours has its verdict and we have acted on it."""

    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundBroken:
    """A round of ours could not be finished, and we have said so."""

    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The coordinator's last word on the run."""

    completed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Go:
    """The round before is over: begin."""


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
    """The sums of a phase are recombined and taken in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Concluded:
    """The new model is in place and evaluated."""

    score: Score
    evaluation_s: float
