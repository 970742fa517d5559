"""Union phases: the ways to agree on V (Beguier et al., section 3.2.2), and sec-union over blocks of indices.

The ways differ in what a client marks, and in what the sum of the marks reveals.

With blocks of neighbouring indices the union is far cheaper, but clients see more signs. The phases are those of
the flat union. But a mark stands for a whole block, and in the signs phase every member sends a sign for every
index of V, also where it chose nothing. So D on V is the sum of everybody's signs, and where all agree every
client knows everybody's. A manifest has to ask for it, and a policy to allow it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hubbub.errors import PeerError, RejectReason
from hubbub.parameters import Parameters
from hubbub.protocol import aggregate, compression, costs, leakage, unions
from hubbub.protocol.compression import Indices
from hubbub.protocol.costs import Headcount
from hubbub.protocol.dense import Digits
from hubbub.protocol.layout import Vector
from hubbub.protocol.ring import RandomStream, Residues
from hubbub.protocol.unions import Signs
from hubbub.strategies.base import (
    ClientInput,
    ClientRound,
    Conclusion,
    Exposure,
    Phase,
    PlainPhase,
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

SIGNS = Phase("signs", tagged="integers")
"""The phase after the union, if there is one."""
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


class Union(ABC):
    """A way to agree on V (section 3.2.2). By default the marks are ones, and their sum reveals nothing more."""

    phase: Phase
    """The union phase."""
    support: Support = "union"
    """The indices of V: all that were chosen, or those less what is lost."""
    exposure: Exposure
    """Information that the union gives servers and clients."""

    @abstractmethod
    def modulus(self, parameters: Parameters) -> int:
        """Return the modulus of the marks."""

    @abstractmethod
    def predict_bits(self, parameters: Parameters, heads: Headcount) -> int:
        """Compute the payload of the phase by Table 2."""

    def vector(self, parameters: Parameters, length: int) -> Vector:
        """Describe the marks, one for each index or block."""
        return Vector("union", length, self.modulus(parameters))

    def mark(self, parameters: Parameters, chosen: Signs, stream: RandomStream) -> Digits:
        """Mark the indices where `chosen` is not zero."""
        del parameters, stream
        return unions.mark(chosen)

    def is_possible(self, total: Digits, members: int, kept: int) -> bool:
        """Say whether the marks of members that choose up to `kept` indices each can add up to this."""
        return unions.is_union_possible(int(np.count_nonzero(total != 0)), members, kept)

    def counts(self, found: Found) -> Digits | None:
        """Return the number of members that chose each index of V; None if the marks do not reveal it."""
        del found
        return None

    def alone_share(self, parameters: Parameters, found: Found, marks: Digits, members: int) -> float | None:
        """Return the share of V's indices that a single client chose, as far as one client can tell."""
        del parameters, found, marks, members
        return None


class SecUnion(Union):
    """Random marks in Z_{2^q}: their sum shows a client whether it was alone, and loses marks that cancel."""

    phase = Phase("union", tagged="marks")
    support = "lossy union"
    exposure = Exposure(clients_learn="whether alone")

    def modulus(self, parameters: Parameters) -> int:
        """Return 2^q."""
        return int(2**parameters.q)

    def mark(self, parameters: Parameters, chosen: Signs, stream: RandomStream) -> Digits:
        """Draw uniform non-zero marks from Z_{2^q}."""
        return unions.mark_at_random(chosen, parameters.q, stream)

    def alone_share(self, parameters: Parameters, found: Found, marks: Digits, members: int) -> float | None:
        """Estimate it from our own marks; None if they do not tell it: see `leakage.estimate_alone_share`."""
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


class PartialSecUnion(Union):
    """Marks of 1 in Z_{C+1}: their sum shows clients how many chose each index."""

    phase = Phase("union", tagged="integers")
    exposure = Exposure(clients_learn="chooser counts")

    def modulus(self, parameters: Parameters) -> int:
        """Return C + 1."""
        return parameters.clients + 1

    def is_possible(self, total: Digits, members: int, kept: int) -> bool:
        """Say also whether no count is above the number of members."""
        return super().is_possible(total, members, kept) & unions.are_counts_possible(total, members)

    def counts(self, found: Found) -> Digits | None:
        """Return the sums of the marks."""
        return found.sums

    def alone_share(self, parameters: Parameters, found: Found, marks: Digits, members: int) -> float | None:
        """Compute it exactly, from the counts."""
        del parameters, marks, members
        size = found.support.size
        return float(np.count_nonzero(found.total == 1) / size) if size else None

    def predict_bits(self, parameters: Parameters, heads: Headcount) -> int:
        """Compute 2·S·C·N·⌈log2(C + 1)⌉."""
        return costs.partial_sec_union_bits(parameters.model_size, heads, parameters.wire)


@dataclass(frozen=True, slots=True)
class _OrPhase(PlainPhase):
    """Phase in which the first server ORs what the clients send."""

    def combine(self, total: Residues, share: Residues, modulus: int) -> None:
        """OR a share into the total."""
        del modulus
        np.bitwise_or(total, share, out=total)


class PlaintextUnion(Union):
    """One bit for each index, shown to the first server."""

    phase = _OrPhase("union")
    exposure = Exposure(indices=True)

    def modulus(self, parameters: Parameters) -> int:
        """Return 2."""
        del parameters
        return 2

    def predict_bits(self, parameters: Parameters, heads: Headcount) -> int:
        """Compute 2·C·N."""
        return costs.plaintext_union_bits(parameters.model_size, heads)


class SignsRound(ClientRound):
    """The end of Algorithm 2, which rounds over indices and over blocks have in common: D and α are applied."""

    def __init__(self, parameters: Parameters, mine: ClientInput) -> None:
        self._parameters = parameters
        self._theta, self._history = mine.theta, mine.history
        self._wanted = add_up(parameters, mine)
        self._support: Indices | None = None
        self._alone: float | None = None
        self._moves: tuple[Directions, float, int] | None = None

    def _absorb_signs(self, directions: Directions, factor: int, members: int) -> None:
        """Store D and α, from which U is computed at the end."""
        self._moves = directions, self._parameters.fixed_point.from_ring(factor), members

    def conclude(self, *, took_part: bool) -> Conclusion:
        """Apply U, on V alone; what was sent and applied leaves the accumulator, the rest stays in it."""
        directions, alpha_sum, members = require(self._moves)
        clamped = self._parameters.factor_bounds.clamp(alpha_sum / members, self._history)
        if self._support is None:
            theta = aggregate.apply_sum(self._theta, directions, clamped.factor, members)
        else:
            theta = aggregate.apply_sum_on(self._support, self._theta, directions, clamped.factor, members)
        return Conclusion(
            theta,
            self._keep(clamped.scale) if took_part else self._wanted,
            directions.size,
            # The marks of a client that was left out are not in the sum, which cannot show whether it was alone.
            self._alone if took_part else None,
            history=clamped.history,
            scale=clamped.scale,
        )

    @abstractmethod
    def _keep(self, scale: float) -> Theta:
        """Return the accumulator of a client whose factor was scaled by this."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._parameters.model_size} parameters>"


# Blocks -------------------------------------------------------------------------------------------------

REVEALS = "where all members' signs agree on V, every client knows everybody's sign there"
"""Leak of blocks to clients; servers learn |V|, as they do without blocks."""


@dataclass(frozen=True, slots=True, eq=False)
class _Spoken:
    """A client's signs on V and its factor; as secret as its update, so it does not print."""

    signs: Signs
    factor: int

    def __repr__(self) -> str:
        return f"_Spoken(<secret>, n={self.signs.size})"


class BlockRound(SignsRound):
    """One client's side of Algorithm 2 with blocks instead of indices."""

    def __init__(self, union: SecUnion, parameters: Parameters, mine: ClientInput) -> None:
        super().__init__(parameters, mine)
        self._union = union
        chosen = unions.choose_blocks(speak(mine, self._wanted), parameters.block, parameters.kept_blocks)
        self._marks = union.mark(parameters, chosen, mine.stream)
        # Every client sends signs on all of V. A silent one draws its signs: zeros would all be pluses.
        self._stream = mine.stream if mine.silent else None
        self._spoken: _Spoken | None = None

    def vectors(self, phase: str) -> tuple[Vector, ...]:
        """Describe a mark for each block; or a sign for each index of V, and the factor in the same messages."""
        if phase == SIGNS.name:
            return signs_vectors(self._parameters, require(self._spoken).signs.size)
        return (self._union.vector(self._parameters, self._parameters.blocks),)

    def contribute(self, phase: str) -> tuple[Digits, ...]:
        """Return the marks; or 1 for each plus on V, and Q(α_i)."""
        if phase != SIGNS.name:
            return (self._marks,)
        spoken = require(self._spoken)
        return unions.to_ring(spoken.signs), np.array([spoken.factor], dtype=np.uint32)

    def restricted_to(self, phase: str) -> tuple[Restriction, ...]:
        """Return V, in the signs phase."""
        return () if phase != SIGNS.name or self._support is None else (Restriction(self._support),)

    def plausible(self, phase: str, release: Release, members: int) -> bool:
        """Say whether the members can choose so many blocks; or pluses and factors are in range."""
        total = release.values[0]
        if phase != SIGNS.name:
            return self._union.is_possible(total, members, self._parameters.kept_blocks)
        directions, factor = unions.from_ring(total, members), int(release.values[1][0])
        return aggregate.are_sums_possible(directions, factor, members, self._parameters.fixed_point)

    def absorb(self, phase: str, release: Release, members: int) -> None:
        """Store V and compute signs and factor on it; or store D and α, from which U is computed at the end."""
        total = release.values[0]
        if phase == SIGNS.name:
            self._absorb_signs(unions.from_ring(total, members), int(release.values[1][0]), members)
            return
        parameters, active = self._parameters, Found.of(total)
        self._alone = self._union.alone_share(parameters, active, self._marks, members)
        self._support = support = unions.indices_in(active.support, parameters.block, parameters.model_size)
        if self._stream is not None:
            self._spoken = _Spoken(unions.speak_at_random(support.size, self._stream), 0)
            return
        alpha = unions.scale(self._wanted, support, rule=parameters.alpha_rule)
        self._spoken = _Spoken(unions.speak(self._wanted, support), parameters.fixed_point.to_ring(alpha))

    def _keep(self, scale: float) -> Theta:
        spoken, kept = require(self._spoken), self._wanted.copy()
        alpha = self._parameters.fixed_point.from_ring(spoken.factor) * scale
        kept[self._support] = compression.accumulate_error(kept[self._support], alpha, spoken.signs)
        return kept


def signs_vectors(parameters: Parameters, length: int) -> tuple[Vector, ...]:
    """Describe the pluses, mod C + 1, and one factor."""
    return (
        Vector("signs", length, parameters.pluses_modulus),
        Vector("factors", 1, parameters.factors_modulus),
    )


class Blocks:
    """Variant of sec-union for a manifest whose block is more than one index."""

    union = SecUnion()
    # Everybody speaks about all of V: where all say the same, everybody knows who said what.
    exposure = Exposure(clients_learn="all signs on V that agree")

    def begin(self, parameters: Parameters, mine: ClientInput) -> BlockRound:
        """Choose blocks and mark them."""
        return BlockRound(self.union, parameters, mine)

    def admit(self, parameters: Parameters, phase: str, vectors: Sequence[Vector]) -> None:
        """Admit ⌈N/b⌉ marks; signs of whole blocks, no more than the cohort can choose; one factor."""
        if phase != SIGNS.name:
            admit_exactly((self.union.vector(parameters, parameters.blocks),), vectors)
            return
        admit_up_to(signs_vectors(parameters, parameters.most_active), vectors)
        # The last block of the model may be shorter than the others, and be in V or not.
        left = vectors[0].length % parameters.block
        if left not in (0, parameters.model_size % parameters.block):
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
