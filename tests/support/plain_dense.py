"""Words of residues and expansion a second time: plain integers, one element at a time, nothing of Hubbub."""

from collections.abc import Sequence
from fractions import Fraction

from support import plain_ring


def word(m: int) -> tuple[int, int]:
    """All words that fit 64 bits are tried; whole numbers and exact fractions are compared."""
    if 2 ** plain_ring.bits_for(m) == m:
        return 1, plain_ring.bits_for(m)
    found = (1, plain_ring.bits_for(m))
    for step in (8, 4, 2, 1):
        best = None
        for w in range(step, 65, step):
            g = 0
            while m ** (g + 1) <= 2**w:
                g += 1
            # A later one is longer, and is taken if it is as good.
            if g and (best is None or Fraction(w, g) <= Fraction(best[1], best[0])):
                best = (g, w)
        assert best
        found = best
        if 2 ** (100 * found[1]) <= m ** (103 * found[0]):
            return found
    return found


def to_words(values: Sequence[int], m: int) -> list[int]:
    g, _ = word(m)
    return [
        sum(value * m**i for i, value in enumerate(values[start : start + g]))
        for start in range(0, len(values), g)
    ]


def from_words(words: Sequence[int], n: int, m: int) -> list[int]:
    """Reads anything; whether it is allowed shows when it is put together again."""
    g, _ = word(m)
    return [each // m**i % m for each in words for i in range(g)][:n]


def pack_words(words: Sequence[int], m: int) -> bytes:
    return plain_ring.pack(words, 2 ** word(m)[1])


def unpack_words(data: bytes, n: int, m: int) -> list[int]:
    g, w = word(m)
    return plain_ring.unpack(data, -(-n // g), 2**w)


def pack(values: Sequence[int], m: int) -> bytes:
    return pack_words(to_words(values, m), m)


def unpack(data: bytes, n: int, m: int) -> list[int]:
    return from_words(unpack_words(data, n, m), n, m)


def expand(data: bytes, n: int, m: int) -> tuple[list[int], int]:
    """The words, and how many bytes that took."""
    g, w = word(m)
    if m == 2:
        taken = (n + 7) // 8
        return plain_ring.unpack(data[:taken], n, 2), taken
    count, size = -(-n // g), next(size for size in (1, 2, 4, 8) if w <= 8 * size)
    drawn = [int.from_bytes(data[at : at + size], "little") for at in range(0, count * size, size)]
    return [each % 2**w for each in drawn], count * size


def add(vectors: Sequence[Sequence[int]], m: int) -> list[int]:
    """Add vectors of words."""
    return plain_ring.add(vectors, 2 ** word(m)[1])
