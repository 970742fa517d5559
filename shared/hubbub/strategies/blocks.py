"""sec-union over blocks of neighbouring indices: a far cheaper union, for more signs shown to clients.

The phases are those of the flat union. What differs is who says what: a mark stands for a whole block, and in the
signs phase every member speaks about all of V, also where it chose nothing. So D on V is the sum of everybody's
signs, and where all agree every client knows everybody's. A manifest has to ask for it, and a policy to allow it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hubbub.errors import PeerError, RejectReason
from hubbub.parameters import Parameters
from hubbub.protocol import aggregate, blocks, compression, costs, unions
from hubbub.protocol.costs import Headcount
from hubbub.protocol.dense import Digits
from hubbub.protocol.layout import Vector
from hubbub.strategies.base import (
    ClientInput,
    Conclusion,
    Indices,
    Release,
    Restriction,
    admit_exactly,
    admit_up_to,
)
from hubbub.strategies.compressed import add_up, require, speak
from hubbub.strategies.marks import SIGNS, Directions, Found, SecUnion, Signs

REVEALS = "where all members' signs agree on V, every client knows everybody's sign there"
"""To clients; servers learn |V|, as they do without blocks."""


@dataclass(frozen=True, slots=True, eq=False)
class _Spoken:
    """What a client says once it knows V; as secret as its update, so it does not print."""

    support: Indices
    signs: Signs
    factor: int

    def __repr__(self) -> str:
        return f"_Spoken(<secret>, n={self.support.size})"


class BlockRound:
    """Algorithm 2 with blocks in the place of indices, seen by one client."""

    weight = 1

    def __init__(self, union: SecUnion, parameters: Parameters, mine: ClientInput) -> None:
        self._union = union
        self._parameters = parameters
        self._theta, self._history = mine.theta, mine.history
        self._wanted = add_up(parameters, mine)
        chosen = blocks.choose_blocks(speak(mine, self._wanted), parameters.block, parameters.kept_blocks)
        self._marks = union.mark(parameters, chosen, mine.stream)
        # Everybody speaks about all of V. Who has nothing to say draws its signs: zeros would all be pluses.
        self._stream = mine.stream if mine.silent else None
        self._spoken: _Spoken | None = None
        self._alone: float | None = None
        self._moves: tuple[Directions, float, int] | None = None

    def vectors(self, phase: str) -> tuple[Vector, ...]:
        """A mark for each block; or a sign for each index of V, and the factor in the same messages."""
        if phase == SIGNS.name:
            return signs_vectors(self._parameters, self._say().support.size)
        return (union_vector(self._union, self._parameters),)

    def contribute(self, phase: str) -> tuple[Digits, ...]:
        """The marks; or whether each sign is a plus, and Q(α_i)."""
        if phase != SIGNS.name:
            return (self._marks,)
        spoken = self._say()
        return blocks.to_ring(spoken.signs), np.array([spoken.factor], dtype=np.uint32)

    def restricted_to(self, phase: str) -> tuple[Restriction, ...]:
        """V, in the signs phase."""
        return () if phase != SIGNS.name or self._spoken is None else (Restriction(self._spoken.support),)

    def plausible(self, phase: str, release: Release, members: int) -> bool:
        """There are no more active blocks than the members can choose; pluses and factors are in range."""
        total = release.values[0]
        if phase != SIGNS.name:
            size = int(np.count_nonzero(total != 0))
            return unions.is_union_possible(size, members, self._parameters.kept_blocks)
        directions, factor = blocks.from_ring(total, members), int(release.values[1][0])
        return aggregate.are_sums_possible(directions, factor, members, self._parameters.fixed_point)

    def absorb(self, phase: str, release: Release, members: int) -> None:
        """Take in V, and find what to say about it; or D and α, with which U is applied at the end."""
        if phase == SIGNS.name:
            self._absorb_signs(release.values[0], int(release.values[1][0]), members)
        else:
            self._absorb_union(release.values[0], members)

    def _absorb_union(self, total: Digits, members: int) -> None:
        parameters, active = self._parameters, Found.of(total)
        self._alone = self._union.alone_share(parameters, active, self._marks, members)
        support = blocks.indices_in(active.support, parameters.block, parameters.parameters)
        if self._stream is not None:
            self._spoken = _Spoken(support, blocks.speak_at_random(support.size, self._stream), 0)
            return
        alpha = blocks.scale(self._wanted, support, rule=parameters.alpha_rule)
        self._spoken = _Spoken(support, blocks.speak(self._wanted, support), parameters.fixed_point.to_ring(alpha))

    def _absorb_signs(self, pluses: Digits, factor: int, members: int) -> None:
        directions = blocks.from_ring(pluses, members)
        alpha = self._parameters.fixed_point.from_ring(factor)
        self._moves = directions, alpha, members

    def conclude(self, *, took_part: bool) -> Conclusion:
        """Move on; what was said of V and applied leaves the accumulator, all else stays in it."""
        (directions, alpha_sum, members), spoken = require(self._moves), self._say()
        clamped = self._parameters.factor_bounds.clamp(alpha_sum / members, self._history)
        theta = aggregate.apply_sum_on(spoken.support, self._theta, directions, clamped.factor, members)
        if not took_part:
            # Our signs are not in the sum, and our marks not in V.
            return Conclusion(
                theta, self._wanted, spoken.support.size, history=clamped.history, scale=clamped.scale
            )
        alpha = self._parameters.fixed_point.from_ring(spoken.factor) * clamped.scale
        kept = self._wanted.copy()
        kept[spoken.support] = compression.accumulate_error(kept[spoken.support], alpha, spoken.signs)
        return Conclusion(
            theta, kept, spoken.support.size, self._alone, history=clamped.history, scale=clamped.scale
        )

    def _say(self) -> _Spoken:
        return require(self._spoken)

    def __repr__(self) -> str:
        return f"<BlockRound of {self._parameters.parameters} parameters>"


def signs_vectors(parameters: Parameters, length: int) -> tuple[Vector, ...]:
    """Pluses, mod C + 1, and one factor."""
    return (
        Vector("signs", length, parameters.pluses_modulus),
        Vector("factors", 1, parameters.factors_modulus),
    )


def union_vector(union: SecUnion, parameters: Parameters) -> Vector:
    """A mark for each block."""
    return Vector("union", parameters.blocks, union.modulus(parameters))


@dataclass(frozen=True, slots=True)
class Blocks:
    """How sec-union goes where the manifest's block is more than one index."""

    union: SecUnion = SecUnion()  # noqa: RUF009  (Frozen.)

    def begin(self, parameters: Parameters, mine: ClientInput) -> BlockRound:
        """Choose blocks and mark them."""
        return BlockRound(self.union, parameters, mine)

    def admit(self, parameters: Parameters, phase: str, vectors: Sequence[Vector]) -> None:
        """⌈N/b⌉ marks; signs of whole blocks, no more than the cohort can choose; one factor."""
        if phase != SIGNS.name:
            admit_exactly((union_vector(self.union, parameters),), vectors)
            return
        admit_up_to(signs_vectors(parameters, parameters.most_active), vectors)
        # The last block of the model may be shorter than the others, and be in V or not.
        left = vectors[0].length % parameters.block
        if left not in (0, parameters.parameters % parameters.block):
            raise PeerError(
                RejectReason.WRONG_LENGTH,
                f"{vectors[0].length} signs are not those of whole blocks of {parameters.block}",
            )

    def predict_bits(self, parameters: Parameters, heads: Headcount, union_size: int) -> Mapping[str, int]:
        """Table 2's row of SecUnion with ⌈N/b⌉ marks, and signs mod C + 1."""
        return {
            "union": self.union.predict_bits(parameters, heads),
            "signs": costs.pluses_bits(union_size, heads, parameters.wire),
            "factors": costs.factors_bits(heads, parameters.factor_bits, parameters.wire),
        }
