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
    """One client's side of Algorithm 2."""

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
        """Describe N marks; or the signs on V, and the factor in the same messages."""
        if self._union and phase == self._union.phase.name:
            return (_union_vector(self._union, self._parameters),)
        length = self._parameters.parameters if self._support is None else self._support.size
        return _signs_vectors(self._parameters, length)

    def contribute(self, phase: str) -> tuple[Digits, ...]:
        """Return the marks; or D_i on V, as residues, and Q(α_i)."""
        if self._marks is not None and phase != SIGNS.name:
            return (self._marks,)
        on_support = self._signs if self._support is None else self._signs.take(self._support)
        encode = signs.to_digits if self._parameters.wire == "compact" else signs.to_ring
        return encode(on_support, self._parameters.clients), np.array([self._factor], dtype=np.uint32)

    def restricted_to(self, phase: str) -> tuple[Restriction, ...]:
        """Return V, in the signs phase."""
        if phase != SIGNS.name or self._support is None:
            return ()
        return (Restriction(self._support, self._support_bits),)

    def plausible(self, phase: str, release: Release, members: int) -> bool:
        """Say whether the members can choose so many indices; or D and α are in range, and D fits known counts."""
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
        """Store V; or D and α, from which U is computed at the end."""
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
        """Apply U: the model changes on V alone."""
        if self._support is None:
            return aggregate.apply_sum(self._theta, directions, factor, members)
        return aggregate.apply_sum_on(self._support, self._theta, directions, factor, members)

    def conclude(self, *, took_part: bool) -> Conclusion:
        """Apply the round; what was sent and applied leaves the accumulator, the rest stays in it.

        With `feedback = paper`, all of α·D leaves it, also at indices that SecUnion lost, where it is gone for
        good. But a client knows V: with `lost`, only α·D on V leaves, and what was lost is sent again next round.
        """
        directions, alpha_sum, members = require(self._moves)
        clamped = self._parameters.factor_bounds.clamp(alpha_sum / members, self._history)
        theta = self._apply(directions, clamped.factor, members)
        size = self._parameters.parameters if self._support is None else self._support.size
        if not took_part:
            # Our marks are not in the sum, so it cannot show whether we were alone.
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
    """One of the four strategies: with a union or without."""

    name: str
    union: Union | None
    reveals: str = ""
    repeats: bool = False
    blocks: Blocks | None = None
    """The variant over blocks of indices, if there is one."""

    @property
    def phases(self) -> tuple[Phase, ...]:
        """The union phase, if there is one, then the signs phase."""
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
        """Compress the update and mark its indices."""
        if self.blocks and parameters.block > 1:
            return self.blocks.begin(parameters, mine)
        return SecureRound(self.union, parameters, mine)

    def admit(self, parameters: Parameters, phase: str, vectors: Sequence[Vector]) -> None:
        """Admit N marks; signs of all N, or of as many indices as the cohort can choose; one factor."""
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
        """Admit the same as from clients: a sum has the shape of its summands."""
        self.admit(parameters, phase, vectors)

    def union_size(self, released: Sequence[Vector]) -> int:
        """Return the number of signs."""
        return released[0].length

    def predict_bits(self, parameters: Parameters, heads: Headcount, union_size: int) -> Mapping[str, int]:
        """Compute the row's terms in Table 2."""
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
