"""Real numbers of either sign as residues mod 2^λ, so that SecureSum adds them exactly.

    q(x) = 2^a·x, rounded to the nearest integer and clipped at ±L    where L = ⌊2^a·largest⌋
    x    = q mod 2^λ                                                  negative ones in the upper half
    Σ x  = 2^-a·(Σ q)                                                 read back from (-2^(λ-1), 2^(λ-1))

It is the fixed point of the factors (Beguier et al., section 2.4) with one bit for the sign: a is the largest
integer with C·L < 2^(λ-1), so that no sum of a whole cohort leaves the half that its sign says. A number that is a
multiple of 2^-a is added as it is, any other to within half of that.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hubbub.errors import ConfigurationError
from hubbub.protocol.fixed_point import MAX_MODULUS_BITS, FixedPoint
from hubbub.protocol.residues import Residues, check_residues

Reals = NDArray[np.floating[Any]]
Units = NDArray[np.int64]
"""Integers, each so many times 2^-a."""

MIN_MODULUS_BITS = 2
"""One for the sign, one for the number."""


@dataclass(frozen=True, slots=True)
class SignedFixedPoint:
    """q and its inverse. `magnitudes` is the fixed point of the numbers without their sign, in λ - 1 bits."""

    magnitudes: FixedPoint

    @classmethod
    def for_cohort(cls, clients: int, largest: float, modulus_bits: int = MAX_MODULUS_BITS) -> "SignedFixedPoint":
        """Choose the finest units in which the numbers of a whole cohort add up without overflow."""
        if not MIN_MODULUS_BITS <= modulus_bits <= MAX_MODULUS_BITS:
            raise ConfigurationError(
                f"numbers take {modulus_bits} bits; choose from {MIN_MODULUS_BITS} to {MAX_MODULUS_BITS}"
            )
        return cls(FixedPoint.for_cohort(clients, largest, modulus_bits - 1))

    @property
    def largest(self) -> float:
        """The largest number that a client can add, of either sign."""
        return self.magnitudes.alpha_max

    @property
    def fraction_bits(self) -> int:
        """a, which is negative where the range is wide: then even whole numbers are rounded."""
        return self.magnitudes.fraction_bits

    @property
    def modulus(self) -> int:
        """2^λ."""
        return 2 * self.magnitudes.modulus

    @property
    def unit(self) -> float:
        """2^-a, the step between two numbers that can be sent."""
        return float(np.ldexp(1.0, -self.fraction_bits))

    @property
    def largest_units(self) -> int:
        """L, the most that one client can send."""
        return self.magnitudes.to_ring(self.largest)

    def outside(self, values: Reals) -> NDArray[np.bool_]:
        """Which numbers are beyond the largest, or are none at all (NaN)."""
        beyond: NDArray[np.bool_] = ~(np.abs(values.astype(np.float64)) <= self.largest)
        return beyond

    def to_units(self, values: Reals) -> Units:
        """q(x). What is beyond the largest is clipped, and what is no number is 0."""
        within = np.clip(np.nan_to_num(values.astype(np.float64)), -self.largest, self.largest)
        # Scaling by a power of two is exact, or so small that it is rounded to 0 either way.
        rounded: Units = np.rint(np.ldexp(within, self.fraction_bits)).astype(np.int64)
        return np.clip(rounded, -self.largest_units, self.largest_units)

    def to_ring(self, units: Units) -> Residues:
        """Reduce mod 2^λ; negative numbers come to lie in the upper half."""
        residues: Residues = np.mod(units, self.modulus).astype(np.uint32)
        return residues

    def from_ring(self, residues: Residues) -> Units:
        """The sum in units: what lies in the upper half is negative."""
        check_residues(residues, self.modulus)
        units = residues.astype(np.int64)
        units[units >= self.modulus // 2] -= self.modulus
        return units

    def to_reals(self, units: Units) -> NDArray[np.float64]:
        """2^-a·q, exactly: a sum has at most 32 bits, and a double holds 53."""
        scaled: NDArray[np.float64] = np.ldexp(units.astype(np.float64), -self.fraction_bits)
        return scaled

    def are_sums_possible(self, sums: Units, summands: int | Residues) -> bool:
        """Tell whether so many numbers, the same for all or one count for each, can have these sums."""
        return not (np.abs(sums) > np.multiply(summands, self.largest_units, dtype=np.int64)).any()
