"""Non-negative reals as integers mod 2^λ: Q(x) = ⌊2^a·x⌋ (Beguier et al., sections 2.4 and 3.2.4).

The paper asks for an a such that the sum of C factors does not overflow. Here factors are clipped at
alpha_max, and a is the largest integer with C·⌊2^a·alpha_max⌋ < 2^λ; it may be negative.
"""

import math
from dataclasses import dataclass
from fractions import Fraction

from hubbub.errors import BadUpdate, ConfigurationError, LocalError

MAX_MODULUS_BITS = 32


def fraction_bits(clients: int, alpha_max: float, modulus_bits: int = 32) -> int:
    """Choose a, the largest with C·⌊2^a·alpha_max⌋ < 2^λ, in exact arithmetic."""
    _check_range(alpha_max, modulus_bits)
    if clients < 1:
        raise ConfigurationError(f"a sum has at least one client, not {clients}")
    largest = (2**modulus_bits - 1) // clients
    if largest == 0:
        raise ConfigurationError(
            f"{clients} factors cannot be added in {modulus_bits} bits without overflow; use more bits"
        )
    # ⌊2^a·alpha_max⌋ ≤ largest is the same as 2^a < (largest + 1) / alpha_max.
    bound = Fraction(largest + 1) / Fraction(alpha_max)
    a = bound.numerator.bit_length() - bound.denominator.bit_length()
    return a if Fraction(2) ** a < bound else a - 1


@dataclass(frozen=True, slots=True)
class FixedPoint:
    """Q and its inverse for one choice of a (`fraction_bits`), λ (`modulus_bits`) and alpha_max."""

    fraction_bits: int
    modulus_bits: int
    alpha_max: float

    def __post_init__(self) -> None:
        _check_range(self.alpha_max, self.modulus_bits)
        largest = math.floor(Fraction(2) ** self.fraction_bits * Fraction(self.alpha_max))
        if not 1 <= largest < 2**self.modulus_bits:
            raise ConfigurationError(
                f"with a = {self.fraction_bits}, {self.alpha_max} becomes {largest}, "
                f"which is not between 1 and 2^{self.modulus_bits} - 1"
            )

    @classmethod
    def for_cohort(cls, clients: int, alpha_max: float, modulus_bits: int = 32) -> "FixedPoint":
        """Choose the finest representation in which the factors of a whole cohort add up without overflow."""
        return cls(fraction_bits(clients, alpha_max, modulus_bits), modulus_bits, alpha_max)

    @property
    def modulus(self) -> int:
        """2^λ."""
        return int(2**self.modulus_bits)

    def to_ring(self, alpha: float) -> int:
        """Q(alpha), after clipping at alpha_max."""
        if not math.isfinite(alpha) or alpha < 0:
            raise BadUpdate("a scaling factor is negative, infinite or not a number; look at the learning rate")
        # Scaling by a power of two is exact, or so small that the floor is 0 either way.
        return math.floor(math.ldexp(min(alpha, self.alpha_max), self.fraction_bits))

    def from_ring(self, value: int) -> float:
        """Q⁻¹(value) = value / 2^a, for one factor or the sum of a cohort's."""
        if not 0 <= value < self.modulus:
            raise LocalError(f"{value} is no residue mod 2^{self.modulus_bits}")
        return math.ldexp(value, -self.fraction_bits)


def _check_range(alpha_max: float, modulus_bits: int) -> None:
    if not 1 <= modulus_bits <= MAX_MODULUS_BITS:
        raise ConfigurationError(f"factors take {modulus_bits} bits; choose from 1 to {MAX_MODULUS_BITS}")
    if not math.isfinite(alpha_max) or alpha_max <= 0:
        raise ConfigurationError(f"alpha_max is {alpha_max}; choose a finite number above 0")
