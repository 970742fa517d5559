"""The paper's method: union of indices, sum of signs, sum of factors (Beguier et al., section 3.2).

The four strategies differ only in the union. `no-union` has none: V is [1, N] and a round has one phase. The
others first agree on V and then sum the signs on V alone. The factor always travels with the signs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hubbub.parameters import Parameters
from hubbub.protocol import aggregate, compression, costs, signs, unions
from hubbub.protocol.costs import Headcount
from hubbub.protocol.dense import Digits
from hubbub.protocol.layout import Vector
from hubbub.strategies.base import (
    ClientInput,
    ClientRound,
    Conclusion,
    Exposure,
    Indices,
    Phase,
    Release,
    Restriction,
    Support,
    Theta,
    add_up,
    admit_exactly,
    admit_up_to,
    require,
    speak,
)
from hubbub.strategies.unions import (
    SIGNS,
    Blocks,
    Directions,
    Found,
    PartialSecUnion,
    PlaintextUnion,
    SecUnion,
    Union,
)


class SecureRound:
    """Algorithm 2, seen by one client."""

    weight = 1

    def __init__(self, union: Union | None, parameters: Parameters, mine: ClientInput) -> None:
        self._union = union
        self._parameters = parameters
        self._theta, self._history = mine.theta, mine.history
        self._wanted = add_up(parameters, mine)
        spoken = speak(mine, self._wanted)
        compressed = compression.top_binary(spoken, parameters.kept, rule=parameters.alpha_rule)
        self._factor = parameters.fixed_point.to_ring(compressed.alpha)
        self._signs = compressed.signs
        self._marks = union.mark(parameters, compressed.signs, mine.stream) if union else None
        self._support: Indices | None = None
        self._support_bits: NDArray[np.uint8] | None = None
        self._counts: Digits | None = None
        self._alone: float | None = None
        self._moves: tuple[Directions, float, int] | None = None

    def vectors(self, phase: str) -> tuple[Vector, ...]:
        """N marks; or the signs on V, and the factor in the same messages."""
        if self._union and phase == self._union.phase.name:
            return (_union_vector(self._union, self._parameters),)
        length = self._parameters.parameters if self._support is None else self._support.size
        return _signs_vectors(self._parameters, length)

    def contribute(self, phase: str) -> tuple[Digits, ...]:
        """The marks; or D_i on V, as residues, and Q(α_i)."""
        if self._marks is not None and phase != SIGNS.name:
            return (self._marks,)
        on_support = self._signs if self._support is None else self._signs.take(self._support)
        encode = signs.to_digits if self._parameters.wire == "compact" else signs.to_ring
        return encode(on_support, self._parameters.clients), np.array([self._factor], dtype=np.uint32)

    def restricted_to(self, phase: str) -> tuple[Restriction, ...]:
        """V, in the signs phase."""
        if phase != SIGNS.name or self._support is None:
            return ()
        return (Restriction(self._support, self._support_bits),)

    def plausible(self, phase: str, release: Release, members: int) -> bool:
        """V is no larger than the members' choices; D and α are in range, and D fits the counts if known."""
        total = release.values[0]
        if self._union and phase == self._union.phase.name:
            size = int(np.count_nonzero(total != 0))
            return self._union.are_marks_possible(total, members) & unions.is_union_possible(
                size, members, self._parameters.kept
            )
        directions, factor = self._decode_signs(total, members), int(release.values[1][0])
        possible = aggregate.are_sums_possible(directions, factor, members, self._parameters.fixed_point)
        if self._union is not None and self._counts is not None:
            possible &= self._union.are_signs_possible(self._counts, directions)
        return possible

    def absorb(self, phase: str, release: Release, members: int) -> None:
        """Take in V; or D and α, with which U is applied at the end."""
        if self._union and phase == self._union.phase.name:
            self._absorb_union(self._union, release.values[0], members)
        else:
            self._absorb_signs(release.values[0], int(release.values[1][0]), members)

    def _absorb_union(self, union: Union, total: Digits, members: int) -> None:
        found = Found.of(total)
        if self._marks is not None:
            self._alone = union.alone_share(self._parameters, found, self._marks, members)
        self._support, self._support_bits, self._counts = found.support, found.bits, union.counts(found)

    def _absorb_signs(self, total: Digits, factor: int, members: int) -> None:
        directions = self._decode_signs(total, members)
        alpha = self._parameters.fixed_point.from_ring(factor)
        self._moves = directions, alpha, members

    def _decode_signs(self, total: Digits, members: int) -> Directions:
        if self._parameters.wire == "compact":
            return signs.from_digits(total, members)
        return signs.from_ring(total, self._parameters.clients)

    def _apply(self, directions: Directions, factor: float, members: int) -> Theta:
        """U: the model moves on V."""
        if self._support is None:
            return aggregate.apply_sum(self._theta, directions, factor, members)
        return aggregate.apply_sum_on(self._support, self._theta, directions, factor, members)

    def conclude(self, *, took_part: bool) -> Conclusion:
        """Move on; what was sent and applied leaves the accumulator, what was not stays in it.

        To the paper's letter α·D leaves it as a whole, also at indices that SecUnion lost, and so is gone. But a
        client knows V: with feedback only α·D on V leaves, and what was lost comes back next round.
        """
        directions, alpha_sum, members = require(self._moves)
        clamped = self._parameters.factor_bounds.clamp(alpha_sum / members, self._history)
        theta = self._apply(directions, clamped.factor, members)
        size = self._parameters.parameters if self._support is None else self._support.size
        if not took_part:
            # Our marks are not in the sum, so that it tells us nothing about ourselves.
            return Conclusion(theta, self._wanted, size, history=clamped.history, scale=clamped.scale)
        sent = self._signs
        if self._support is not None and self._parameters.feedback == "lost":
            sent = np.zeros_like(self._signs)
            sent[self._support] = self._signs[self._support]
        alpha = self._parameters.fixed_point.from_ring(self._factor) * clamped.scale
        kept = compression.accumulate_error(self._wanted, alpha, sent)
        return Conclusion(theta, kept, size, self._alone, history=clamped.history, scale=clamped.scale)

    def __repr__(self) -> str:
        return f"<SecureRound of {self._parameters.parameters} parameters>"


def _signs_vectors(parameters: Parameters, length: int) -> tuple[Vector, ...]:
    return (
        # On the compact wire a sign is sent as x + 1.
        Vector("signs", length, parameters.signs_modulus, signed=parameters.wire == "paper"),
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
    blocks: Blocks | None = None
    """How it goes over blocks of indices, if it can."""

    @property
    def phases(self) -> tuple[Phase, ...]:
        """Union, if there is one, then signs."""
        return (self.union.phase, SIGNS) if self.union else (SIGNS,)

    @property
    def support(self) -> Support:
        """V; all indices without a union."""
        return self.union.support if self.union else "dense"

    def exposure(self, parameters: Parameters) -> Exposure:
        """Tell what the union gives away; the sums of signs and factors are for clients alone."""
        if self.blocks and parameters.block > 1:
            return self.blocks.exposure
        return self.union.exposure if self.union else Exposure()

    def begin(self, parameters: Parameters, mine: ClientInput) -> ClientRound:
        """Compress the update, mark its indices, and remember what is sent."""
        if self.blocks and parameters.block > 1:
            return self.blocks.begin(parameters, mine)
        return SecureRound(self.union, parameters, mine)

    def admit(self, parameters: Parameters, phase: str, vectors: Sequence[Vector]) -> None:
        """N marks; signs of all N, or of as many indices as the cohort can choose; one factor."""
        if self.blocks and parameters.block > 1:
            self.blocks.admit(parameters, phase, vectors)
        elif self.union is None:
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
        if self.blocks and parameters.block > 1:
            return self.blocks.predict_bits(parameters, heads, union_size)
        bits = {"union": self.union.predict_bits(parameters, heads)} if self.union else {}
        length = union_size if self.union else parameters.parameters
        return {
            **bits,
            "signs": costs.signs_bits(length, heads, parameters.wire),
            "factors": costs.factors_bits(heads, parameters.factor_bits, parameters.wire),
        }


STRATEGIES = (
    SecureStrategy("no-union", None),
    SecureStrategy("sec-union", SecUnion(), blocks=Blocks()),
    SecureStrategy("partial-sec-union", PartialSecUnion()),
    SecureStrategy(
        "plaintext-union", PlaintextUnion(), reveals="the first aggregator sees every client's indices"
    ),
)
