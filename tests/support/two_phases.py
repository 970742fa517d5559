"""A strategy with two phases, which no real strategy of one phase can stand in for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hubbub.errors import PeerError, RejectReason
from hubbub.parameters import Parameters
from hubbub.protocol.costs import Headcount, secure_sum_bits
from hubbub.protocol.layout import Vector
from hubbub.protocol.ring import Residues
from hubbub.strategies.base import Conclusion, Phase, Theta
from hubbub.strategies.secure import NoUnion, NoUnionRound

NAME = "two-phases"
COUNT_ELEMENTS = 130
"""Two chunks of 64 and a rest: phases may differ in length."""


class TwoPhasesRound:
    """First everybody counts the members together, then no-union."""

    def __init__(self, parameters: Parameters, inner: NoUnionRound) -> None:
        self._parameters = parameters
        self._inner = inner
        self.counted = 0

    def vectors(self, phase: str) -> tuple[Vector, ...]:
        return (count_vector(self._parameters),) if phase == "count" else self._inner.vectors(phase)

    def contribute(self, phase: str) -> tuple[Residues, ...]:
        if phase == "count":
            return (np.ones(COUNT_ELEMENTS, dtype=np.uint32),)
        return self._inner.contribute(phase)

    def absorb(self, phase: str, sums: Sequence[Residues], members: int) -> None:
        if phase == "count":
            if not (sums[0] == members).all():
                raise PeerError(RejectReason.IMPOSSIBLE_SUM, f"{members} members do not add up")
            self.counted = members
            return
        self._inner.absorb(phase, sums, members)

    def conclude(self, *, took_part: bool) -> Conclusion:
        return self._inner.conclude(took_part=took_part)


def count_vector(parameters: Parameters) -> Vector:
    return Vector("count", COUNT_ELEMENTS, parameters.signs_modulus)


@dataclass(frozen=True, slots=True)
class TwoPhases:
    name: str = NAME
    phases: tuple[Phase, ...] = (Phase("count"), Phase("signs"))

    def begin(self, parameters: Parameters, *, theta: Theta, update: Theta, accumulator: Theta) -> TwoPhasesRound:
        inner = NoUnion().begin(parameters, theta=theta, update=update, accumulator=accumulator)
        return TwoPhasesRound(parameters, inner)

    def admit(self, parameters: Parameters, phase: str, vectors: Sequence[Vector]) -> None:
        if phase == "signs":
            NoUnion().admit(parameters, phase, vectors)
        elif tuple(vectors) != (count_vector(parameters),):
            raise PeerError(RejectReason.WRONG_LENGTH, "not the vector of a count")

    def predict_bits(self, parameters: Parameters, heads: Headcount, union_size: int) -> Mapping[str, int]:
        count = secure_sum_bits(COUNT_ELEMENTS, parameters.signs_modulus, heads)
        return {"count": count, **NoUnion().predict_bits(parameters, heads, union_size)}
