"""Fixed point: real numbers as residues mod 2^λ, so that SecureSum adds them exactly.

`FixedPoint` is for the factors, which are not negative: Q(x) = ⌊2^a·x⌋ (Beguier et al., sections 2.4 and 3.2.4).
The paper asks for an a such that the sum of C factors does not overflow. Here factors are clipped at alpha_max,
and a is the largest integer with C·⌊2^a·alpha_max⌋ < 2^λ; it may be negative.

`SignedFixedPoint` is for numbers of either sign:

    q(x) = 2^a·x, rounded to the nearest integer and clipped at ±L    where L = ⌊2^a·largest⌋
    x    = q mod 2^λ                                                  negative ones in the upper half
    Σ x  = 2^-a·(Σ q)                                                 read back from (-2^(λ-1), 2^(λ-1))

It is the same fixed point with one bit for the sign: a is the largest integer with C·L < 2^(λ-1), so that no sum
of a whole cohort leaves the half of its sign. A multiple of 2^-a is added exactly, any other number to within half
of that. Each number of a vector may have a range, and so an a, of its own; the ring, up to Z_(2^64), is one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hubbub.errors import BadUpdate, ConfigurationError, LocalError
from hubbub.protocol.packing import Residues, check_residues, residue_type

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
    def for_cohort(cls, clients: int, alpha_max: float, modulus_bits: int = 32) -> FixedPoint:
        """Choose the finest representation in which the factors of a whole cohort add up without overflow."""
        return cls(fraction_bits(clients, alpha_max, modulus_bits), modulus_bits, alpha_max)

    @property
    def modulus(self) -> int:
        """2^λ."""
        return int(2**self.modulus_bits)

    def to_ring(self, alpha: float) -> int:
        """Compute Q(alpha), after clipping at alpha_max."""
        if not math.isfinite(alpha) or alpha < 0:
            raise BadUpdate("a scaling factor is negative, infinite or not a number; look at the learning rate")
        # Scaling by a power of two is exact, or so small that the floor is 0 either way.
        return math.floor(math.ldexp(min(alpha, self.alpha_max), self.fraction_bits))

    def from_ring(self, value: int) -> float:
        """Compute Q⁻¹(value) = value / 2^a, for one factor or the sum of a cohort's."""
        if not 0 <= value < self.modulus:
            raise LocalError(f"{value} is no residue mod 2^{self.modulus_bits}")
        return math.ldexp(value, -self.fraction_bits)


def _check_range(alpha_max: float, modulus_bits: int) -> None:
    if not 1 <= modulus_bits <= MAX_MODULUS_BITS:
        raise ConfigurationError(f"factors take {modulus_bits} bits; choose from 1 to {MAX_MODULUS_BITS}")
    if not math.isfinite(alpha_max) or alpha_max <= 0:
        raise ConfigurationError(f"alpha_max is {alpha_max}; choose a finite number above 0")


Reals = NDArray[np.floating[Any]]
Units = NDArray[np.int64]
"""Integers, in multiples of 2^-a."""

_HALF_BITS = 16
MIN_MODULUS_BITS = 2
"""One bit for the sign, one for the number."""
LONG_MODULUS_BITS = 64
"""The one size of a ring above 2^32."""
_DOUBLE_BITS = 53
"""Binary digits of a double."""


@dataclass(frozen=True, slots=True, eq=False)
class SignedFixedPoint:
    """q and its inverse, for numbers that have one range in common, or one each.

    Every field but the last two is a single value, or an array with one value for each number.
    """

    largest: NDArray[np.float64]
    """The largest number that a client can add, of either sign."""
    fraction_bits: NDArray[np.int64]
    """The exponent a, which is negative where the range is wide: then even whole numbers are rounded."""
    largest_units: Units
    """L, the most that one client can send."""
    modulus_bits: int
    clients: int

    @classmethod
    def for_cohort(
        cls, clients: int, largest: ArrayLike, modulus_bits: int = MAX_MODULUS_BITS
    ) -> SignedFixedPoint:
        """Choose the finest units in which the numbers of a whole cohort add up without overflow."""
        if not MIN_MODULUS_BITS <= modulus_bits <= MAX_MODULUS_BITS and modulus_bits != LONG_MODULUS_BITS:
            raise ConfigurationError(
                f"numbers take {modulus_bits} bits; choose from {MIN_MODULUS_BITS} to {MAX_MODULUS_BITS}, or "
                f"{LONG_MODULUS_BITS}"
            )
        most, ranges = _most_units(clients, modulus_bits), np.array(largest, np.float64)
        _check_ranges(ranges, clients)
        # The range is f·2^e with 1/2 ≤ f < 1, and a the largest with f·2^(a + e) < most + 1. That is at least the
        # number of bits in `most`, less one, and one more where f < bound; f has 53 bits, so we may round up.
        fractions, exponents = np.frexp(ranges)
        bound = math.ceil(Fraction(most + 1, 2 ** most.bit_length()) * 2**_DOUBLE_BITS) / 2**_DOUBLE_BITS
        bits = most.bit_length() - 1 + (fractions < bound).astype(np.int64)
        units = np.floor(np.ldexp(fractions, bits)).astype(np.int64)
        return cls(ranges, bits - exponents, units, modulus_bits, clients)

    def at(self, places: NDArray[np.int64]) -> SignedFixedPoint:
        """Return the fixed point of the numbers at these places."""
        if not self.largest.ndim:
            return self
        return replace(
            self,
            largest=self.largest[places],
            fraction_bits=self.fraction_bits[places],
            largest_units=self.largest_units[places],
        )

    def repeat(self, counts: Sequence[int]) -> SignedFixedPoint:
        """Return the fixed point of more numbers: so many have the first range, so many the next."""
        return self.at(np.repeat(np.arange(len(counts)), counts))

    @property
    def modulus(self) -> int:
        """2^λ."""
        return int(2**self.modulus_bits)

    @property
    def unit(self) -> NDArray[np.float64]:
        """2^-a, the step between two representable numbers."""
        unit: NDArray[np.float64] = np.ldexp(1.0, -self.fraction_bits)
        return unit

    @property
    def error(self) -> NDArray[np.float64]:
        """Bound on the error of the sum of a whole cohort, as `to_reals` returns it.

        A client is off by half a unit. If more than that is left over at the end of its range, where numbers are
        cut off, it is off by less than a unit. A sum of more than 53 bits is rounded to a double.
        """
        left_over = self.largest - np.ldexp(self.largest_units.astype(np.float64), -self.fraction_bits)
        own = np.where(left_over > self.unit / 2, self.unit, self.unit / 2)
        is_long = self.clients * self.largest_units.astype(np.float64) > 2.0**_DOUBLE_BITS
        error: NDArray[np.float64] = self.clients * own + is_long * np.spacing(self.clients * self.largest) / 2
        return error

    @property
    def adds_whole_numbers(self) -> NDArray[np.bool_]:
        """True where sums of whole numbers are exact: they are multiples of a unit, and fit a double."""
        exact: NDArray[np.bool_] = (self.unit <= 1) & (self.clients * self.largest <= 2.0**_DOUBLE_BITS)
        return exact

    def limit_for(self, unit: float) -> float:
        """Return a range that is small enough for units of at most this size, and for sums that fit a double."""
        most = min(_most_units(self.clients, self.modulus_bits), 2**_DOUBLE_BITS // self.clients)
        return math.ldexp(most, math.frexp(unit)[1] - 1)

    def outside(self, values: Reals) -> NDArray[np.bool_]:
        """Return a mask of the numbers that are beyond the largest, or NaN."""
        beyond: NDArray[np.bool_] = ~(np.abs(values.astype(np.float64)) <= self.largest)
        return beyond

    def to_units(self, values: Reals) -> Units:
        """Compute q(x). A number beyond the largest is clipped, and NaN becomes 0."""
        within = np.clip(np.nan_to_num(values.astype(np.float64)), -self.largest, self.largest)
        # Scaling by a power of two is exact, or so small that it is rounded to 0 either way.
        rounded: Units = np.rint(np.ldexp(within, self.fraction_bits)).astype(np.int64)
        return np.clip(rounded, -self.largest_units, self.largest_units)

    def to_ring(self, units: Units) -> Residues:
        """Reduce mod 2^λ; negative numbers move to the upper half."""
        residues: Residues = units.astype(np.uint64)  # Mod 2^64.
        return (residues & np.uint64(self.modulus - 1)).astype(residue_type(self.modulus), copy=False)

    def from_ring(self, residues: Residues) -> Units:
        """Read residues as units; the upper half is negative."""
        check_residues(residues, self.modulus)
        units = residues.astype(np.int64)
        if self.modulus_bits < LONG_MODULUS_BITS:
            units[units >= self.modulus // 2] -= self.modulus
        return units

    def to_reals(self, units: Units) -> NDArray[np.float64]:
        """Compute 2^-a·q: exactly up to 53 bits, and beyond as the nearest double."""
        scaled: NDArray[np.float64] = np.ldexp(units.astype(np.float64), -self.fraction_bits)
        return scaled

    def are_sums_possible(self, sums: Units, summands: int | Residues) -> bool:
        """Say whether `summands` numbers, one count for all sums or one for each, can have these sums."""
        most = np.multiply(summands, self.largest_units, dtype=np.int64)
        # Compared twice: the smallest integer of 64 bits has no magnitude.
        return not ((sums > most) | (sums < -most)).any()


def _most_units(clients: int, modulus_bits: int) -> int:
    """Return the largest integer that all clients can add in the half of the ring that has their sign."""
    if clients < 1:
        raise ConfigurationError(f"a sum has at least one client, not {clients}")
    most = int(2 ** (modulus_bits - 1) - 1) // clients
    if not most:
        raise ConfigurationError(
            f"{clients} numbers cannot be added in {modulus_bits} bits without overflow; use more bits"
        )
    return most


def _check_ranges(ranges: NDArray[np.float64], clients: int) -> None:
    """Raise `ConfigurationError` for a range that is not positive, or whose sum is beyond all doubles."""
    with np.errstate(over="ignore"):
        wrong = np.flatnonzero(~((ranges > 0) & np.isfinite(ranges * clients)))
    if wrong.size:
        which = f" of entry {wrong[0]}" if ranges.ndim else ""
        raise ConfigurationError(
            f"the largest number{which} is {ranges.flat[wrong[0]]}; choose a finite number above 0, and one "
            "that is finite for all clients together"
        )


def root_mean_square(units: Units) -> float:
    """Compute the root of the mean of the squares, from exact sums: every machine has the same bits."""
    magnitudes = np.abs(units)
    high, low = magnitudes >> _HALF_BITS, magnitudes & (2**_HALF_BITS - 1)
    squares = [int((one * other).sum()) for one, other in ((high, high), (high, low), (low, low))]
    total = (squares[0] << 2 * _HALF_BITS) + (squares[1] << _HALF_BITS + 1) + squares[2]
    return math.sqrt(total / units.size)
