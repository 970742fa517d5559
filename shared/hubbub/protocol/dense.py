"""Residues as bits without loss: g digits of Z_m make one word of w bits, the words are packed.

A word is the integer Σ x[i]·m^i over its g digits, the first lowest, in w = bits of m^g - 1. For each m the g
is taken for which w/g comes closest to log2 m while w is at most 32. The last word is filled up with digits 0,
and the words are packed as residues mod 2^w are (`packing`), so that a vector has exactly one packed form.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import count, takewhile
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from hubbub.errors import ConfigurationError, LocalError, PeerError, RejectReason
from hubbub.protocol.fields import BYTE_BITS, SLACK, Bytes
from hubbub.protocol.packing import (
    Elements,
    block_elements,
    check_padding,
    new_bytes,
    new_elements,
    pack_block,
    padded,
    read_bytes,
    unpack_block,
)
from hubbub.protocol.radix import Radix, container_bits
from hubbub.protocol.residues import Residues, check_modulus, element_bits
from hubbub.protocol.ring import word_type

MAX_WORD_BITS = 32

Digits = NDArray[np.uint8] | NDArray[np.uint16] | NDArray[np.uint32]
"""A vector over Z_m in any unsigned type; the narrowest is a quarter of `Residues` for m ≤ 256."""


@dataclass(frozen=True, slots=True)
class Word:
    """So many digits make a word of so many bits."""

    digits: int
    bits: int


@cache
def word_of(m: int) -> Word:
    """Choose the word that takes the fewest bits per digit, the shortest of those that take equally many."""
    check_modulus(m)
    fitting = takewhile(lambda digits: (m**digits - 1).bit_length() <= MAX_WORD_BITS, count(1))
    words = [Word(digits, (m**digits - 1).bit_length()) for digits in fitting]
    return min(words, key=lambda word: (word.bits / word.digits, word.digits))


def dense_bits(n: int, m: int) -> int:
    """Count the bits that n residues take: ⌈n/g⌉·w."""
    if n < 0:
        raise ConfigurationError(f"a vector cannot have {n} elements")
    word = word_of(m)
    return -(-n // word.digits) * word.bits


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


def pack_dense(x: Digits, m: int) -> bytes:
    """Write the residues, g of them in w bits."""
    check_digits(x, m)
    word, radix = word_of(m), _radix_of(m)
    packed = new_bytes(-(-x.size // word.digits), word.bits)
    for start, words, raw in _blocks(x.size, m):
        digits = radix.view(raw, words.size)
        block = x[start : start + digits.size]
        digits[: block.size] = block
        digits[block.size :] = 0
        radix.merge(raw, words)
        pack_block(words, packed[start // word.digits * word.bits // BYTE_BITS :], word.bits)
    return packed[: dense_bytes(x.size, m)].tobytes()


def check_dense(data: bytes | bytearray | memoryview, n: int, m: int) -> None:
    """Refuse what `unpack_dense` refuses, without reading single residues: words in range are made of them."""
    raw = _check_frame(data, n, m)
    word = word_of(m)
    if m**word.digits == 2**word.bits:
        return
    for start, words, _ in _blocks(n, m):
        used = min(words.size, -(-(n - start) // word.digits))
        _read_words(raw[start // word.digits * word.bits // BYTE_BITS :], words, word.bits)
        _check_words(words, used, m)
        # Digits after the last residue would make the last word longer.
        rest = n - start - (used - 1) * word.digits
        if rest < word.digits and int(words[used - 1]) >= m**rest:
            _refuse_padding()


def unpack_dense(data: bytes | bytearray | memoryview, n: int, m: int) -> Residues:
    """Read n residues and refuse, as the sender's fault, anything that `pack_dense` cannot have written."""
    return unpack_digits(data, n, m).astype(np.uint32, copy=False)


def unpack_digits(data: bytes | bytearray | memoryview, n: int, m: int) -> Digits:
    """Read as `unpack_dense` does, into the narrowest type."""
    return read_digits(_check_frame(data, n, m), n, m)


def _check_frame(data: bytes | bytearray | memoryview, n: int, m: int) -> Bytes:
    """The bytes, if they are as many as n residues take and end in zero bits."""
    raw = read_bytes(data, dense_bytes(n, m), f"{n} residues mod {m}, {word_of(m).digits} to a word,")
    check_padding(raw, dense_bits(n, m))
    return raw


def read_digits(packed: Bytes, n: int, m: int) -> Digits:
    """Read n residues, whatever the bits after the last word are."""
    word, radix = word_of(m), _radix_of(m)
    x = np.empty(n, dtype=word_type(m))
    for start, words, raw in _blocks(n, m):
        _read_words(packed[start // word.digits * word.bits // BYTE_BITS :], words, word.bits)
        block = x[start : start + words.size * word.digits]
        _check_words(words, -(-block.size // word.digits), m)
        radix.split(words, raw)
        digits = radix.view(raw, words.size)
        block[:] = digits[: block.size]
        if digits[block.size :].any():
            _refuse_padding()
    return x


def _refuse_padding() -> NoReturn:
    raise PeerError(RejectReason.NONZERO_PADDING, "the digits after the last residue are not all zero")


def _read_words(packed: Bytes, words: Elements, bits: int) -> None:
    # A copy, because the bytes may end within a word.
    copied = new_bytes(words.size, bits)
    part = packed[: words.size * bits // BYTE_BITS]
    copied[: part.size] = part
    unpack_block(copied, words, bits)


def _check_words(words: Elements, used: int, m: int) -> None:
    word = word_of(m)
    # What follows was not in the bytes at all.
    words[used:] = 0
    if m**word.digits != 2**word.bits and int(words.max()) >= m**word.digits:
        raise PeerError(
            RejectReason.RESIDUE_OUT_OF_RANGE, f"a packed word is not made of {word.digits} residues mod {m}"
        )


@cache
def _radix_of(m: int) -> Radix:
    return Radix(m, word_of(m).digits, container_bits(element_bits(m)))


def _blocks(n: int, m: int) -> Iterator[tuple[int, Elements, Bytes]]:
    """For each block its first element, and room for its words and for the digits of these, used again."""
    word, radix = word_of(m), _radix_of(m)
    total, size = -(-n // word.digits), block_elements(radix.lane_bits)
    words = new_elements(min(total, size), word.bits)
    digits = np.empty(words.size * radix.number_bytes + SLACK, dtype=np.uint8)
    for start in range(0, total, size):
        yield start * word.digits, words[: padded(min(total - start, size))], digits
