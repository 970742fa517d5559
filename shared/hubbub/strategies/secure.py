"""The paper's method: union of indices, sum of signs, sum of factors (Beguier et al., section 3.2).

The four strategies differ only in the union. `no-union` has none: V is [1, N] and a round has one phase. The
others first agree on V and then sum the signs on V alone. The factor always travels with the signs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hubbub.parameters import Parameters
from hubbub.protocol import aggregate, compression, costs, leakage, signs, unions
from hubbub.protocol.costs import Headcount
from hubbub.protocol.layout import Vector
from hubbub.protocol.ring import RandomStream, Residues
from hubbub.strategies.base import (
    ClientInput,
    Conclusion,
    Indices,
    Phase,
    PlainPhase,
    Release,
    Theta,
    admit_exactly,
    admit_up_to,
)
from hubbub.strategies.compressed import add_up, require

SIGNS = Phase("signs")
Signs = NDArray[np.int8]


class Union(Protocol):
    """A way to agree on V (section 3.2.2)."""

    @property
    def phase(self) -> Phase:
        """The union phase."""

    def modulus(self, parameters: Parameters) -> int:
        """The ring of the marks."""

    def mark(self, parameters: Parameters, chosen: Signs, stream: RandomStream) -> Residues:
        """Mark the indices where `chosen` is not zero."""

    def check(self, total: Residues, members: int) -> None:
        """Refuse marks that the members cannot add up to."""

    def check_signs(self, counts: Residues, directions: NDArray[np.int32]) -> None:
        """Refuse sums of signs that do not fit the marks at the same indices."""

    def alone_share(self, parameters: Parameters, total: Residues, marks: Residues, members: int) -> float | None:
        """The share of V's indices that a single client chose, as far as one client can tell."""

    def predict_bits(self, parameters: Parameters, heads: Headcount) -> int:
        """What the phase costs by Table 2."""


class SecureRound:
    """Algorithm 2, seen by one client."""

    weight = 1

    def __init__(self, union: Union | None, parameters: Parameters, mine: ClientInput) -> None:
        self._union = union
        self._parameters = parameters
        self._theta = mine.theta
        self._wanted = add_up(parameters, mine)
        compressed = compression.top_binary(self._wanted, parameters.kept, rule=parameters.alpha_rule)
        self._factor = parameters.fixed_point.to_ring(compressed.alpha)
        self._signs = compressed.signs
        self._marks = union.mark(parameters, compressed.signs, mine.stream) if union else None
        self._support: Indices | None = None
        self._counts: Residues | None = None
        self._alone: float | None = None
        self._next: Theta | None = None

    def vectors(self, phase: str) -> tuple[Vector, ...]:
        """N marks; or the signs on V, and the factor in the same messages."""
        if self._union and phase == self._union.phase.name:
            return (_union_vector(self._union, self._parameters),)
        length = self._parameters.parameters if self._support is None else self._support.size
        return _signs_vectors(self._parameters, length)

    def contribute(self, phase: str) -> tuple[Residues, ...]:
        """The marks; or T(D_i) on V and Q(α_i)."""
        if self._marks is not None and phase != SIGNS.name:
            return (self._marks,)
        on_support = self._signs if self._support is None else self._signs[self._support]
        return (
            signs.to_ring(on_support, self._parameters.clients),
            np.array([self._factor], dtype=np.uint32),
        )

    def restricted_to(self, phase: str) -> tuple[Indices, ...]:
        """V, in the signs phase."""
        return () if phase != SIGNS.name or self._support is None else (self._support,)

    def absorb(self, phase: str, release: Release, members: int) -> None:
        """Take in V; or D and α, and apply U."""
        admit_exactly(self.vectors(phase), release.vectors)
        if self._union and phase == self._union.phase.name:
            self._absorb_union(self._union, release.values[0], members)
        else:
            self._absorb_signs(release.values[0], int(release.values[1][0]), members)

    def _absorb_union(self, union: Union, total: Residues, members: int) -> None:
        union.check(total, members)
        support = unions.indices_of(total)
        unions.check_union(support.size, members, self._parameters.kept)
        if self._marks is not None:
            self._alone = union.alone_share(self._parameters, total, self._marks, members)
        self._support, self._counts = support, total[support]

    def _absorb_signs(self, total: Residues, factor: int, members: int) -> None:
        directions = signs.from_ring(total, self._parameters.clients)
        aggregate.check_sums(directions, factor, members, self._parameters.fixed_point)
        alpha = self._parameters.fixed_point.from_ring(factor)
        if self._support is None or self._union is None or self._counts is None:
            self._next = aggregate.apply_sum(self._theta, directions, alpha, members)
            return
        self._union.check_signs(self._counts, directions)
        self._next = self._theta.copy()
        self._next[self._support] = aggregate.apply_sum(self._theta[self._support], directions, alpha, members)

    def conclude(self, *, took_part: bool) -> Conclusion:
        """Move on; what was sent leaves the accumulator, what was not stays in it.

        To the paper's letter α·D leaves it as a whole, also at indices that SecUnion lost, and so is gone. But a
        client knows V: with feedback only α·D on V leaves, and what was lost comes back next round.
        """
        theta = require(self._next)
        size = self._parameters.parameters if self._support is None else self._support.size
        if not took_part:
            # Our marks are not in the sum, so that it tells us nothing about ourselves.
            return Conclusion(theta, self._wanted, size)
        sent = self._signs
        if self._support is not None and self._parameters.feedback == "lost":
            sent = np.zeros_like(self._signs)
            sent[self._support] = self._signs[self._support]
        alpha = self._parameters.fixed_point.from_ring(self._factor)
        kept = compression.accumulate_error(self._wanted, alpha, sent)
        return Conclusion(theta, kept, size, self._alone)

    def __repr__(self) -> str:
        return f"<SecureRound of {self._parameters.parameters} parameters>"


def _signs_vectors(parameters: Parameters, length: int) -> tuple[Vector, ...]:
    return (
        Vector("signs", length, parameters.signs_modulus),
        Vector("factors", 1, parameters.factors_modulus),
    )


def _union_vector(union: Union, parameters: Parameters) -> Vector:
    return Vector("union", parameters.parameters, union.modulus(parameters))


@dataclass(frozen=True, slots=True)
class SecureStrategy:
    """One of the four: with a union or without."""

    name: str
    union: Union | None
    reveals: str = ""
    repeats: bool = False

    @property
    def phases(self) -> tuple[Phase, ...]:
        """Union, if there is one, then signs."""
        return (self.union.phase, SIGNS) if self.union else (SIGNS,)

    def begin(self, parameters: Parameters, mine: ClientInput) -> SecureRound:
        """Compress the update, mark its indices, and remember what is sent."""
        return SecureRound(self.union, parameters, mine)

    def admit(self, parameters: Parameters, phase: str, vectors: Sequence[Vector]) -> None:
        """N marks; signs of all N, or of as many indices as the cohort can choose; one factor."""
        if self.union is None:
            admit_exactly(_signs_vectors(parameters, parameters.parameters), vectors)
        elif phase == SIGNS.name:
            most = min(parameters.parameters, parameters.clients * parameters.kept)
            admit_up_to(_signs_vectors(parameters, most), vectors)
        else:
            admit_exactly((_union_vector(self.union, parameters),), vectors)

    def admit_release(self, parameters: Parameters, phase: str, vectors: Sequence[Vector]) -> None:
        """A sum looks like its summands."""
        self.admit(parameters, phase, vectors)

    def union_size(self, released: Sequence[Vector]) -> int:
        """As many as there are signs."""
        return released[0].length

    def predict_bits(self, parameters: Parameters, heads: Headcount, union_size: int) -> Mapping[str, int]:
        """The row's terms in Table 2."""
        bits = {"union": self.union.predict_bits(parameters, heads)} if self.union else {}
        length = union_size if self.union else parameters.parameters
        return {
            **bits,
            "signs": costs.signs_bits(length, heads),
            "factors": costs.factors_bits(heads, parameters.factor_bits),
        }


# The unions ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SecUnion:
    """Random marks in Z_{2^q}: their sum tells a client whether it was alone, and loses what cancels."""

    phase: Phase = Phase("union")  # noqa: RUF009  (Frozen.)

    def modulus(self, parameters: Parameters) -> int:
        """2^q."""
        return int(2**parameters.q)

    def mark(self, parameters: Parameters, chosen: Signs, stream: RandomStream) -> Residues:
        """R uniform in Z*_{2^q}."""
        return unions.mark_at_random(chosen, parameters.q, stream)

    def check(self, total: Residues, members: int) -> None:
        """Random marks add up to anything."""

    def check_signs(self, counts: Residues, directions: NDArray[np.int32]) -> None:
        """Random marks tell no counts."""

    def alone_share(self, parameters: Parameters, total: Residues, marks: Residues, members: int) -> float | None:
        """An estimate from our own marks: see `leakage.estimate_alone_share`."""
        size = int(np.count_nonzero(total))
        if not size:
            return None
        return leakage.estimate_alone_share(
            kept=int(np.count_nonzero(marks)),
            matched=int(np.count_nonzero((total == marks) & (marks != 0))),
            union_size=size,
            members=members,
            q=parameters.q,
        )

    def predict_bits(self, parameters: Parameters, heads: Headcount) -> int:
        """2·S·C·N·q."""
        return costs.sec_union_bits(parameters.parameters, parameters.q, heads)


@dataclass(frozen=True, slots=True)
class PartialSecUnion:
    """Marks of 1 in Z_{C+1}: their sum tells clients how many chose each index."""

    phase: Phase = Phase("union")  # noqa: RUF009  (Frozen.)

    def modulus(self, parameters: Parameters) -> int:
        """C + 1."""
        return parameters.clients + 1

    def mark(self, parameters: Parameters, chosen: Signs, stream: RandomStream) -> Residues:
        """B_i."""
        del parameters, stream
        return unions.mark(chosen)

    def check(self, total: Residues, members: int) -> None:
        """Nobody chooses an index twice."""
        unions.check_counts(total, members)

    def check_signs(self, counts: Residues, directions: NDArray[np.int32]) -> None:
        """T signs of ±1 add up to at most t, and to an odd number if t is odd."""
        unions.check_directions(counts, directions)

    def alone_share(self, parameters: Parameters, total: Residues, marks: Residues, members: int) -> float | None:
        """Exactly."""
        del parameters, marks, members
        size = np.count_nonzero(total)
        return float(np.count_nonzero(total == 1) / size) if size else None

    def predict_bits(self, parameters: Parameters, heads: Headcount) -> int:
        """2·S·C·N·⌈log2(C + 1)⌉."""
        return costs.partial_sec_union_bits(parameters.parameters, heads)


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

    def mark(self, parameters: Parameters, chosen: Signs, stream: RandomStream) -> Residues:
        """B_i."""
        del parameters, stream
        return unions.mark(chosen)

    def check(self, total: Residues, members: int) -> None:
        """Any bits can be."""

    def check_signs(self, counts: Residues, directions: NDArray[np.int32]) -> None:
        """Bits tell no counts."""

    def alone_share(self, parameters: Parameters, total: Residues, marks: Residues, members: int) -> float | None:
        """The union tells clients nothing of it."""
        del parameters, total, marks, members
        return None

    def predict_bits(self, parameters: Parameters, heads: Headcount) -> int:
        """2·C·N."""
        return costs.plaintext_union_bits(parameters.parameters, heads)


STRATEGIES = (
    SecureStrategy("no-union", None),
    SecureStrategy("sec-union", SecUnion()),
    SecureStrategy("partial-sec-union", PartialSecUnion()),
    SecureStrategy(
        "plaintext-union", PlaintextUnion(), reveals="the first aggregator sees every client's indices"
    ),
)
