"""Words from a stream that several parties can repeat: masks, and shares that travel as seeds.

All of them must get the same vector, so what a stream becomes is part of the protocol:

    m = 2     the next ⌈n / 8⌉ bytes, of which bit i mod 8 of byte ⌊i / 8⌋ is element i
    other m   ⌈n/g⌉ little-endian numbers of 8, 16, 32 or 64 bits, the smallest that hold the w bits of a word
              (`dense`); each is a word mod 2^w

Bits that no word or element takes are ignored. Every word is uniform if the stream is, and no byte is rejected.
"""

from collections.abc import Iterator

import numpy as np

from hubbub.protocol.dense import Words, count_words, words_type
from hubbub.protocol.fields import BYTE_BITS, Bytes
from hubbub.protocol.packing import block_elements
from hubbub.protocol.ring import RandomStream


def expand_words(stream: RandomStream, n: int, m: int) -> Iterator[tuple[slice, Words]]:
    """Make the stream's next bytes the words of n elements, block by block; the next one overwrites it."""
    kind, total = words_type(m), count_words(n, m)
    size = block_elements(BYTE_BITS * kind.itemsize)
    buffer = np.empty(min(total, size), dtype=kind)
    for start in range(0, total, size):
        block = buffer[: min(size, total - start)]
        stream.fill(block.view(np.uint8))
        yield slice(start, start + block.size), block


def expand_bits(stream: RandomStream, n: int) -> Bytes:
    """Make the stream's next bytes n elements of Z_2, packed; the padding is zero."""
    packed = np.empty(-(-n // BYTE_BITS), dtype=np.uint8)
    stream.fill(packed)
    last_bits = n % BYTE_BITS
    if last_bits:
        packed[-1] &= np.uint8((1 << last_bits) - 1)
    return packed
