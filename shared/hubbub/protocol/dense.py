"""Dense packing: g residues mod m as the digits of one word mod 2^w, in which shares are drawn, added and packed.

A word is the integer Σ x[i]·m^i over its g digits, the first lowest; m^g ≤ 2^w, and the last word of a vector is
padded with digits 0. Where the digits of several vectors add up to less than m at every place, their words add
up to the word of the sums: no digit carries into the next. So a sum of vectors is a sum of words mod 2^w. Nothing
has to be reduced, any word is a valid share, and digits are computed only from the final sum. If m is no power of
two, the caller must make sure that the sums stay below m, without wrapping; `from_words` detects some violations.

The word of a ring has, among the widths up to 64 bits that are multiples of 8, the fewest bits a digit, and is the
longest of equal ones. If that is over 3 % more than log2 m, multiples of 4 are tried, then of 2, then all widths.
If m is a power of two, a word is one digit, so that no bit is lost and sums may wrap.
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
"""The most that a digit may take above log2 m bits, for words that end on whole bytes."""

Digits = NDArray[np.unsignedinteger]
"""A vector over Z_m in any unsigned type; the narrowest is a quarter of `Residues` for m ≤ 256."""

Words = NDArray[np.unsignedinteger]
"""A vector over Z_{2^w}, in the narrowest type; bits from the w-th on are ignored."""


@dataclass(frozen=True, slots=True)
class Word:
    """Numbers of digits and of bits in a word."""

    digits: int
    bits: int


@cache
def word_of(m: int) -> Word:
    """Choose the word of the ring Z_m."""
    if is_power_of_two(m):
        return Word(1, element_bits(m))
    for step in (8, 4, 2, 1):
        words = [Word(_digits_in(bits, m), bits) for bits in range(step, WORD_BITS + 1, step)]
        best = min((word for word in words if word.digits), key=lambda word: (word.bits / word.digits, -word.bits))
        # Exact integer arithmetic, so that all parties choose the same word: w ≤ 1.03·g·log2 m.
        if 2 ** (100 * best.bits) <= m ** ((100 + MAX_LOSS_PERCENT) * best.digits):
            break
    return best


def _digits_in(bits: int, m: int) -> int:
    """Return the largest g with m^g ≤ 2^bits."""
    return next(digits for digits in count() if m ** (digits + 1) > 2**bits)


def is_power_of_two(m: int) -> bool:
    """Return whether residues mod m take whole bits; raise `ConfigurationError` if m is no modulus."""
    check_modulus(m)
    return m & (m - 1) == 0


def count_words(n: int, m: int) -> int:
    """Count the words that n residues take: ⌈n/g⌉."""
    if n < 0:
        raise ConfigurationError(f"a vector cannot have {n} elements")
    return -(-n // word_of(m).digits)


def words_type(m: int) -> np.dtype[np.unsignedinteger]:
    """Return the narrowest type that holds a word; its bytes mean the same on every machine."""
    return UNSIGNED[container_bits(word_of(m).bits)]


def dense_bits(n: int, m: int) -> int:
    """Count the bits that n residues take: ⌈n/g⌉·w."""
    return count_words(n, m) * word_of(m).bits


def dense_bytes(n: int, m: int) -> int:
    """Count the bytes that n residues take; the last byte may be padded."""
    return -(-dense_bits(n, m) // BYTE_BITS)


def check_digits(x: Digits, m: int) -> None:
    """Raise `LocalError` if a vector is not over Z_m, as `check_residues` does, but for any unsigned type."""
    check_modulus(m)
    if x.ndim != 1 or x.dtype.kind != "u":
        raise LocalError(
            f"a vector over Z_{m} is one-dimensional and unsigned, not {x.ndim}-dimensional {x.dtype}"
        )
    if x.size and int(x.max()) >= m:
        raise LocalError(f"a value in a vector over Z_{m} is {m} or more; reduce it first")


# Digits and words -----------------------------------------------------------------------------------------------


def to_words(x: Digits, m: int) -> Words:
    """Merge residues into words."""
    check_digits(x, m)
    words, radix = np.empty(count_words(x.size, m), dtype=words_type(m)), _radix_of(m)
    for part, digits, raw in _blocks(x, words, m):
        room = radix.view(raw, part.size)
        room[: digits.size] = digits
        room[digits.size :] = 0
        radix.merge(raw, part)
    return words


def from_words(words: Words, n: int, m: int) -> tuple[Digits, bool]:
    """Split a sum of words into n residues, in the narrowest type; also say whether residues can have such a sum.

    If not, a word is no number of g digits, or digits after the last residue are not zero. All residues are still
    computed, and lie in the ring: the time of an early exit would reveal something of the sum.
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
    """Yield each block's words and digits, and a buffer for the digits with the padding of the last word."""
    word, radix = word_of(m), _radix_of(m)
    size = block_elements(radix.lane_bits)
    raw = np.empty(min(words.size, size) * radix.number_bytes + SLACK, dtype=np.uint8)
    for start in range(0, words.size, size):
        yield words[start : start + size], x[start * word.digits : (start + size) * word.digits], raw


# Words and bytes ------------------------------------------------------------------------------------------------


def pack_words(words: Words, m: int) -> bytes:
    """Write words with w bits each."""
    return write_elements(words, word_of(m).bits)


def read_frame(data: bytes | bytearray | memoryview, n: int, m: int) -> Bytes:
    """View the bytes of n residues, or of a share of them; raise `PeerError` for a wrong length or padding.

    Any word is a valid share, so there is nothing else to check.
    """
    raw = read_bytes(data, dense_bytes(n, m), f"{n} residues mod {m}, {word_of(m).digits} to a word,")
    check_padding(raw, dense_bits(n, m))
    return raw


def read_words(data: bytes | bytearray | memoryview, n: int, m: int) -> Iterator[tuple[slice, Words]]:
    """Yield the words of n residues, block by block, each with its place; the next block overwrites it.

    Raises `PeerError` before the first block where `read_frame` does.
    """
    yield from read_elements(read_frame(data, n, m), count_words(n, m), word_of(m).bits)


# Digits and bytes -----------------------------------------------------------------------------------------------


def pack_dense(x: Digits, m: int) -> bytes:
    """Write residues, g of them in w bits."""
    return pack_words(to_words(x, m), m)


def unpack_dense(data: bytes | bytearray | memoryview, n: int, m: int) -> Residues:
    """Read n residues; raise `PeerError` for anything that `pack_dense` cannot have written."""
    words = np.empty(count_words(n, m), dtype=words_type(m))
    for place, part in read_words(data, n, m):
        words[place] = part
    x, possible = from_words(words, n, m)
    if not possible:
        raise PeerError(RejectReason.RESIDUE_OUT_OF_RANGE, f"no {n} residues mod {m} make these words")
    return x.astype(residue_type(m), copy=False)
