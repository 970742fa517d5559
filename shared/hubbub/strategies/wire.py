"""How one phase of a run goes over the wire: who gets which share, who releases, and how vectors are written.

`paper` is Alg. 1 to the letter: a full share to every aggregator, and every aggregator's sum to every client.

`compact` costs (2·C + S - 1)·n·log2 m instead of 2·S·C·n·⌈log2 m⌉. Of a client's S shares all but one follow from
seeds; who gets the full one goes round with client and round. The aggregators send their sums to one of them, the
combiner, which goes round with round and phase, adds them up, and sends one masked sum to each client. It needs no
stand-in: a phase is released with all S sums or not at all, so that while it is away there is nothing to combine.
Phases that share no secrets go the paper's way in either mode.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from hubbub.protocol.encoding import DENSE, WHOLE_BITS, Encoding
from hubbub.protocol.layout import Chunk, Vector, plan_chunks
from hubbub.protocol.modes import WireMode
from hubbub.strategies.base import Phase
from hubbub.strategies.registry import find_strategy

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


@dataclass(frozen=True, slots=True)
class PhaseWire(Generic[P]):
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


def wire_of(manifest: Agreed[P], phase_name: str) -> PhaseWire[P]:
    """How a phase of a run travels; its name was checked where it came in."""
    phases = find_strategy(manifest.strategy).phases
    place = next(place for place, phase in enumerate(phases) if phase.name == phase_name)
    phase = phases[place]
    return PhaseWire(
        phase=phase,
        place=place,
        clients=manifest.clients,
        servers=phase.aggregators(manifest.aggregators),
        compact=manifest.wire == "compact" and phase.shares,
        chunk_bytes=manifest.chunk_bytes,
    )
