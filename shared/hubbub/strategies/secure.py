"""The paper's method: union of indices, sum of signs, sum of factors (Beguier et al., section 3.2).

The four strategies differ only in the union. `no-union` has none: V is [1, N] and a round has one phase. The
others first agree on V and then sum the signs on V alone. The factor always travels with the signs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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
    Exposure,
    Release,
    Restriction,
    Strategy,
    Theta,
    admit_exactly,
    admit_up_to,
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
    SignsRound,
    Union,
)


class SecureRound(SignsRound):
    """One client's side of Algorithm 2."""

    def __init__(self, union: Union | None, parameters: Parameters, mine: ClientInput) -> None:
        super().__init__(parameters, mine)
        self._union = union
        spoken = speak(mine, self._wanted)
        compressed = compression.top_binary(spoken, parameters.kept, rule=parameters.alpha_rule)
        self._factor = parameters.fixed_point.to_ring(compressed.alpha)
        self._signs = compressed.signs
        self._marks = union.mark(parameters, compressed.signs, mine.stream) if union else None
        self._support_bits: NDArray[np.uint8] | None = None
        self._counts: Digits | None = None

    def vectors(self, phase: str) -> tuple[Vector, ...]:
        """Describe N marks; or the signs on V, and the factor in the same messages."""
        if self._union and phase != SIGNS.name:
            return (self._union.vector(self._parameters, self._parameters.model_size),)
        length = self._parameters.model_size if self._support is None else self._support.size
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
        if self._union and phase != SIGNS.name:
            return self._union.is_possible(total, members, self._parameters.kept)
        directions, factor = self._decode_signs(total, members), int(release.values[1][0])
        possible = aggregate.are_sums_possible(directions, factor, members, self._parameters.fixed_point)
        if self._counts is not None:
            possible &= unions.are_directions_possible(self._counts, directions)
        return possible

    def absorb(self, phase: str, release: Release, members: int) -> None:
        """Store V; or D and α, from which U is computed at the end."""
        total = release.values[0]
        if self._union is None or self._marks is None or phase == SIGNS.name:
            self._absorb_signs(self._decode_signs(total, members), int(release.values[1][0]), members)
            return
        found = Found.of(total)
        self._alone = self._union.alone_share(self._parameters, found, self._marks, members)
        self._support, self._support_bits, self._counts = found.support, found.bits, self._union.counts(found)

    def _decode_signs(self, total: Digits, members: int) -> Directions:
        if self._parameters.wire == "compact":
            return signs.from_digits(total, members)
        return signs.from_ring(total, self._parameters.clients)

    def _keep(self, scale: float) -> Theta:
        """Return the accumulator, less what was sent.

        With `feedback = paper`, all of α·D leaves it, also at indices that SecUnion lost, where it is gone for
        good. But a client knows V: with `lost`, only α·D on V leaves, and what was lost is sent again next round.
        """
        sent = self._signs
        if self._support is not None and self._parameters.feedback == "lost":
            sent = np.zeros_like(self._signs)
            sent[self._support] = self._signs[self._support]
        alpha = self._parameters.fixed_point.from_ring(self._factor) * scale
        return compression.accumulate_error(self._wanted, alpha, sent)


def _signs_vectors(parameters: Parameters, length: int) -> tuple[Vector, ...]:
    return (
        # On the compact wire a sign is sent as x + 1.
        Vector("signs", length, parameters.signs_modulus, signed=parameters.wire == "paper"),
        Vector("factors", 1, parameters.factors_modulus),
    )


class SecureStrategy(Strategy):
    """One of the four strategies: with a union or without; `blocks` is the variant over blocks of indices."""

    def __init__(self, name: str, union: Union | None, *, reveals: str = "", blocks: Blocks | None = None) -> None:
        self.name, self.reveals = name, reveals
        self.union, self.blocks = union, blocks
        self.phases = (union.phase, SIGNS) if union else (SIGNS,)
        self.support = union.support if union else "dense"

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
            admit_exactly(_signs_vectors(parameters, parameters.model_size), vectors)
        elif phase == SIGNS.name:
            admit_up_to(_signs_vectors(parameters, parameters.most_chosen), vectors)
        else:
            admit_exactly((self.union.vector(parameters, parameters.model_size),), vectors)

    def predict_bits(self, parameters: Parameters, heads: Headcount, union_size: int) -> Mapping[str, int]:
        """Compute the row's terms in Table 2."""
        if self.blocks and parameters.block > 1:
            return self.blocks.predict_bits(parameters, heads, union_size)
        bits = {"union": self.union.predict_bits(parameters, heads)} if self.union else {}
        length = union_size if self.union else parameters.model_size
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
