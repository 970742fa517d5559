"""`shared-mask`: all clients train the same coordinates, drawn anew in each round, and add up a few bits of each.

A round has one phase. V is drawn from a key that the clients derive from their group secret, so that no server
knows it, and neither server nor coordinator can choose it. It depends on nobody's data. The clients train V alone
(`ClientInput.mask`), and every member sends a level for every coordinate of V, and its factor α. The step is
(mean α)·(mean level) on V. Nothing is carried over: there is no accumulator, and the optimiser begins afresh.

Clients see the sum of the levels at each coordinate. Where all members sent the highest level, or all the lowest,
every client knows everybody's. With one bit, that is wherever all signs agree.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from hubbub.errors import LocalError
from hubbub.parameters import Parameters
from hubbub.protocol import aggregate, compression, costs, masks
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
    require,
    weigh,
)
from hubbub.strategies.unions import Directions

LEVELS = Phase("levels", tagged="integers")
ONE_BIT = "with one bit a coordinate, wherever all members' signs agree every client knows everybody's sign"
"""Leak of levels of one bit to clients; more bits show less."""


class MaskRound(ClientRound):
    """One client's side of a round over a shared mask."""

    def __init__(self, parameters: Parameters, mine: ClientInput) -> None:
        update = weigh(parameters, mine)
        if mine.mask is None:
            raise LocalError("a round of shared-mask begins with the mask that was trained on")
        self._parameters, self._mask = parameters, mine.mask
        self._theta, self._accumulator, self._history = mine.theta, mine.accumulator, mine.history
        change = update[mine.mask]
        if mine.silent:
            change = np.zeros_like(change)
        compression.check_finite(change)
        self._factor = parameters.fixed_point.to_ring(masks.scale(change, parameters.bits))
        # Levels are of the factor that is sent, which is rounded down and at most alpha_max.
        alpha = parameters.fixed_point.from_ring(self._factor)
        self._levels = masks.quantise(change, alpha, parameters.bits, mine.stream)
        self._moves: tuple[Directions, float, int] | None = None

    def vectors(self, phase: str) -> tuple[Vector, ...]:
        """Describe a level for each coordinate of V, and one factor."""
        del phase
        return _describe(self._parameters)

    def contribute(self, phase: str) -> tuple[Digits, ...]:
        """Return the levels and Q(α_i)."""
        del phase
        return self._levels, np.array([self._factor], dtype=np.uint32)

    def restricted_to(self, phase: str) -> tuple[Restriction, ...]:
        """Return V."""
        del phase
        return (Restriction(self._mask),)

    def plausible(self, phase: str, release: Release, members: int) -> bool:
        """Say whether the members can have such levels and factors."""
        del phase
        directions, factor = self._decode(release, members)
        top = masks.top_level(self._parameters.bits)
        return aggregate.are_sums_possible(directions, factor, members, self._parameters.fixed_point, largest=top)

    def absorb(self, phase: str, release: Release, members: int) -> None:
        """Store the sums, from which U is computed at the end."""
        del phase
        directions, factor = self._decode(release, members)
        self._moves = directions, self._parameters.fixed_point.from_ring(factor), members

    def _decode(self, release: Release, members: int) -> tuple[Directions, int]:
        levels, factors = release.values
        return masks.to_directions(levels, members, self._parameters.bits), int(factors[0])

    def conclude(self, *, took_part: bool) -> Conclusion:
        """Apply U on V. A client that was left out drops its change: the next round trains other coordinates."""
        del took_part
        directions, alpha_sum, members = require(self._moves)
        clamped = self._parameters.factor_bounds.clamp(alpha_sum / members, self._history)
        units = members * masks.top_level(self._parameters.bits)
        return Conclusion(
            aggregate.apply_sum_on(self._mask, self._theta, directions, clamped.factor, units),
            self._accumulator,
            self._mask.size,
            history=clamped.history,
            scale=clamped.scale,
        )

    def __repr__(self) -> str:
        return f"<MaskRound of {self._parameters.model_size} parameters>"


def _describe(parameters: Parameters) -> tuple[Vector, ...]:
    return (
        Vector(LEVELS.name, parameters.kept, parameters.levels_modulus),
        Vector("factors", 1, parameters.factors_modulus),
    )


class SharedMask(Strategy):
    """Levels of a few bits on coordinates that are drawn for all clients."""

    name = "shared-mask"
    phases = (LEVELS,)
    support = "mask"
    usual_rho = 0.03

    def exposure(self, parameters: Parameters) -> Exposure:
        """Servers learn nothing, not even V; clients see where all levels are extreme."""
        agreed = "all signs on V that agree" if parameters.bits == 1 else "extreme levels that agree"
        return Exposure(clients_learn=agreed)

    def draw_mask(self, parameters: Parameters, tensors: Sequence[int], stream: RandomStream) -> Indices:
        """Draw V: k = ⌊ρ·N⌋ coordinates."""
        return masks.draw_mask(tensors, parameters.kept, stream)

    def begin(self, parameters: Parameters, mine: ClientInput) -> MaskRound:
        """Quantise the change on V."""
        return MaskRound(parameters, mine)

    def admit(self, parameters: Parameters, phase: str, vectors: Sequence[Vector]) -> None:
        """Admit k levels and one factor."""
        del phase
        admit_exactly(_describe(parameters), vectors)

    def predict_bits(self, parameters: Parameters, heads: Headcount, union_size: int) -> Mapping[str, int]:
        """Compute 2·S·C·k·⌈log2(C·t + 1)⌉ for the levels, and the factors of Table 2."""
        del union_size
        return {
            LEVELS.name: costs.levels_bits(parameters.kept, parameters.bits, heads, parameters.wire),
            "factors": costs.factors_bits(heads, parameters.factor_bits, parameters.wire),
        }


STRATEGIES = (SharedMask(),)
