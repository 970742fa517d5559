"""A strategy with two phases, which no real strategy of one phase can stand in for."""

from collections.abc import Mapping, Sequence

import numpy as np

from hubbub.errors import PeerError, RejectReason
from hubbub.parameters import Parameters
from hubbub.protocol.costs import Headcount, secure_sum_bits
from hubbub.protocol.dense import Digits
from hubbub.protocol.layout import Vector
from hubbub.strategies.base import (
    ClientInput,
    ClientRound,
    Conclusion,
    Exposure,
    Phase,
    Release,
    Restriction,
    Strategy,
)
from hubbub.strategies.registry import STRATEGIES
from hubbub.strategies.secure import SecureRound
from hubbub.strategies.unions import SIGNS

NO_UNION = STRATEGIES["no-union"].inner
NAME = "two-phases"
COUNT_ELEMENTS = 130
"""Two chunks of 64 and a rest: phases may differ in length."""


class TwoPhasesRound(ClientRound):
    """First everybody counts the members together, then no-union."""

    def __init__(self, parameters: Parameters, mine: ClientInput) -> None:
        self._parameters = parameters
        self._inner = SecureRound(None, parameters, mine)
        self.counted = 0

    def vectors(self, phase: str) -> tuple[Vector, ...]:
        return (count_vector(self._parameters),) if phase == "count" else self._inner.vectors(phase)

    def contribute(self, phase: str) -> tuple[Digits, ...]:
        if phase == "count":
            return (np.ones(COUNT_ELEMENTS, dtype=np.uint32),)
        return self._inner.contribute(phase)

    def restricted_to(self, phase: str) -> tuple[Restriction, ...]:
        return self._inner.restricted_to(phase)

    def plausible(self, phase: str, release: Release, members: int) -> bool:
        if phase == "count":
            return bool((release.values[0] == members).all())
        return self._inner.plausible(phase, release, members)

    def absorb(self, phase: str, release: Release, members: int) -> None:
        if phase == "count":
            self.counted = members
            return
        self._inner.absorb(phase, release, members)

    def conclude(self, *, took_part: bool) -> Conclusion:
        return self._inner.conclude(took_part=took_part)


def count_vector(parameters: Parameters) -> Vector:
    return Vector("count", COUNT_ELEMENTS, parameters.signs_modulus)


class TwoPhases(Strategy):
    name = NAME
    phases = (Phase("count", tagged="integers"), SIGNS)
    support = "dense"

    def exposure(self, parameters: Parameters) -> Exposure:
        return NO_UNION.exposure(parameters)

    def begin(self, parameters: Parameters, mine: ClientInput) -> TwoPhasesRound:
        return TwoPhasesRound(parameters, mine)

    def admit(self, parameters: Parameters, phase: str, vectors: Sequence[Vector]) -> None:
        if phase == "signs":
            NO_UNION.admit(parameters, phase, vectors)
        elif tuple(vectors) != (count_vector(parameters),):
            raise PeerError(RejectReason.WRONG_LENGTH, "not the vector of a count")

    def predict_bits(self, parameters: Parameters, heads: Headcount, union_size: int) -> Mapping[str, int]:
        count = secure_sum_bits(COUNT_ELEMENTS, parameters.signs_modulus, heads)
        return {"count": count, **NO_UNION.predict_bits(parameters, heads, union_size)}
