"""Vectors over Z_m from a stream that several parties can repeat: masks, and shares that travel as seeds.

All of them must get the same vector, so what a stream becomes is part of the protocol:

    m = 2^b          the next ⌈n·b / 8⌉ bytes, read as n packed residues; the bits after the last are ignored
    other m < 2^6    words of 32 bits; those from the largest multiple of m⁴ on are rejected, the others reduced
                     mod m⁴, and their four digits are elements, lowest first, until there are n
    other m < 2^8    words of 16 bits; those from the largest multiple of m on are rejected, the others, reduced
                     mod m, are elements
    other m          what `ring.sample` draws

Words are little-endian. All four are exactly uniform if the stream is. In the small rings at most one word in 256
is rejected (for m = 11 one in six million; of bytes it would be one in 85), because taking rejected words out
would take longer than all the rest.
"""

import numpy as np
from numpy.typing import NDArray

from hubbub.errors import ConfigurationError, LocalError
from hubbub.protocol.dense import Digits, dense_bits, dense_bytes, read_digits
from hubbub.protocol.fields import BYTE_BITS, UNSIGNED, Bytes
from hubbub.protocol.radix import split_lanes
from hubbub.protocol.residues import BLOCK, Residues, check_modulus
from hubbub.protocol.ring import RandomStream, accept, sample, word_type

_FOUR = 4
_FOURS_BELOW = 2**6


def expand(stream: RandomStream, n: int, m: int) -> Residues:
    """Make the stream's next bytes a uniform vector over Z_m."""
    return expand_digits(stream, n, m).astype(np.uint32, copy=False)


def expand_digits(stream: RandomStream, n: int, m: int) -> Digits:
    """Do the same, into the narrowest type."""
    if is_power_of_two(m):
        return read_digits(expand_packed(stream, n, m), n, m)
    if n < 0:
        raise ConfigurationError(f"a vector cannot have {n} elements")
    if m < _FOURS_BELOW:
        return _expand_fours(stream, n, m)
    if word_type(m) == np.uint8:
        words = np.empty(n, dtype=UNSIGNED[2 * BYTE_BITS])
        _draw_into(words, stream, m)
        return words.astype(np.uint8)
    return sample(stream, n, m).astype(word_type(m), copy=False)


def _expand_fours(stream: RandomStream, n: int, m: int) -> Digits:
    fours = np.empty(-(-n // _FOUR), dtype=UNSIGNED[_FOUR * BYTE_BITS])
    _draw_into(fours, stream, m**_FOUR)
    for start in range(0, fours.size, BLOCK):
        split_lanes(fours[start : start + BLOCK], m, BYTE_BITS)
    return fours.view(np.uint8)[:n]


def _draw_into(x: NDArray[np.unsignedinteger], stream: RandomStream, m: int) -> None:
    """Fill `x` with residues mod m, each from a word of its own type."""
    filled = 0
    while filled < x.size:
        block = x[filled : filled + BLOCK]
        stream.fill(block.view(np.uint8))
        accepted = accept(block, m)
        if accepted is not block:
            block[: accepted.size] = accepted
        filled += accepted.size


def expand_packed(stream: RandomStream, n: int, m: int) -> Bytes:
    """Do the same where m is a power of two, and leave it packed; the padding is zero."""
    if not is_power_of_two(m):
        raise LocalError(f"random bytes are no packed residues mod {m}: it is not a power of two")
    packed = np.empty(dense_bytes(n, m), dtype=np.uint8)
    stream.fill(packed)
    last_bits = dense_bits(n, m) % BYTE_BITS
    if last_bits:
        packed[-1] &= np.uint8((1 << last_bits) - 1)
    return packed


def is_power_of_two(m: int) -> bool:
    """Whether residues mod m take whole bits; refuses what is no modulus."""
    check_modulus(m)
    return m & (m - 1) == 0
