"""Verified sums: no part of a false sum is used, and refusing one reveals nothing of what was summed.

`Verified` wraps every strategy. In a tagged phase clients send one more vector, the tags of the others
(`hubbub.protocol.tags`). A server that changes a sum cannot change its tags to fit. All checks of a released sum
come together in `VerifiedRound.absorb`, before anything of the sum is used: each sets a flag, none returns early,
and there is one refusal with one text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from hubbub.errors import FalseSum, LocalError, PeerError, RejectReason
from hubbub.parameters import Parameters
from hubbub.protocol import costs, tags
from hubbub.protocol.compression import Indices
from hubbub.protocol.costs import Headcount
from hubbub.protocol.dense import Digits
from hubbub.protocol.layout import Vector
from hubbub.protocol.ring import RandomStream
from hubbub.strategies.base import (
    ClientInput,
    ClientRound,
    Conclusion,
    Exposure,
    Phase,
    Release,
    Restriction,
    Strategy,
    admit_exactly,
)


class VerifiedRound(ClientRound):
    """One client's side of a round, which refuses false sums.

    Without coefficients no tags are sent or expected, and sums are only checked for plausibility.
    """

    def __init__(
        self, inner: ClientRound, phases: Sequence[Phase], coefficients: tags.CoefficientsIn | None
    ) -> None:
        self._inner = inner
        self._phases = {phase.name: phase for phase in phases}
        self._coefficients = coefficients
        self.weight = inner.weight

    def vectors(self, phase: str) -> tuple[Vector, ...]:
        """Describe the phase's own vectors, and their tags."""
        own, kind = self._inner.vectors(phase), self._phases[phase].tagged
        return own if kind is None or self._coefficients is None else (*own, tags.describe(kind, own))

    def contribute(self, phase: str) -> tuple[Digits, ...]:
        """Return the phase's own values, and their tags."""
        own = self._inner.contribute(phase)
        return own + self._tag(phase, own)

    def restricted_to(self, phase: str) -> tuple[Restriction, ...]:
        """Return the inner round's index lists."""
        return self._inner.restricted_to(phase)

    def plausible(self, phase: str, release: Release, members: int) -> bool:
        """Say whether residues can add up to the sum, its tags fit it, and the members can have it."""
        own = _strip(release)
        due, summed = self._tag(phase, own.values), release.values[len(own.values) :]
        fits = all(np.array_equal(want, have) for want, have in zip(due, summed, strict=True))
        return release.possible & fits & self._inner.plausible(phase, own, members)

    def absorb(self, phase: str, release: Release, members: int) -> None:
        """Absorb a sum, or raise `FalseSum`."""
        if not self._phases[phase].gathers:
            admit_exactly(self.vectors(phase), release.vectors)
        if not self.plausible(phase, release, members):
            raise FalseSum
        self._inner.absorb(phase, _strip(release), members)

    def conclude(self, *, took_part: bool) -> Conclusion:
        """Conclude the inner round."""
        return self._inner.conclude(took_part=took_part)

    def _tag(self, phase: str, values: Sequence[Digits]) -> tuple[Digits, ...]:
        """Compute the tags of a client's values or of a sum; nothing if the phase carries none."""
        kind = self._phases[phase].tagged
        if kind is None or self._coefficients is None:
            return ()
        own = self._inner.vectors(phase)
        return (tags.compute(kind, own, values, partial(self._coefficients, phase)),)

    def __repr__(self) -> str:
        return repr(self._inner).replace("<", "<verified ", 1)


def _strip(release: Release) -> Release:
    """Return a release without its tags, if there are any."""
    own = len(_leave_out_tags(release.vectors))
    return replace(release, vectors=release.vectors[:own], values=release.values[:own])


def _leave_out_tags(vectors: Sequence[Vector]) -> Sequence[Vector]:
    """Return the vectors before the tags, which come last."""
    return vectors[:-1] if vectors and vectors[-1].name == tags.NAME else vectors


class Verified(Strategy):
    """A strategy whose sums are verified."""

    def __init__(self, inner: Strategy) -> None:
        self.inner = inner
        self.name, self.phases, self.support = inner.name, inner.phases, inner.support
        self.usual_rho, self.uses_rho = inner.usual_rho, inner.uses_rho
        self.usual_weights = inner.usual_weights
        self.reveals, self.repeats, self.own_models = inner.reveals, inner.repeats, inner.own_models
        self.needs = inner.needs

    def exposure(self, parameters: Parameters) -> Exposure:
        """As without: tags tell clients nothing that the sum does not."""
        return self.inner.exposure(parameters)

    def draw_mask(self, parameters: Parameters, tensors: Sequence[int], stream: RandomStream) -> Indices | None:
        """Draw the inner strategy's mask."""
        return self.inner.draw_mask(parameters, tensors, stream)

    def begin(self, parameters: Parameters, mine: ClientInput) -> VerifiedRound:
        """Begin a client's round."""
        phases = [replace(phase, tagged=phase.tags_in(parameters)) for phase in self.phases]
        tagged = any(phase.tagged for phase in phases)
        if tagged and mine.coefficients is None:
            raise LocalError("a round whose sums are verified begins with the coefficients of its tags")
        inner = self.inner.begin(parameters, mine)
        return VerifiedRound(inner, phases, mine.coefficients if tagged else None)

    def admit(self, parameters: Parameters, phase: str, vectors: Sequence[Vector]) -> None:
        """Admit the phase's own vectors, and their tags."""
        own = self._admit_tags(parameters, phase, vectors)
        self.inner.admit(parameters, phase, own)

    def admit_release(self, parameters: Parameters, phase: str, vectors: Sequence[Vector]) -> None:
        """Admit the phase's own released vectors, and their tags."""
        own = self._admit_tags(parameters, phase, vectors)
        self.inner.admit_release(parameters, phase, own)

    def _admit_tags(self, parameters: Parameters, phase: str, vectors: Sequence[Vector]) -> Sequence[Vector]:
        """Return the vectors before the tags; raise `PeerError` for other tags than the phase carries."""
        kind = next(each.tags_in(parameters) for each in self.phases if each.name == phase)
        if kind is None:
            return vectors
        own = _leave_out_tags(vectors)
        if len(own) == len(vectors):
            raise PeerError(RejectReason.WRONG_LENGTH, "the last vector of a set must be its tags")
        admit_exactly((tags.describe_for(kind, parameters.q),), vectors[-1:])
        return own

    def union_size(self, released: Sequence[Vector]) -> int:
        """Return the inner strategy's |V|."""
        return self.inner.union_size(_leave_out_tags(released))

    def predict_bits(self, parameters: Parameters, heads: Headcount, union_size: int) -> Mapping[str, int]:
        """Compute the inner strategy's payload, and that of the tags, which count apart."""
        bits = self.inner.predict_bits(parameters, heads, union_size)
        if not any(phase.tags_in(parameters) for phase in self.phases):
            return bits
        return {**bits, tags.NAME: self.predict_tags_bits(parameters, lambda _: heads)}

    def predict_tags_bits(self, parameters: Parameters, heads_in: Callable[[str], Headcount]) -> int:
        """Compute the payload of a round's tags; senders and recipients may differ from phase to phase."""
        return sum(
            costs.tags_bits(kind, parameters.q, heads_in(phase.name), parameters.wire)
            for phase in self.phases
            if (kind := phase.tags_in(parameters))
        )
