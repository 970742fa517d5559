"""How one phase of a run goes over the wire: who gets which share, who releases, and how vectors are written.

`paper` is Alg. 1 to the letter: a full share to every aggregator, and every aggregator's sum to every client.

`compact` costs (2·C + S - 1)·n·log2 m instead of 2·S·C·n·⌈log2 m⌉. Of a client's S shares all but one follow from
seeds; who gets the full one goes round with client and round. The aggregators send their sums to one of them, the
combiner, which goes round with round and phase, adds them up, and sends one masked sum to each client. It needs no
stand-in: a phase is released with all S sums or not at all, so that while it is away there is nothing to combine.
Phases that share no secrets go the paper's way in either mode.

The scores phase is the same whatever the strategy is, and comes after the strategy's own phases.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from hubbub.ids import WireMode
from hubbub.parameters import Parameters
from hubbub.protocol import tags
from hubbub.protocol.layout import DENSE, WHOLE_BITS, Chunk, Encoding, Vector, plan_chunks
from hubbub.protocol.metrics import ScoreSheet
from hubbub.strategies.base import Phase, admit_exactly
from hubbub.strategies.registry import find_strategy
from hubbub.strategies.scores import SCORES

P = TypeVar("P")
P_co = TypeVar("P_co", covariant=True)


class Agreed(Protocol[P_co]):
    """What a manifest says that matters here."""

    @property
    def strategy(self) -> str:
        """By name."""

    @property
    def wire(self) -> WireMode:
        """The mode."""

    @property
    def chunk_bytes(self) -> int:
        """The largest chunk."""

    @property
    def clients(self) -> tuple[P_co, ...]:
        """The cohort, in order."""

    @property
    def aggregators(self) -> tuple[P_co, ...]:
        """All aggregators, in order."""

    @property
    def is_scored(self) -> bool:
        """Whether there is a scores phase."""


class Measured(Agreed[P_co], Protocol[P_co]):
    """A manifest with the numbers that vectors follow from."""

    @property
    def protocol_parameters(self) -> Parameters:
        """The strategy's."""

    @property
    def score_sheet(self) -> ScoreSheet:
        """The scores'."""


@dataclass(frozen=True, slots=True)
class PhasePlan(Generic[P]):
    """A phase of a run, as its messages see it."""

    phase: Phase
    place: int
    """Of the phase in its round."""
    clients: tuple[P, ...]
    servers: tuple[P, ...]
    """The aggregators that take part, in order."""
    compact: bool
    chunk_bytes: int

    @property
    def encoding(self) -> Encoding:
        """How residues are written."""
        return DENSE if self.compact else WHOLE_BITS

    def plan(self, vectors: Sequence[Vector]) -> tuple[Chunk, ...]:
        """How these vectors are cut."""
        return plan_chunks(vectors, self.chunk_bytes, self.encoding)

    def full_share_holder(self, client: P, round_number: int) -> P:
        """Who gets a client's full share where the others get seeds."""
        return self.servers[(self.clients.index(client) + round_number) % len(self.servers)]

    def combiner(self, round_number: int) -> P:
        """Who adds up the sums of all."""
        return self.servers[(self.place + round_number) % len(self.servers)]

    def releasers(self, round_number: int) -> tuple[P, ...]:
        """Whose sums clients are sent: the combiner's, or everybody's."""
        return (self.combiner(round_number),) if self.compact else self.servers


def phases_of(manifest: Agreed[P]) -> tuple[Phase, ...]:
    """All phases that a round of a run can have: the strategy's, then the scores."""
    return find_strategy(manifest.strategy).phases + ((SCORES,) if manifest.is_scored else ())


def plan_phase(manifest: Agreed[P], phase_name: str) -> PhasePlan[P]:
    """How a phase of a run travels; its name was checked where it came in."""
    phases = phases_of(manifest)
    place = next(place for place, phase in enumerate(phases) if phase.name == phase_name)
    phase = phases[place]
    return PhasePlan(
        phase=phase,
        place=place,
        clients=manifest.clients,
        servers=phase.aggregators(manifest.aggregators),
        compact=manifest.wire == "compact" and phase.shares,
        chunk_bytes=manifest.chunk_bytes,
    )


def score_vectors(manifest: Measured[P]) -> tuple[Vector, ...]:
    """The vectors of the scores phase: the metrics and, where sums are verified, their tags."""
    own = (manifest.score_sheet.vector,)
    return (*own, tags.describe("integers", own)) if manifest.protocol_parameters.verified else own


def admit(manifest: Measured[P], phase: str, vectors: Sequence[Vector]) -> None:
    """Refuse, with `PeerError`, vectors that no honest client declares in this phase."""
    if phase == SCORES.name:
        admit_exactly(score_vectors(manifest), vectors)
    else:
        find_strategy(manifest.strategy).admit(manifest.protocol_parameters, phase, vectors)


def admit_release(manifest: Measured[P], phase: str, vectors: Sequence[Vector]) -> None:
    """Refuse, with `PeerError`, vectors that no honest aggregator releases in this phase."""
    if phase == SCORES.name:
        admit_exactly(score_vectors(manifest), vectors)
    else:
        find_strategy(manifest.strategy).admit_release(manifest.protocol_parameters, phase, vectors)
