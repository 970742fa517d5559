"""The ways to agree on V: what a client marks, what the sum of the marks tells (Beguier et al., section 3.2.2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hubbub.parameters import Parameters
from hubbub.protocol import costs, leakage, unions
from hubbub.protocol.costs import Headcount
from hubbub.protocol.dense import Digits
from hubbub.protocol.ring import RandomStream, Residues
from hubbub.strategies.base import Indices, Phase, PlainPhase

SIGNS = Phase("signs", tagged="integers")
"""What follows the union, if there is one."""
Signs = NDArray[np.int8]
Directions = NDArray[np.signedinteger]


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """V, and what the marks of all indices add up to."""

    support: Indices
    total: Digits

    @staticmethod
    def of(total: Digits) -> Found:
        """All indices whose marks do not add up to zero."""
        return Found(unions.indices_of(total), total)

    @property
    def bits(self) -> NDArray[np.uint8]:
        """V as packed bits, the first lowest."""
        return np.packbits(self.total != 0, bitorder="little")

    @property
    def sums(self) -> Digits:
        """What the marks of each index of V add up to."""
        return self.total.take(self.support)


class Union(Protocol):
    """A way to agree on V (section 3.2.2)."""

    @property
    def phase(self) -> Phase:
        """The union phase."""

    def modulus(self, parameters: Parameters) -> int:
        """The ring of the marks."""

    def mark(self, parameters: Parameters, chosen: Signs, stream: RandomStream) -> Digits:
        """Mark the indices where `chosen` is not zero."""

    def are_marks_possible(self, total: Digits, members: int) -> bool:
        """Tell whether the members' marks can add up to this."""

    def counts(self, found: Found) -> Digits | None:
        """How many members chose each index of V, if the marks tell."""

    def are_signs_possible(self, counts: Digits, directions: Directions) -> bool:
        """Tell whether sums of signs fit the counts at the same indices."""

    def alone_share(self, parameters: Parameters, found: Found, marks: Digits, members: int) -> float | None:
        """The share of V's indices that a single client chose, as far as one client can tell."""

    def predict_bits(self, parameters: Parameters, heads: Headcount) -> int:
        """What the phase costs by Table 2."""


@dataclass(frozen=True, slots=True)
class SecUnion:
    """Random marks in Z_{2^q}: their sum tells a client whether it was alone, and loses what cancels."""

    phase: Phase = Phase("union", tagged="marks")  # noqa: RUF009  (Frozen.)

    def modulus(self, parameters: Parameters) -> int:
        """2^q."""
        return int(2**parameters.q)

    def mark(self, parameters: Parameters, chosen: Signs, stream: RandomStream) -> Digits:
        """R uniform in Z*_{2^q}."""
        return unions.mark_at_random(chosen, parameters.q, stream)

    def are_marks_possible(self, total: Digits, members: int) -> bool:
        """Random marks add up to anything."""
        del total, members
        return True

    def counts(self, found: Found) -> Digits | None:
        """Random marks tell no counts."""

    def are_signs_possible(self, counts: Digits, directions: Directions) -> bool:
        """There are no counts."""
        del counts, directions
        return True

    def alone_share(self, parameters: Parameters, found: Found, marks: Digits, members: int) -> float | None:
        """An estimate from our own marks: see `leakage.estimate_alone_share`."""
        if not found.support.size:
            return None
        chosen = marks != 0
        return leakage.estimate_alone_share(
            kept=int(np.count_nonzero(chosen)),
            matched=int(np.count_nonzero((found.total == marks) & chosen)),
            union_size=found.support.size,
            members=members,
            q=parameters.q,
        )

    def predict_bits(self, parameters: Parameters, heads: Headcount) -> int:
        """2·S·C·N·q, or with ⌈N/b⌉ instead of N."""
        return costs.sec_union_bits(parameters.blocks, parameters.q, heads, parameters.wire)


@dataclass(frozen=True, slots=True)
class PartialSecUnion:
    """Marks of 1 in Z_{C+1}: their sum tells clients how many chose each index."""

    phase: Phase = Phase("union", tagged="integers")  # noqa: RUF009  (Frozen.)

    def modulus(self, parameters: Parameters) -> int:
        """C + 1."""
        return parameters.clients + 1

    def mark(self, parameters: Parameters, chosen: Signs, stream: RandomStream) -> Digits:
        """B_i."""
        del parameters, stream
        return unions.mark(chosen)

    def are_marks_possible(self, total: Digits, members: int) -> bool:
        """Nobody chooses an index twice."""
        return unions.are_counts_possible(total, members)

    def counts(self, found: Found) -> Digits | None:
        """The sum of the marks."""
        return found.sums

    def are_signs_possible(self, counts: Digits, directions: Directions) -> bool:
        """T signs of ±1 add up to at most t, and to an odd number if t is odd."""
        return unions.are_directions_possible(counts, directions)

    def alone_share(self, parameters: Parameters, found: Found, marks: Digits, members: int) -> float | None:
        """Exactly."""
        del parameters, marks, members
        size = found.support.size
        return float(np.count_nonzero(found.total == 1) / size) if size else None

    def predict_bits(self, parameters: Parameters, heads: Headcount) -> int:
        """2·S·C·N·⌈log2(C + 1)⌉."""
        return costs.partial_sec_union_bits(parameters.parameters, heads, parameters.wire)


@dataclass(frozen=True, slots=True)
class _OrPhase(PlainPhase):
    """The first server ORs what the clients send."""

    def combine(self, total: Residues, share: Residues, modulus: int) -> None:
        """OR."""
        del modulus
        np.bitwise_or(total, share, out=total)


@dataclass(frozen=True, slots=True)
class PlaintextUnion:
    """One bit for each index, shown to the first server."""

    phase: Phase = _OrPhase("union")

    def modulus(self, parameters: Parameters) -> int:
        """2."""
        del parameters
        return 2

    def mark(self, parameters: Parameters, chosen: Signs, stream: RandomStream) -> Digits:
        """B_i."""
        del parameters, stream
        return unions.mark(chosen)

    def are_marks_possible(self, total: Digits, members: int) -> bool:
        """Any bits can be."""
        del total, members
        return True

    def counts(self, found: Found) -> Digits | None:
        """Bits tell no counts."""

    def are_signs_possible(self, counts: Digits, directions: Directions) -> bool:
        """There are no counts."""
        del counts, directions
        return True

    def alone_share(self, parameters: Parameters, found: Found, marks: Digits, members: int) -> float | None:
        """The union tells clients nothing of it."""
        del parameters, found, marks, members
        return None

    def predict_bits(self, parameters: Parameters, heads: Headcount) -> int:
        """2·C·N."""
        return costs.plaintext_union_bits(parameters.parameters, heads)
