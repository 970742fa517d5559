"""Verified sums: nothing of a false sum is taken in, and refusing one tells nothing of what was summed.

`Verified` goes around every strategy. All checks of a released sum come together in `VerifiedRound.absorb`, before
anything of the sum is used: each sets a flag, none returns early, and there is one refusal with one text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hubbub.errors import FalseSum
from hubbub.parameters import Parameters
from hubbub.protocol.costs import Headcount
from hubbub.protocol.dense import Digits
from hubbub.protocol.layout import Vector
from hubbub.strategies.base import (
    ClientInput,
    ClientRound,
    Conclusion,
    Phase,
    Release,
    Restriction,
    Strategy,
    admit_exactly,
)


class VerifiedRound:
    """One client's side of a round, which takes in no sum that is false."""

    def __init__(self, inner: ClientRound, phases: Sequence[Phase]) -> None:
        self._inner = inner
        self._phases = {phase.name: phase for phase in phases}

    @property
    def weight(self) -> int:
        """As without."""
        return self._inner.weight

    def vectors(self, phase: str) -> tuple[Vector, ...]:
        """As without."""
        return self._inner.vectors(phase)

    def contribute(self, phase: str) -> tuple[Digits, ...]:
        """As without."""
        return self._inner.contribute(phase)

    def restricted_to(self, phase: str) -> tuple[Restriction, ...]:
        """As without."""
        return self._inner.restricted_to(phase)

    def plausible(self, phase: str, release: Release, members: int) -> bool:
        """Residues can add up to it, and the members can have it."""
        return release.possible & self._inner.plausible(phase, release, members)

    def absorb(self, phase: str, release: Release, members: int) -> None:
        """Take a sum in, or raise `FalseSum`."""
        if not self._phases[phase].gathers:
            admit_exactly(self.vectors(phase), release.vectors)
        if not self.plausible(phase, release, members):
            raise FalseSum
        self._inner.absorb(phase, release, members)

    def conclude(self, *, took_part: bool) -> Conclusion:
        """As without."""
        return self._inner.conclude(took_part=took_part)

    def __repr__(self) -> str:
        return repr(self._inner).replace("<", "<verified ", 1)


@dataclass(frozen=True, slots=True)
class Verified:
    """A strategy whose sums are verified."""

    inner: Strategy

    @property
    def name(self) -> str:
        """As without."""
        return self.inner.name

    @property
    def phases(self) -> tuple[Phase, ...]:
        """As without."""
        return self.inner.phases

    @property
    def reveals(self) -> str:
        """As without."""
        return self.inner.reveals

    @property
    def repeats(self) -> bool:
        """As without."""
        return self.inner.repeats

    def begin(self, parameters: Parameters, mine: ClientInput) -> VerifiedRound:
        """Begin a client's round."""
        return VerifiedRound(self.inner.begin(parameters, mine), self.phases)

    def admit(self, parameters: Parameters, phase: str, vectors: Sequence[Vector]) -> None:
        """As without."""
        self.inner.admit(parameters, phase, vectors)

    def admit_release(self, parameters: Parameters, phase: str, vectors: Sequence[Vector]) -> None:
        """As without."""
        self.inner.admit_release(parameters, phase, vectors)

    def union_size(self, released: Sequence[Vector]) -> int:
        """As without."""
        return self.inner.union_size(released)

    def predict_bits(self, parameters: Parameters, heads: Headcount, union_size: int) -> Mapping[str, int]:
        """As without."""
        return self.inner.predict_bits(parameters, heads, union_size)
