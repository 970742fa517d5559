"""Residues mod m, and their packing into exactly ⌈log2 m⌉ bits each.

A residue is an integer from 0 to m - 1, in a `uint32`, for any m from 2 to 2^32. Mod 2^64 it is a `uint64`, and
arithmetic wraps by itself.

Packed residues follow one another. Bit i of the stream is bit i mod 8 of byte ⌊i / 8⌋, and an element starts with
its lowest bit; the last byte is padded with zeros. A vector's packed form is the integer Σ x[i]·2^(b·i),
little-endian.

Two steps serve every width b from 1 to 64, each a handful of vector operations on 64-bit words:

1. *Fold* (`merge_lanes`): elements sit in containers of 8 to 64 bits, so a 64-bit word holds 8, 4, 2 or 1 of them.
   Closing the gaps between neighbours, then between pairs, then between fours leaves one dense field of w = 8b, 4b
   or 2b bits in each word.
2. *Join* (`join_fields`): the fields are put end to end.

Unpacking runs the same steps backwards. 64 elements always fill b whole words, and a block is a multiple of that.

Folding works for any base. Digits lie side by side in memory, in 8, 16 or 32 bits each, the lowest first. A lane
of up to 64 bits holds several, and they become one number by steps that work on all lanes: neighbours a and b in
the halves of a lane become a + base·b in the whole, then pairs become a + base²·b, then fours a + base⁴·b. The way
back divides by base⁴, base² and base.

Joined field i holds bits w·i to w·(i + 1) of the byte string. Every P = 8/gcd(w, 8) fields start on a byte again,
so that field j of every group is at the same place: a word at byte ⌊w·j / 8⌋ of its group, and w·j mod 8 bits into
that. Such words are read and written for all groups at once, through an array whose elements lie a group's bytes
apart, at any address, and overlap where a group is shorter than a word. Overlapping written words hold the same
bits, so their order does not matter.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from math import gcd
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from hubbub.errors import ConfigurationError, LocalError, PeerError, RejectReason

Residues: TypeAlias = NDArray[np.unsignedinteger]
"""A vector over Z_m; the modulus is passed beside it."""

MIN_MODULUS = 2
MAX_MODULUS = 2**32
WORD_MODULUS = 2**64
"""The one ring above 2^32."""

BLOCK = 2**16
"""Elements worked on at once: few enough to stay in cache, enough to hide the cost of a numpy call."""


def check_modulus(m: int) -> None:
    """Raise `ConfigurationError` unless m is from 2 to 2^32, or 2^64."""
    if not is_modulus(m):
        raise ConfigurationError(
            f"the modulus is {m}; choose one from {MIN_MODULUS} to {MAX_MODULUS}, or {WORD_MODULUS}"
        )


def is_modulus(m: int) -> bool:
    """Say whether m is a supported modulus."""
    return MIN_MODULUS <= m <= MAX_MODULUS or m == WORD_MODULUS


def residue_type(m: int) -> np.dtype[np.unsignedinteger]:
    """Return the type of residues mod m."""
    return np.dtype(np.uint64 if m == WORD_MODULUS else np.uint32)


def check_residues(x: Residues, m: int) -> None:
    """Raise `LocalError` for a vector that is not over Z_m: its shares would add up to something else."""
    check_modulus(m)
    kind = residue_type(m)
    if x.ndim != 1 or x.dtype != kind:
        raise LocalError(f"a vector over Z_{m} is one-dimensional and {kind}, not {x.ndim}-dimensional {x.dtype}")
    if x.size and int(x.max()) >= m:
        raise LocalError(f"a value in a vector over Z_{m} is {m} or more; reduce it first")


def element_bits(m: int) -> int:
    """Return ⌈log2 m⌉, the bits that one residue takes (Beguier et al., section 2.3.2)."""
    check_modulus(m)
    return (m - 1).bit_length()


def packed_bytes(n: int, m: int) -> int:
    """Count the bytes that n residues take when packed; the last byte may be padded."""
    if n < 0:
        raise ConfigurationError(f"a vector cannot have {n} elements")
    return (n * element_bits(m) + 7) // 8


# Bit fields -----------------------------------------------------------------------------------------------------

WORD_BITS = 64
BYTE_BITS = 8

SLACK = 16
"""Bytes that are read or written after the last field; their content is ignored."""

# Little-endian by name: the bytes are the same on every machine.
UNSIGNED: dict[int, np.dtype[np.unsignedinteger]] = {
    8: np.dtype("u1"),
    16: np.dtype("<u2"),
    32: np.dtype("<u4"),
    64: np.dtype("<u8"),
}

Bytes = NDArray[np.uint8]
Fields = NDArray[np.unsignedinteger]


def join_fields(fields: Fields, out: Bytes, width: int) -> None:
    """Write fields of `width` bits end to end; their words hold no other bits, and are overwritten.

    The width is from 8 bits to a word, the number of fields a multiple of P, and `out` has `SLACK` more bytes.
    """
    if width in UNSIGNED:
        out[: fields.size * width // BYTE_BITS].view(UNSIGNED[width])[:] = fields
        return
    _fill_up(fields, width)
    kind, period = fields.dtype.type, _period(width)
    for lane in range(period):
        at, shift = divmod(lane * width, BYTE_BITS)
        row = fields[lane::period]
        if shift:
            # The byte begins with the end of the field before.
            row = row << kind(shift) | fields[lane - 1 :: period] >> kind(width - shift)
        words_at(out, at, row.size, width * period // BYTE_BITS, fields.dtype)[:] = row


def part_fields(data: Bytes, fields: Fields, width: int) -> None:
    """Undo `join_fields`: fill all of `fields`, one to a word. `data` has `SLACK` more bytes than they take."""
    if width in UNSIGNED:
        fields[:] = data[: fields.size * width // BYTE_BITS].view(UNSIGNED[width])
        return
    kind, word_bytes, period = fields.dtype.type, fields.dtype.itemsize, _period(width)
    stride = width * period // BYTE_BITS
    for lane in range(period):
        at, shift = divmod(lane * width, BYTE_BITS)
        row = words_at(data, at, fields.size // period, stride, fields.dtype)
        if shift:
            row = row >> kind(shift)
        rest = word_bytes * BYTE_BITS - shift
        if rest < width:
            # The field runs on into the next word.
            row |= words_at(data, at + word_bytes, row.size, stride, fields.dtype) << kind(rest)
        fields[lane::period] = row
    fields &= kind((1 << width) - 1)


def _period(width: int) -> int:
    """Return P, the number of fields that end on a byte."""
    return BYTE_BITS // gcd(width, BYTE_BITS)


def _fill_up(fields: Fields, width: int) -> None:
    """Fill the free bits of every word with the fields that follow."""
    filled, following = width, 1
    while filled < fields.dtype.itemsize * BYTE_BITS:
        fields[:-following] |= fields[following:] << fields.dtype.type(filled)
        filled, following = 2 * filled, 2 * following


def words_at(data: Bytes, at: int, count: int, stride: int, kind: np.dtype[np.unsignedinteger]) -> Fields:
    """View words that begin `stride` bytes apart, the first at byte `at`."""
    return np.ndarray((count,), dtype=kind, buffer=data.data, offset=at, strides=(stride,))


@cache
def container_bits(bits: int) -> int:
    """Return the smallest of 8, 16, 32 and 64 that is not below `bits`."""
    return next(size for size in UNSIGNED if bits <= size)


# Digits ---------------------------------------------------------------------------------------------------------


def merge_lanes(lanes: Fields, base: int, digit_bits: int) -> None:
    """Merge the digits in each lane into one number, in place."""
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
    """Number format: `digits` digits in `base`, each in `digit_bits` bits."""

    base: int
    digits: int
    digit_bits: int

    @cached_property
    def number_bytes(self) -> int:
        """The bytes that one number's digits take."""
        return self.digits * self.digit_bits // BYTE_BITS

    @cached_property
    def lane_bits(self) -> int:
        """The width of the narrowest lane that holds a number's digits, or of the widest lane."""
        return container_bits(min(self.digits * self.digit_bits, WORD_BITS))

    def view(self, raw: Bytes, numbers: int) -> NDArray[np.unsignedinteger]:
        """View the digits of `numbers` numbers as an array."""
        return raw[: numbers * self.number_bytes].view(UNSIGNED[self.digit_bits])

    def merge(self, raw: Bytes, out: Fields) -> None:
        """Merge the digits in `raw`, which has `SLACK` more bytes, into numbers."""
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
        """Undo `merge`; no number may have more than `digits` digits."""
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
        # The highest lane first: the lowest of the next number overwrites what it writes beyond its number.
        for first, lanes in reversed(parts):
            split_lanes(lanes, self.base, self.digit_bits)
            self._lanes_at(raw, first, numbers.size)[:] = lanes

    @cached_property
    def _lane_digits(self) -> int:
        return self.lane_bits // self.digit_bits

    @cached_property
    def _lanes(self) -> list[tuple[int, int]]:
        """The first digit of each lane of a number, and the number of digits in the lane."""
        firsts = range(0, self.digits, self._lane_digits)
        return [(first, min(self._lane_digits, self.digits - first)) for first in firsts]

    def _lanes_at(self, raw: Bytes, first: int, numbers: int) -> Fields:
        """View the lanes that begin with this digit of every number; they may run on into what follows."""
        at = first * self.digit_bits // BYTE_BITS
        return words_at(raw, at, numbers, self.number_bytes, UNSIGNED[self.lane_bits])

    def _merge_lane(self, raw: Bytes, numbers: int, first: int, held: int) -> Fields:
        lanes = self._lanes_at(raw, first, numbers).copy()
        if held < self._lane_digits:
            lanes &= lanes.dtype.type((1 << held * self.digit_bits) - 1)
        merge_lanes(lanes, self.base, self.digit_bits)
        return lanes


# Packing --------------------------------------------------------------------------------------------------------

_WORD = UNSIGNED[WORD_BITS]

_BLOCK_BITS = 2**21

Words = NDArray[np.uint64]
Elements = NDArray[np.unsignedinteger]


def pack(x: Residues, m: int) -> bytes:
    """Write residues with ⌈log2 m⌉ bits each."""
    check_residues(x, m)
    return write_elements(x, element_bits(m))


def unpack(data: bytes | bytearray | memoryview, n: int, m: int) -> Residues:
    """Read n residues; raise `PeerError` for anything that `pack` cannot have written."""
    bits = element_bits(m)
    raw = read_bytes(data, packed_bytes(n, m), f"{n} residues mod {m}")
    check_padding(raw, n * bits)
    x = np.empty(n, dtype=residue_type(m))
    for place, elements in read_elements(raw, n, bits):
        x[place] = elements
    # Where m is a power of two the bits cannot hold anything larger.
    if n and m != 2**bits and int(x.max()) >= m:
        raise PeerError(RejectReason.RESIDUE_OUT_OF_RANGE, f"a packed value is {m} or more, no residue mod {m}")
    return x


def write_elements(x: Elements, bits: int) -> bytes:
    """Write the lowest `bits` bits of each element, up to 64."""
    size = block_elements(bits)
    packed, buffer = _new_bytes(x.size, bits), _new_elements(min(x.size, size), bits)
    for start in range(0, x.size, size):
        block = x[start : start + size]
        elements = buffer[: _padded(block.size)]
        elements[: block.size] = block
        elements[block.size :] = 0
        elements &= elements.dtype.type(2**bits - 1)
        _pack_block(elements, packed[start * bits // BYTE_BITS :], bits)
    return packed[: -(-x.size * bits // BYTE_BITS)].tobytes()


def read_elements(raw: Bytes, n: int, bits: int) -> Iterator[tuple[slice, Elements]]:
    """Undo `write_elements`: yield blocks, each with its place; the next block overwrites it."""
    size = block_elements(bits)
    # Copied block by block, because the bytes may start at any address and end within a word. The rest of the
    # last word belongs to elements after the n-th, which nobody reads.
    packed, buffer = _new_bytes(min(n, size), bits), _new_elements(min(n, size), bits)
    for start in range(0, n, size):
        stop = min(n, start + size)
        elements = buffer[: _padded(stop - start)]
        read = raw[start * bits // BYTE_BITS : (start + elements.size) * bits // BYTE_BITS]
        packed[: read.size] = read
        _unpack_block(packed, elements, bits)
        yield slice(start, stop), elements[: stop - start]


def read_bytes(data: bytes | bytearray | memoryview, expected: int, what: str) -> Bytes:
    """View a peer's bytes; raise `PeerError` if they are not the number that `what` takes."""
    raw = np.frombuffer(data, dtype=np.uint8) if len(data) else np.empty(0, dtype=np.uint8)
    if raw.size != expected:
        raise PeerError(RejectReason.WRONG_LENGTH, f"{what} take {expected} bytes packed, not {raw.size}")
    return raw


def check_padding(raw: Bytes, bits: int) -> None:
    """Raise `PeerError` if the padding after the first `bits` bits is not zero."""
    last_bits = bits % BYTE_BITS
    if last_bits and raw[-1] >> last_bits:
        raise PeerError(RejectReason.NONZERO_PADDING, "the bits after the last residue are not all zero")


def block_elements(bits: int) -> int:
    """Return the number of elements to pack at once: few enough for their containers to stay in cache."""
    return _BLOCK_BITS // container_bits(bits)


def _padded(n: int) -> int:
    """Round up to the elements that fill whole words."""
    return -(-n // WORD_BITS) * WORD_BITS


def _new_bytes(n: int, bits: int) -> Bytes:
    """Allocate room for n packed elements, rounded up to whole words, and `SLACK`."""
    return np.empty(_padded(n) * bits // BYTE_BITS + SLACK, dtype=np.uint8)


def _new_elements(n: int, bits: int) -> Elements:
    """Allocate room for n elements in containers, rounded up to what fills whole words."""
    return np.empty(_padded(n), dtype=UNSIGNED[container_bits(bits)])


def _pack_block(elements: Elements, out: Bytes, bits: int) -> None:
    """Write a multiple of 64 elements into the first bytes of `out`; overwrites `elements`."""
    container = container_bits(bits)
    words = elements.view(_WORD)
    if bits < container:
        merge_lanes(words, 2**bits, container)
    join_fields(words, out, bits * WORD_BITS // container)


def _unpack_block(packed: Bytes, elements: Elements, bits: int) -> None:
    """Read a multiple of 64 elements from the first bytes; all of them are 0 to 2^bits - 1."""
    container = container_bits(bits)
    words = elements.view(_WORD)
    part_fields(packed, words, bits * WORD_BITS // container)
    if bits < container:
        split_lanes(words, 2**bits, container)
