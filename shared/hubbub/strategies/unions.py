"""Union phases: the ways to agree on V (Beguier et al., section 3.2.2), and sec-union over blocks of indices.

The ways differ in what a client marks, and in what the sum of the marks reveals.

With blocks of neighbouring indices the union is far cheaper, but clients see more signs. The phases are those of
the flat union. But a mark stands for a whole block, and in the signs phase every member sends a sign for every
index of V, also where it chose nothing. So D on V is the sum of everybody's signs, and where all agree every
client knows everybody's. A manifest has to ask for it, and a policy to allow it.
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
"""The phase after the union, if there is one."""
Signs = NDArray[np.int8]
Directions = NDArray[np.signedinteger]


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """V, and the sums of the marks of all indices."""

    support: Indices
    total: Digits

    @staticmethod
    def of(total: Digits) -> Found:
        """Find the indices whose marks do not add up to zero."""
        return Found(unions.indices_of(total), total)

    @property
    def bits(self) -> NDArray[np.uint8]:
        """V as packed bits, the first lowest."""
        return np.packbits(self.total != 0, bitorder="little")

    @property
    def sums(self) -> Digits:
        """The sum of the marks at each index of V."""
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
        """Return the modulus of the marks."""

    def mark(self, parameters: Parameters, chosen: Signs, stream: RandomStream) -> Digits:
        """Mark the indices where `chosen` is not zero."""

    def are_marks_possible(self, total: Digits, members: int) -> bool:
        """Say whether the members' marks can add up to this."""

    def counts(self, found: Found) -> Digits | None:
        """Return the number of members that chose each index of V; None if the marks do not reveal it."""

    def are_signs_possible(self, counts: Digits, directions: Directions) -> bool:
        """Say whether sums of signs fit the counts at the same indices."""

    def alone_share(self, parameters: Parameters, found: Found, marks: Digits, members: int) -> float | None:
        """Return the share of V's indices that a single client chose, as far as one client can tell."""

    def predict_bits(self, parameters: Parameters, heads: Headcount) -> int:
        """Compute the payload of the phase by Table 2."""


@dataclass(frozen=True, slots=True)
class SecUnion:
    """Random marks in Z_{2^q}: their sum shows a client whether it was alone, and loses marks that cancel."""

    phase: Phase = Phase("union", tagged="marks")  # noqa: RUF009  (Frozen.)
    support: Support = "lossy union"
    exposure: Exposure = Exposure(clients_learn="whether alone")  # noqa: RUF009  (Frozen.)

    def modulus(self, parameters: Parameters) -> int:
        """Return 2^q."""
        return int(2**parameters.q)

    def mark(self, parameters: Parameters, chosen: Signs, stream: RandomStream) -> Digits:
        """Draw uniform non-zero marks from Z_{2^q}."""
        return unions.mark_at_random(chosen, parameters.q, stream)

    def are_marks_possible(self, total: Digits, members: int) -> bool:
        """Return True: random marks can add up to anything."""
        del total, members
        return True

    def counts(self, found: Found) -> Digits | None:
        """Return None: random marks reveal no counts."""

    def are_signs_possible(self, counts: Digits, directions: Directions) -> bool:
        """Return True: there are no counts."""
        del counts, directions
        return True

    def alone_share(self, parameters: Parameters, found: Found, marks: Digits, members: int) -> float | None:
        """Estimate it from our own marks: see `leakage.estimate_alone_share`."""
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
        """Compute 2·S·C·N·q, or with ⌈N/b⌉ instead of N."""
        return costs.sec_union_bits(parameters.blocks, parameters.q, heads, parameters.wire)


@dataclass(frozen=True, slots=True)
class PartialSecUnion:
    """Marks of 1 in Z_{C+1}: their sum shows clients how many chose each index."""

    phase: Phase = Phase("union", tagged="integers")  # noqa: RUF009  (Frozen.)
    support: Support = "union"
    exposure: Exposure = Exposure(clients_learn="chooser counts")  # noqa: RUF009  (Frozen.)

    def modulus(self, parameters: Parameters) -> int:
        """Return C + 1."""
        return parameters.clients + 1

    def mark(self, parameters: Parameters, chosen: Signs, stream: RandomStream) -> Digits:
        """Return B_i."""
        del parameters, stream
        return unions.mark(chosen)

    def are_marks_possible(self, total: Digits, members: int) -> bool:
        """Say whether no count is above the number of members."""
        return unions.are_counts_possible(total, members)

    def counts(self, found: Found) -> Digits | None:
        """Return the sums of the marks."""
        return found.sums

    def are_signs_possible(self, counts: Digits, directions: Directions) -> bool:
        """Say whether sums of t signs of ±1 are at most t in size, and odd if t is."""
        return unions.are_directions_possible(counts, directions)

    def alone_share(self, parameters: Parameters, found: Found, marks: Digits, members: int) -> float | None:
        """Compute it exactly, from the counts."""
        del parameters, marks, members
        size = found.support.size
        return float(np.count_nonzero(found.total == 1) / size) if size else None

    def predict_bits(self, parameters: Parameters, heads: Headcount) -> int:
        """Compute 2·S·C·N·⌈log2(C + 1)⌉."""
        return costs.partial_sec_union_bits(parameters.parameters, heads, parameters.wire)


@dataclass(frozen=True, slots=True)
class _OrPhase(PlainPhase):
    """Phase in which the first server ORs what the clients send."""

    def combine(self, total: Residues, share: Residues, modulus: int) -> None:
        """OR a share into the total."""
        del modulus
        np.bitwise_or(total, share, out=total)


@dataclass(frozen=True, slots=True)
class PlaintextUnion:
    """One bit for each index, shown to the first server."""

    phase: Phase = _OrPhase("union")
    support: Support = "union"
    exposure: Exposure = Exposure(indices=True)  # noqa: RUF009  (Frozen.)

    def modulus(self, parameters: Parameters) -> int:
        """Return 2."""
        del parameters
        return 2

    def mark(self, parameters: Parameters, chosen: Signs, stream: RandomStream) -> Digits:
        """Return B_i."""
        del parameters, stream
        return unions.mark(chosen)

    def are_marks_possible(self, total: Digits, members: int) -> bool:
        """Return True: any bits are possible."""
        del total, members
        return True

    def counts(self, found: Found) -> Digits | None:
        """Return None: bits reveal no counts."""

    def are_signs_possible(self, counts: Digits, directions: Directions) -> bool:
        """Return True: there are no counts."""
        del counts, directions
        return True

    def alone_share(self, parameters: Parameters, found: Found, marks: Digits, members: int) -> float | None:
        """Return None: the union shows clients nothing of it."""
        del parameters, found, marks, members
        return None

    def predict_bits(self, parameters: Parameters, heads: Headcount) -> int:
        """Compute 2·C·N."""
        return costs.plaintext_union_bits(parameters.parameters, heads)


# Blocks -------------------------------------------------------------------------------------------------

REVEALS = "where all members' signs agree on V, every client knows everybody's sign there"
"""Leak of blocks to clients; servers learn |V|, as they do without blocks."""


@dataclass(frozen=True, slots=True, eq=False)
class _Spoken:
    """A client's signs on V and its factor; as secret as its update, so it does not print."""

    support: Indices
    signs: Signs
    factor: int

    def __repr__(self) -> str:
        return f"_Spoken(<secret>, n={self.support.size})"


class BlockRound:
    """One client's side of Algorithm 2 with blocks instead of indices."""

    weight = 1

    def __init__(self, union: SecUnion, parameters: Parameters, mine: ClientInput) -> None:
        self._union = union
        self._parameters = parameters
        self._theta, self._history = mine.theta, mine.history
        self._wanted = add_up(parameters, mine)
        chosen = unions.choose_blocks(speak(mine, self._wanted), parameters.block, parameters.kept_blocks)
        self._marks = union.mark(parameters, chosen, mine.stream)
        # Every client sends signs on all of V. A silent one draws its signs: zeros would all be pluses.
        self._stream = mine.stream if mine.silent else None
        self._spoken: _Spoken | None = None
        self._alone: float | None = None
        self._moves: tuple[Directions, float, int] | None = None

    def vectors(self, phase: str) -> tuple[Vector, ...]:
        """Describe a mark for each block; or a sign for each index of V, and the factor in the same messages."""
        if phase == SIGNS.name:
            return signs_vectors(self._parameters, self._say().support.size)
        return (union_vector(self._union, self._parameters),)

    def contribute(self, phase: str) -> tuple[Digits, ...]:
        """Return the marks; or 1 for each plus on V, and Q(α_i)."""
        if phase != SIGNS.name:
            return (self._marks,)
        spoken = self._say()
        return unions.to_ring(spoken.signs), np.array([spoken.factor], dtype=np.uint32)

    def restricted_to(self, phase: str) -> tuple[Restriction, ...]:
        """Return V, in the signs phase."""
        return () if phase != SIGNS.name or self._spoken is None else (Restriction(self._spoken.support),)

    def plausible(self, phase: str, release: Release, members: int) -> bool:
        """Say whether the members can choose so many blocks; or pluses and factors are in range."""
        total = release.values[0]
        if phase != SIGNS.name:
            size = int(np.count_nonzero(total != 0))
            return unions.is_union_possible(size, members, self._parameters.kept_blocks)
        directions, factor = unions.from_ring(total, members), int(release.values[1][0])
        return aggregate.are_sums_possible(directions, factor, members, self._parameters.fixed_point)

    def absorb(self, phase: str, release: Release, members: int) -> None:
        """Store V and compute signs and factor on it; or store D and α, from which U is computed at the end."""
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
        """Apply the round; what was sent and applied leaves the accumulator, the rest stays in it."""
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
    """Describe the pluses, mod C + 1, and one factor."""
    return (
        Vector("signs", length, parameters.pluses_modulus),
        Vector("factors", 1, parameters.factors_modulus),
    )


def union_vector(union: SecUnion, parameters: Parameters) -> Vector:
    """Describe the marks, one for each block."""
    return Vector("union", parameters.blocks, union.modulus(parameters))


@dataclass(frozen=True, slots=True)
class Blocks:
    """Variant of sec-union for a manifest whose block is more than one index."""

    union: SecUnion = SecUnion()
    # Everybody speaks about all of V: where all say the same, everybody knows who said what.
    exposure: Exposure = Exposure(clients_learn="all signs on V that agree")  # noqa: RUF009  (Frozen.)

    def begin(self, parameters: Parameters, mine: ClientInput) -> BlockRound:
        """Choose blocks and mark them."""
        return BlockRound(self.union, parameters, mine)

    def admit(self, parameters: Parameters, phase: str, vectors: Sequence[Vector]) -> None:
        """Admit ⌈N/b⌉ marks; signs of whole blocks, no more than the cohort can choose; one factor."""
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
        """Compute Table 2's row of SecUnion with ⌈N/b⌉ marks, and signs mod C + 1."""
        return {
            "union": self.union.predict_bits(parameters, heads),
            "signs": costs.pluses_bits(union_size, heads, parameters.wire),
            "factors": costs.factors_bits(heads, parameters.factor_bits, parameters.wire),
        }
