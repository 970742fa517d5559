"""Numbers from their digits in some base, for many numbers at once.

Digits lie side by side in memory, in 8, 16 or 32 bits each, the lowest first. A lane of up to 64 bits holds
several, and they become one number by steps that work on all lanes: neighbours a and b in the halves of a lane
become a + base·b in the whole, then pairs become a + base²·b, then fours a + base⁴·b. The way back divides by
base⁴, base² and base.
"""

from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
from numpy.typing import NDArray

from hubbub.protocol.fields import BYTE_BITS, UNSIGNED, WORD_BITS, Bytes, Fields, join_fields, words_at


@cache
def container_bits(bits: int) -> int:
    """The smallest of 8, 16, 32 and 64 that is not below `bits`."""
    return next(size for size in UNSIGNED if bits <= size)


def merge_lanes(lanes: Fields, base: int, digit_bits: int) -> None:
    """Make one number of the digits in each lane, in place."""
    size = digit_bits
    while size < BYTE_BITS * lanes.itemsize:
        wide = lanes.view(UNSIGNED[2 * size])
        kind, factor = wide.dtype.type, base ** (size // digit_bits)
        # A lane is a + 2^size·b; this leaves a + factor·b.
        upper = wide >> kind(size)
        upper *= kind(2**size - factor)
        wide -= upper
        size *= 2


def split_lanes(lanes: Fields, base: int, digit_bits: int) -> None:
    """Undo `merge_lanes`."""
    size = BYTE_BITS * lanes.itemsize // 2
    while size >= digit_bits:
        wide = lanes.view(UNSIGNED[2 * size])
        kind, factor = wide.dtype.type, base ** (size // digit_bits)
        upper = wide >> kind(factor.bit_length() - 1) if factor & (factor - 1) == 0 else wide // kind(factor)
        upper *= kind(2**size - factor)
        wide += upper
        size //= 2


@dataclass(frozen=True)
class Radix:
    """Numbers of so many digits in this base, each digit in `digit_bits`."""

    base: int
    digits: int
    digit_bits: int

    @cached_property
    def number_bytes(self) -> int:
        """From one number's digits to the next one's."""
        return self.digits * self.digit_bits // BYTE_BITS

    @cached_property
    def lane_bits(self) -> int:
        """The narrowest lane that holds a number's digits, or the widest there is."""
        return container_bits(min(self.digits * self.digit_bits, WORD_BITS))

    def view(self, raw: Bytes, numbers: int) -> NDArray[np.unsignedinteger]:
        """The digits of so many numbers as an array."""
        return raw[: numbers * self.number_bytes].view(UNSIGNED[self.digit_bits])

    def merge(self, raw: Bytes, out: Fields) -> None:
        """Make numbers of the digits in `raw`, which is longer than they are by `fields.SLACK`."""
        if self.digits == 1:
            out[:] = self.view(raw, out.size)
            return
        *lower, highest = self._lanes
        values = self._merge_lane(raw, out.size, *highest)
        for first, held in reversed(lower):
            values *= values.dtype.type(self.base**self._lane_digits)
            values += self._merge_lane(raw, out.size, first, held)
        out[:] = values

    def split(self, numbers: Fields, raw: Bytes) -> None:
        """Undo `merge`; all numbers must have no more digits than there is room for."""
        if self.digits == 1:
            self.view(raw, numbers.size)[:] = numbers
            return
        rest: Fields = numbers.astype(UNSIGNED[self.lane_bits])
        if self.digits <= self._lane_digits:
            split_lanes(rest, self.base, self.digit_bits)
            join_fields(rest, raw, self.digits * self.digit_bits)
            return
        whole = rest.dtype.type(self.base**self._lane_digits)
        parts = []
        for first, _ in self._lanes:
            quotients = rest // whole
            parts.append((first, rest - quotients * whole))
            rest = quotients
        # The highest first: what it writes beyond its number is overwritten by the lowest of the next.
        for first, lanes in reversed(parts):
            split_lanes(lanes, self.base, self.digit_bits)
            self._lanes_at(raw, first, numbers.size)[:] = lanes

    @cached_property
    def _lane_digits(self) -> int:
        return self.lane_bits // self.digit_bits

    @cached_property
    def _lanes(self) -> list[tuple[int, int]]:
        """The first digit of each lane that a number takes, and how many digits are in it."""
        firsts = range(0, self.digits, self._lane_digits)
        return [(first, min(self._lane_digits, self.digits - first)) for first in firsts]

    def _lanes_at(self, raw: Bytes, first: int, numbers: int) -> Fields:
        """The lanes that begin with this digit of every number, and go on with whatever follows."""
        at = first * self.digit_bits // BYTE_BITS
        return words_at(raw, at, numbers, self.number_bytes, UNSIGNED[self.lane_bits])

    def _merge_lane(self, raw: Bytes, numbers: int, first: int, held: int) -> Fields:
        lanes = self._lanes_at(raw, first, numbers).copy()
        if held < self._lane_digits:
            lanes &= lanes.dtype.type((1 << held * self.digit_bits) - 1)
        merge_lanes(lanes, self.base, self.digit_bits)
        return lanes
