"""Residues as words: g digits of Z_m make one element of Z_{2^w}, in which shares are drawn, added and packed.

A word is the integer Σ x[i]·m^i over its g digits, the first lowest; m^g ≤ 2^w, and the last word of a vector is
filled up with digits 0. Where the digits of several vectors add up to less than m at every place, their words add
up to the word of the sums: no digit carries into the next. So a sum of vectors is a sum of words mod 2^w, in which
nothing has to be reduced, every word is as good a share as any other, and only who reads the sum makes digits of
it. Who adds vectors of a ring that is no power of two must see to it that their sums stay below m, without
wrapping; who reads a sum that shows otherwise is told so.

Of all words of up to 64 bits those are looked at whose bits are a multiple of 8, then of 4, of 2, then all,
until one takes at most 3 % more than log2 m bits a digit; of these the one that takes the fewest, and of equal
ones the longest. Where m is a power of two a word is one digit, so that nothing is lost and sums may wrap.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import count

import numpy as np
from numpy.typing import NDArray

from hubbub.errors import ConfigurationError, LocalError, PeerError, RejectReason
from hubbub.protocol.packing import (
    BYTE_BITS,
    SLACK,
    UNSIGNED,
    WORD_BITS,
    Bytes,
    Radix,
    Residues,
    block_elements,
    check_modulus,
    check_padding,
    container_bits,
    element_bits,
    read_bytes,
    read_elements,
    residue_type,
    write_elements,
)
from hubbub.protocol.ring import reduce_words, word_type

MAX_LOSS_PERCENT = 3
"""So much more than log2 m bits may a digit take for the sake of words that end on whole bytes."""

Digits = NDArray[np.unsignedinteger]
"""A vector over Z_m in any unsigned type; the narrowest is a quarter of `Residues` for m ≤ 256."""

Words = NDArray[np.unsignedinteger]
"""A vector over Z_{2^w}, in the narrowest type; bits from the w-th on matter to nobody."""


@dataclass(frozen=True, slots=True)
class Word:
    """So many digits make a word of so many bits."""

    digits: int
    bits: int


@cache
def word_of(m: int) -> Word:
    """Choose the word of a ring."""
    if is_power_of_two(m):
        return Word(1, element_bits(m))
    for step in (8, 4, 2, 1):
        words = [Word(_digits_in(bits, m), bits) for bits in range(step, WORD_BITS + 1, step)]
        best = min((word for word in words if word.digits), key=lambda word: (word.bits / word.digits, -word.bits))
        # In whole numbers, so that everybody comes to the same word: w ≤ 1.03·g·log2 m.
        if 2 ** (100 * best.bits) <= m ** ((100 + MAX_LOSS_PERCENT) * best.digits):
            break
    return best


def _digits_in(bits: int, m: int) -> int:
    """The largest g with m^g ≤ 2^bits."""
    return next(digits for digits in count() if m ** (digits + 1) > 2**bits)


def is_power_of_two(m: int) -> bool:
    """Whether residues mod m take whole bits; refuses what is no modulus."""
    check_modulus(m)
    return m & (m - 1) == 0


def count_words(n: int, m: int) -> int:
    """⌈n/g⌉."""
    if n < 0:
        raise ConfigurationError(f"a vector cannot have {n} elements")
    return -(-n // word_of(m).digits)


def words_type(m: int) -> np.dtype[np.unsignedinteger]:
    """The narrowest type that holds a word; its bytes mean the same on every machine."""
    return UNSIGNED[container_bits(word_of(m).bits)]


def dense_bits(n: int, m: int) -> int:
    """Count the bits that n residues take: ⌈n/g⌉·w."""
    return count_words(n, m) * word_of(m).bits


def dense_bytes(n: int, m: int) -> int:
    """Count the bytes that n residues take; the last byte may be padded."""
    return -(-dense_bits(n, m) // BYTE_BITS)


def check_digits(x: Digits, m: int) -> None:
    """Refuse a vector that is not over Z_m, as `check_residues` does, in whatever unsigned type it is."""
    check_modulus(m)
    if x.ndim != 1 or x.dtype.kind != "u":
        raise LocalError(
            f"a vector over Z_{m} is one-dimensional and unsigned, not {x.ndim}-dimensional {x.dtype}"
        )
    if x.size and int(x.max()) >= m:
        raise LocalError(f"a value in a vector over Z_{m} is {m} or more; reduce it first")


# Digits and words -----------------------------------------------------------------------------------------------


def to_words(x: Digits, m: int) -> Words:
    """Make words of residues."""
    check_digits(x, m)
    words, radix = np.empty(count_words(x.size, m), dtype=words_type(m)), _radix_of(m)
    for part, digits, raw in _blocks(x, words, m):
        room = radix.view(raw, part.size)
        room[: digits.size] = digits
        room[digits.size :] = 0
        radix.merge(raw, part)
    return words


def from_words(words: Words, n: int, m: int) -> tuple[Digits, bool]:
    """Make n residues of a sum of words, in the narrowest type; also tell whether residues can have such a sum.

    If not, a word is no number of g digits, or digits after the last residue are not zero. The residues are in
    the ring all the same, and all of them are made: to raise here would tell when, and so what was summed.
    """
    word, radix = word_of(m), _radix_of(m)
    x, possible = np.empty(n, dtype=word_type(m)), True
    for part, digits, raw in _blocks(x, words, m):
        whole = part & part.dtype.type(2**word.bits - 1)
        possible &= int(whole.max()) < m**word.digits
        reduce_words(whole, m**word.digits)
        radix.split(whole, raw)
        read = radix.view(raw, part.size)
        digits[:] = read[: digits.size]
        possible &= not read[digits.size :].any()
    return x, possible


@cache
def _radix_of(m: int) -> Radix:
    return Radix(m, word_of(m).digits, container_bits(element_bits(m)))


def _blocks(x: Digits, words: Words, m: int) -> Iterator[tuple[Words, Digits, Bytes]]:
    """For each block its words and its digits, and room for these and for those that fill up the last word."""
    word, radix = word_of(m), _radix_of(m)
    size = block_elements(radix.lane_bits)
    raw = np.empty(min(words.size, size) * radix.number_bytes + SLACK, dtype=np.uint8)
    for start in range(0, words.size, size):
        yield words[start : start + size], x[start * word.digits : (start + size) * word.digits], raw


# Words and bytes ------------------------------------------------------------------------------------------------


def pack_words(words: Words, m: int) -> bytes:
    """Write words of a ring with w bits each."""
    return write_elements(words, word_of(m).bits)


def read_frame(data: bytes | bytearray | memoryview, n: int, m: int) -> Bytes:
    """The bytes, if they are as many as n residues, or a share of them, take, and end in zero bits.

    Any words may be a share, so that there is nothing else to refuse.
    """
    raw = read_bytes(data, dense_bytes(n, m), f"{n} residues mod {m}, {word_of(m).digits} to a word,")
    check_padding(raw, dense_bits(n, m))
    return raw


def read_words(data: bytes | bytearray | memoryview, n: int, m: int) -> Iterator[tuple[slice, Words]]:
    """Read the words of n residues, block by block, each with its place; the next one overwrites it.

    What `read_frame` refuses is refused, as the sender's fault, before the first.
    """
    yield from read_elements(read_frame(data, n, m), count_words(n, m), word_of(m).bits)


# Digits and bytes -----------------------------------------------------------------------------------------------


def pack_dense(x: Digits, m: int) -> bytes:
    """Write the residues, g of them in w bits."""
    return pack_words(to_words(x, m), m)


def unpack_dense(data: bytes | bytearray | memoryview, n: int, m: int) -> Residues:
    """Read n residues, and refuse anything that `pack_dense` cannot have written."""
    words = np.empty(count_words(n, m), dtype=words_type(m))
    for place, part in read_words(data, n, m):
        words[place] = part
    x, possible = from_words(words, n, m)
    if not possible:
        raise PeerError(RejectReason.RESIDUE_OUT_OF_RANGE, f"no {n} residues mod {m} make these words")
    return x.astype(residue_type(m), copy=False)
