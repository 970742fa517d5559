"""`secure-fedavg`: federated averaging of whole updates as a secure sum. Nothing is compressed.

A round has one phase. A client sends its update times its weight w_i, in fixed point:

    client i    q_i = 2^a·w_i·X_i, rounded to the nearest integer     X_i = U_i + δ_i, entries clipped at alpha_max
    everybody   U = 2^-a·(Σ q_i)

The weights of the whole cohort add up to 1: each is n_i/Σn (`hubbub.protocol.weights`), or 1/C where all count the
same. If a client is missing, its weight is missing in the sum as well. Dividing by the members' weights would tell
what the missing weight is.

U differs from the mean of FedAvg by at most M/2 units of 2^-a in an entry, where M is the number of members: each
rounds once, and sums are exact. With alpha_max = 16, a is 25, and five clients are off by 8·10⁻⁸ at most.

The bound of the fixed point is alpha_max, whatever the size of the cohort, because the weights add up to 1.

One client can send any sum that the ring holds, so clients bound the step as they bound the mean factor of other
strategies: a step whose root mean square is above the bound is scaled down to it. Only a client that was left out
uses its accumulator: it sends its update in the next round.

Clients see the mean update itself, not only signs of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from hubbub.ids import Weights
from hubbub.parameters import Parameters
from hubbub.protocol import compression, costs
from hubbub.protocol.costs import Headcount
from hubbub.protocol.dense import Digits
from hubbub.protocol.fixed_point import Units, root_mean_square
from hubbub.protocol.layout import Vector
from hubbub.strategies.base import (
    ClientInput,
    ClientRound,
    Conclusion,
    Exposure,
    Phase,
    Release,
    Strategy,
    add_up,
    admit_exactly,
    require,
    speak,
)

UPDATE = Phase("update", tagged="integers")


class SecureFedAvgRound(ClientRound):
    """One client's side of a round of federated averaging by a secure sum."""

    def __init__(self, parameters: Parameters, mine: ClientInput) -> None:
        self._parameters, self._numbers = parameters, parameters.mean_fixed_point
        self._theta, self._history = mine.theta, mine.history
        # The weight goes into the fixed point, in double precision.
        self._wanted = add_up(parameters, replace(mine, weight=None))
        self._spoken = speak(mine, self._wanted)
        compression.check_finite(self._spoken)
        weight = 1 / parameters.clients if mine.weight is None else mine.weight
        within = np.clip(self._spoken.astype(np.float64), -parameters.alpha_max, parameters.alpha_max)
        self._units = self._numbers.to_units(within * weight)
        self._clipped = int(np.count_nonzero(self._numbers.outside(self._spoken)))
        self._total: Units | None = None

    def vectors(self, phase: str) -> tuple[Vector, ...]:
        """Describe N numbers."""
        del phase
        return _describe(self._parameters)

    def contribute(self, phase: str) -> tuple[Digits, ...]:
        """Return q_i."""
        del phase
        return (self._numbers.to_ring(self._units),)

    def plausible(self, phase: str, release: Release, members: int) -> bool:
        """Say whether weights of at most 1 together can have these sums; every member may have rounded up."""
        del phase
        return int(np.abs(self._decode(release)).max()) <= int(self._numbers.largest_units) + members

    def absorb(self, phase: str, release: Release, members: int) -> None:
        """Store the sum."""
        del phase, members
        self._total = self._decode(release)

    def _decode(self, release: Release) -> Units:
        return self._numbers.from_ring(release.values[0].astype(np.uint32, copy=False))

    def conclude(self, *, took_part: bool) -> Conclusion:
        """Apply U. What a member sent leaves its accumulator, also if the step was scaled down."""
        total = require(self._total)
        mean = math.ldexp(root_mean_square(total), -int(self._numbers.fraction_bits))
        clamped = self._parameters.factor_bounds.clamp(mean, self._history)
        step = self._numbers.to_reals(total)
        step *= clamped.scale
        return Conclusion(
            self._theta + step.astype(np.float32),
            self._wanted - self._spoken if took_part else self._wanted,
            self._parameters.model_size,
            changed=self._clipped if took_part else 0,
            history=clamped.history,
            scale=clamped.scale,
        )

    def __repr__(self) -> str:
        return f"<SecureFedAvgRound of {self._parameters.model_size} parameters>"


def _describe(parameters: Parameters) -> tuple[Vector, ...]:
    return (Vector(UPDATE.name, parameters.model_size, parameters.mean_fixed_point.modulus, signed=True),)


class SecureFedAvg(Strategy):
    """Federated averaging: whole updates, of which servers see nothing."""

    name = "secure-fedavg"
    phases = (UPDATE,)
    support = "dense"
    usual_weights: Weights = "samples"
    uses_rho = False

    def exposure(self, parameters: Parameters) -> Exposure:
        """Servers learn nothing, and clients the mean update."""
        del parameters
        return Exposure(clients_learn="the mean update")

    def begin(self, parameters: Parameters, mine: ClientInput) -> SecureFedAvgRound:
        """Weigh the update."""
        return SecureFedAvgRound(parameters, mine)

    def admit(self, parameters: Parameters, phase: str, vectors: Sequence[Vector]) -> None:
        """Admit N numbers."""
        del phase
        admit_exactly(_describe(parameters), vectors)

    def predict_bits(self, parameters: Parameters, heads: Headcount, union_size: int) -> Mapping[str, int]:
        """Compute Eq. 3 for N numbers: 2·S·C·N·32."""
        del union_size
        bits = costs.numbers_bits(parameters.model_size, heads, parameters.factor_bits, parameters.wire)
        return {UPDATE.name: bits}


STRATEGIES = (SecureFedAvg(),)
