"""The paper's method: signs and factors summed under additive sharing (Beguier et al., section 3.2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hubbub.errors import BadUpdate, PeerError, RejectReason
from hubbub.parameters import Parameters
from hubbub.protocol import aggregate, compression, costs, signs
from hubbub.protocol.costs import Headcount
from hubbub.protocol.layout import Vector
from hubbub.protocol.ring import Residues
from hubbub.strategies.base import Conclusion, Phase, Theta

SIGNS = Phase("signs")


class NoUnionRound:
    """Algorithm 2 with V = [1, N], seen by one client."""

    def __init__(self, parameters: Parameters, *, theta: Theta, update: Theta, accumulator: Theta) -> None:
        _check_update(parameters, update)
        self._parameters = parameters
        self._theta = theta
        # What overflows here is refused below, as infinity.
        with np.errstate(over="ignore", invalid="ignore"):
            self._wanted: Theta = update + accumulator
        compressed = compression.top_binary(self._wanted, parameters.kept)
        self._factor = parameters.fixed_point.to_ring(compressed.alpha)
        self._signs = compressed.signs
        self._next: Theta | None = None

    def vectors(self, phase: str) -> tuple[Vector, ...]:
        """Signs over Z_{2C+1}, and the factor over Z_{2^lambda} in the same messages."""
        del phase  # There is only one.
        return _signs_vectors(self._parameters, self._parameters.parameters)

    def contribute(self, phase: str) -> tuple[Residues, ...]:
        """T(D_i) and Q(alpha_i)."""
        del phase
        return (
            signs.to_ring(self._signs, self._parameters.clients),
            np.array([self._factor], dtype=np.uint32),
        )

    def absorb(self, phase: str, sums: Sequence[Residues], members: int) -> None:
        """Decode D and alpha, refuse what the members cannot have sent, and apply U."""
        del phase
        directions = signs.from_ring(sums[0], self._parameters.clients)
        factor = int(sums[1][0])
        aggregate.check_sums(directions, factor, members, self._parameters.fixed_point)
        alpha = self._parameters.fixed_point.from_ring(factor)
        self._next = aggregate.apply_sum(self._theta, directions, alpha, members)

    def conclude(self, *, took_part: bool) -> Conclusion:
        """Move on; what was sent leaves the accumulator, what was not stays in it."""
        if self._next is None:
            raise BadUpdate("a round is concluded after its sums were absorbed, not before")
        kept = self._wanted
        if took_part:
            sent = self._parameters.fixed_point.from_ring(self._factor)
            kept = compression.accumulate_error(self._wanted, sent, self._signs)
        return Conclusion(self._next, kept, self._parameters.parameters)

    def __repr__(self) -> str:
        return f"<NoUnionRound of {self._parameters.parameters} parameters>"


@dataclass(frozen=True, slots=True)
class NoUnion:
    """One phase: the sum of all signs, with the factor beside it."""

    name: str = "no-union"
    phases: tuple[Phase, ...] = (SIGNS,)

    def begin(self, parameters: Parameters, *, theta: Theta, update: Theta, accumulator: Theta) -> NoUnionRound:
        """Compress the update and remember what is sent."""
        return NoUnionRound(parameters, theta=theta, update=update, accumulator=accumulator)

    def admit(self, parameters: Parameters, phase: str, vectors: Sequence[Vector]) -> None:
        """N signs over Z_{2C+1} and one factor, nothing else."""
        del phase
        admit_exactly(_signs_vectors(parameters, parameters.parameters), vectors)

    def predict_bits(self, parameters: Parameters, heads: Headcount, union_size: int) -> Mapping[str, int]:
        """Table 2, row NoUnion, split into its two terms."""
        del union_size  # It is N.
        return {
            "signs": costs.signs_bits(parameters.parameters, heads),
            "factors": costs.factors_bits(heads, parameters.factor_bits),
        }


def _signs_vectors(parameters: Parameters, length: int) -> tuple[Vector, ...]:
    return (
        Vector("signs", length, parameters.signs_modulus),
        Vector("factors", 1, parameters.factors_modulus),
    )


def admit_exactly(expected: Sequence[Vector], declared: Sequence[Vector]) -> None:
    """Refuse declared vectors that differ from the expected ones, saying in what."""
    if [vector.name for vector in declared] != [vector.name for vector in expected]:
        names = ", ".join(vector.name for vector in expected)
        raise PeerError(RejectReason.WRONG_LENGTH, f"the set must hold exactly the vectors {names}")
    for have, want in zip(declared, expected, strict=True):
        if have.length != want.length:
            raise PeerError(
                RejectReason.WRONG_LENGTH,
                f"{have.name} has {have.length} elements where the manifest asks for {want.length}",
            )
        if have.modulus != want.modulus:
            raise PeerError(
                RejectReason.WRONG_RING,
                f"{have.name} is over Z_{have.modulus} where the manifest asks for Z_{want.modulus}",
            )


def _check_update(parameters: Parameters, update: Theta) -> None:
    if update.shape != (parameters.parameters,):
        raise BadUpdate(
            f"the update has shape {update.shape} where the run has {parameters.parameters} parameters"
        )
