"""Applying the sums to the model, with bounded influence (Beguier et al., Alg. 2, last line).

θ' = θ + U with U = (α/M)·(D/M), where M is the number of members whose shares are in the sums; in the paper
M = C. Before the step, clients check that the sums are possible and clamp the mean factor α/M.

A client gives one sign an index, but nothing ties its factor to those of the others: alone, it could make the step
U = (mean α)·(mean D) as large as alpha_max allows. So every client clamps the mean factor at

    κ · (lower median of the clamped, non-zero means of the released rounds so far)

and at least at a floor, so that a few tiny steps do not freeze the model for good. The first round, which has none
before it, has a bound of its own. No entry of U is larger than the clamped mean.

A run may have server momentum β. Then the model moves by v' = β·v + U instead of U. The velocity v is what it
moved by in the round before, and zero at first. U is bounded as above, and over all later rounds moves the model
by at most U/(1-β).

All clients must hold the same θ to the bit. So U is one fixed sequence of elementwise float32 operations, and the
means are 64-bit floats: IEEE 754 fixes the result of each operation, and numpy fuses none.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median_low

import numpy as np
from numpy.typing import NDArray

from hubbub.errors import ConfigurationError, LocalError
from hubbub.protocol.compression import Floats, Indices
from hubbub.protocol.fixed_point import FixedPoint


def apply_sum(
    theta: NDArray[np.float32], signs_sum: NDArray[np.signedinteger], mean_factor: float, members: int
) -> NDArray[np.float32]:
    """Return the next model; `theta` is not changed. Slices of a model may be stepped one by one."""
    if members < 1:
        raise LocalError(f"a sum has at least one member, not {members}")
    if theta.dtype != np.float32 or theta.shape != signs_sum.shape:
        raise LocalError(
            f"a {theta.dtype} model of shape {theta.shape} cannot take signs of shape {signs_sum.shape}"
        )
    if not math.isfinite(mean_factor):
        raise LocalError("the mean of the scaling factors is not a finite number")
    updated = signs_sum.astype(np.float32)
    updated /= np.float32(members)
    updated *= np.float32(mean_factor)
    updated += theta
    return updated


def apply_sum_on(
    support: Indices,
    theta: NDArray[np.float32],
    signs_sum: NDArray[np.signedinteger],
    mean_factor: float,
    members: int,
) -> NDArray[np.float32]:
    """Return the next model, which differs from `theta` at these indices alone."""
    updated = theta.copy()
    updated[support] = apply_sum(theta[support], signs_sum, mean_factor, members)
    return updated


def add_momentum(theta: Floats, stepped: Floats, velocity: Floats, momentum: float) -> tuple[Floats, Floats]:
    """Return the next model and velocity, where a round's sums alone would make `theta` to `stepped`.

    Tiny velocities become zero. Otherwise they would shrink to subnormal numbers, which a thread rounds to zero or
    not, as its processor is set.
    """
    moved = velocity * np.float32(momentum)
    moved += stepped - theta
    moved[np.abs(moved) < LEAST_VELOCITY] = 0
    return theta + moved, moved


def are_sums_possible(
    signs_sum: NDArray[np.signedinteger],
    factors_sum: int,
    members: int,
    fixed_point: FixedPoint,
    *,
    largest: int = 1,
) -> bool:
    """Say whether any inputs of `members` clients have these sums; an entry of one client is `largest` at most.

    This reads sums and public parameters, and nothing of a client's own input.
    """
    largest_sign = max(int(signs_sum.max(initial=0)), -int(signs_sum.min(initial=0)))
    largest_factor = members * fixed_point.to_ring(fixed_point.alpha_max)
    return (largest_sign <= members * largest) & (0 <= factors_sum <= largest_factor)


LEAST_VELOCITY = np.float32(1e-30)

History = tuple[float, ...]
"""The clamped, non-zero means of the released rounds of a run, in order. As secret as the sums."""

NO_HISTORY: History = ()
MEAN = np.dtype("<f8")


@dataclass(frozen=True, slots=True)
class Clamped:
    """Factor that a round is applied with. It follows from the sums, so it does not print."""

    factor: float = field(repr=False)
    """The mean, or the bound where the mean is above it."""
    scale: float = field(repr=False)
    """The factor divided by the mean: 1 unless it was clamped."""
    history: History = field(repr=False)
    """The history including this round."""


@dataclass(frozen=True, slots=True)
class FactorBounds:
    """κ, the bound of the first round and the least bound of the others."""

    kappa: float
    first: float
    floor: float

    def __post_init__(self) -> None:
        if not 1 <= self.kappa < math.inf:
            raise ConfigurationError(f"kappa is {self.kappa}; choose a finite number of at least 1")
        if not 0 < self.floor <= self.first < math.inf:
            raise ConfigurationError(
                f"factor_floor is {self.floor} and first_factor_bound is {self.first}; both must be finite and "
                "above 0, and the floor at most the first bound"
            )

    def clamp(self, mean: float, history: History) -> Clamped:
        """Clamp a round's mean factor; `history` covers the rounds before it."""
        factor = min(mean, self._bound(history))
        scale = factor / mean if factor < mean else 1.0
        return Clamped(factor, scale, (*history, factor) if factor > 0 else history)

    def _bound(self, history: History) -> float:
        if not history:
            return self.first
        return max(self.floor, self.kappa * median_low(history))


def pack(history: History, places: int) -> bytes:
    """Encode a history, padded with zeros to `places` means: the length does not tell how many it has."""
    padded = np.zeros(places, dtype=MEAN)
    padded[: len(history)] = history
    return padded.tobytes()


def unpack(packed: bytes) -> History:
    """Decode what `pack` encoded."""
    means: Sequence[float] = np.frombuffer(packed, dtype=MEAN).tolist()
    return tuple(mean for mean in means if mean)
