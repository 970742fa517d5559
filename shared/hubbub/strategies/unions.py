"""The ways to agree on V: what a client marks, what the sum of the marks tells (Beguier et al., section 3.2.2).

sec-union over blocks of neighbouring indices: a far cheaper union, for more signs shown to clients.

The phases are those of the flat union. What differs is who says what: a mark stands for a whole block, and in the
signs phase every member speaks about all of V, also where it chose nothing. So D on V is the sum of everybody's
signs, and where all agree every client knows everybody's. A manifest has to ask for it, and a policy to allow it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hubbub.errors import PeerError, RejectReason
from hubbub.parameters import Parameters
from hubbub.protocol import aggregate, compression, costs, leakage, unions
from hubbub.protocol.costs import Headcount
from hubbub.protocol.dense import Digits
from hubbub.protocol.layout import Vector
from hubbub.protocol.ring import RandomStream, Residues
from hubbub.strategies.base import (
    ClientInput,
    Conclusion,
    Exposure,
    Indices,
    Phase,
    PlainPhase,
    Release,
    Restriction,
    Support,
    add_up,
    admit_exactly,
    admit_up_to,
    require,
    speak,
)

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

    @property
    def support(self) -> Support:
        """The indices of V: all that were chosen, or those less what is lost."""

    @property
    def exposure(self) -> Exposure:
        """Information that the union gives servers and clients."""

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
    support: Support = "lossy union"
    exposure: Exposure = Exposure(clients_learn="whether alone")  # noqa: RUF009  (Frozen.)

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
    support: Support = "union"
    exposure: Exposure = Exposure(clients_learn="chooser counts")  # noqa: RUF009  (Frozen.)

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
    support: Support = "union"
    exposure: Exposure = Exposure(indices=True)  # noqa: RUF009  (Frozen.)

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
        chosen = unions.choose_blocks(speak(mine, self._wanted), parameters.block, parameters.kept_blocks)
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
        return unions.to_ring(spoken.signs), np.array([spoken.factor], dtype=np.uint32)

    def restricted_to(self, phase: str) -> tuple[Restriction, ...]:
        """V, in the signs phase."""
        return () if phase != SIGNS.name or self._spoken is None else (Restriction(self._spoken.support),)

    def plausible(self, phase: str, release: Release, members: int) -> bool:
        """There are no more active blocks than the members can choose; pluses and factors are in range."""
        total = release.values[0]
        if phase != SIGNS.name:
            size = int(np.count_nonzero(total != 0))
            return unions.is_union_possible(size, members, self._parameters.kept_blocks)
        directions, factor = unions.from_ring(total, members), int(release.values[1][0])
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
        support = unions.indices_in(active.support, parameters.block, parameters.parameters)
        if self._stream is not None:
            self._spoken = _Spoken(support, unions.speak_at_random(support.size, self._stream), 0)
            return
        alpha = unions.scale(self._wanted, support, rule=parameters.alpha_rule)
        self._spoken = _Spoken(support, unions.speak(self._wanted, support), parameters.fixed_point.to_ring(alpha))

    def _absorb_signs(self, pluses: Digits, factor: int, members: int) -> None:
        directions = unions.from_ring(pluses, members)
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

    union: SecUnion = SecUnion()
    # Everybody speaks about all of V: where all say the same, everybody knows who said what.
    exposure: Exposure = Exposure(clients_learn="all signs on V that agree")  # noqa: RUF009  (Frozen.)

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
