"""What a strategy is.

A strategy says which phases a round has and what each side does in them. The services know no strategy by
name: a trainer asks it what to contribute and hands it the sums, an aggregator asks it whether declared
vectors are admissible and how to add them, the coordinator asks it for the phases and the predicted cost.

Everything here is pure: no I/O, no clock, and randomness arrives as a stream.

Seen by an aggregator every phase is the same (collect share sets, be told a member set, add, release one
sum), so a phase is described by three small functions on residues, which act chunk by chunk:

    deal       a client's values to one share per aggregator of the phase
    combine    one more share into the running total of an aggregator
    recombine  the aggregators' totals to what the clients decode

Additive sharing is the default for all three. A phase that shows a server plaintext overrides them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from hubbub.parameters import Parameters
from hubbub.protocol import ring, sharing
from hubbub.protocol.costs import Headcount
from hubbub.protocol.layout import Vector
from hubbub.protocol.ring import RandomStream, Residues

Theta = NDArray[np.float32]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Phase:
    """One collect-add-release cycle of a round. Names are unique within a strategy."""

    name: str

    def aggregators(self, named: Sequence[T]) -> tuple[T, ...]:
        """Which of the manifest's aggregators take part, in order."""
        return tuple(named)

    def deal(self, values: Residues, modulus: int, servers: int, stream: RandomStream) -> list[Residues]:
        """Split a client's values into one share for each aggregator."""
        return sharing.split(values, modulus, servers, stream)

    def combine(self, total: Residues, share: Residues, modulus: int) -> None:
        """Add a share into an aggregator's total, in place."""
        ring.add_into(total, share, modulus)

    def recombine(self, totals: Sequence[Residues], modulus: int) -> Residues:
        """Turn the aggregators' totals into the sum over the members."""
        return sharing.recombine(totals, modulus)


@dataclass(frozen=True, slots=True)
class Conclusion:
    """What a client holds when a round is over; model and accumulator do not print."""

    theta: Theta = field(repr=False)
    accumulator: Theta = field(repr=False)
    union_size: int


class ClientRound(Protocol):
    """One client's side of one round. It holds the client's secrets, so it does not print them."""

    def vectors(self, phase: str) -> tuple[Vector, ...]:
        """What is sent and summed in a phase; known once the phases before it are absorbed."""

    def contribute(self, phase: str) -> tuple[Residues, ...]:
        """This client's values, one vector for each of `vectors(phase)`."""

    def absorb(self, phase: str, sums: Sequence[Residues], members: int) -> None:
        """Take in a phase's sums over that many members; an impossible sum is refused with `PeerError`."""

    def conclude(self, *, took_part: bool) -> Conclusion:
        """Apply the round. A client that was left out keeps its whole update in its accumulator."""


class Strategy(Protocol):
    """A way to aggregate, for every party."""

    @property
    def name(self) -> str:
        """What manifests and users call it."""

    @property
    def phases(self) -> tuple[Phase, ...]:
        """The phases of a round, in order."""

    def begin(self, parameters: Parameters, *, theta: Theta, update: Theta, accumulator: Theta) -> ClientRound:
        """Begin a client's round after local training."""

    def admit(self, parameters: Parameters, phase: str, vectors: Sequence[Vector]) -> None:
        """Refuse, with `PeerError`, vectors that no honest client declares in this phase."""

    def predict_bits(self, parameters: Parameters, heads: Headcount, union_size: int) -> Mapping[str, int]:
        """Payload of a round by the paper's formula, by what it counts as."""
