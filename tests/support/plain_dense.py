"""Dense residues and expansion a second time: plain Python integers, one element at a time, nothing of Hubbub."""

from collections.abc import Sequence
from fractions import Fraction

from support import plain_ring


def word(m: int) -> tuple[int, int]:
    """All words that fit 32 bits are tried; exact fractions are compared."""
    bits = {g: plain_ring.bits_for(m**g) for g in range(1, 33) if m**g <= 2**32}
    best = min(Fraction(w, g) for g, w in bits.items())
    g = min(g for g, w in bits.items() if Fraction(w, g) == best)
    return g, bits[g]


def pack(values: Sequence[int], m: int) -> bytes:
    g, w = word(m)
    words = [
        sum(value * m**i for i, value in enumerate(values[start : start + g]))
        for start in range(0, len(values), g)
    ]
    return plain_ring.pack(words, 2**w)


def unpack(data: bytes, n: int, m: int) -> list[int]:
    """Reads anything; whether it is allowed shows when it is packed again."""
    g, w = word(m)
    words = plain_ring.unpack(data, -(-n // g), 2**w)
    return [each // m**i % m for each in words for i in range(g)][:n]


def expand(data: bytes, n: int, m: int) -> tuple[list[int], int]:
    """The elements, and how many bytes that took."""
    if 2 ** plain_ring.bits_for(m) == m:
        taken = (n * plain_ring.bits_for(m) + 7) // 8
        return plain_ring.unpack(data[:taken], n, m), taken
    if m > 256:
        return plain_ring.sample(data, n, m)
    size, digits = (4, 4) if m < 64 else (2, 1)
    values: list[int] = []
    at = 0
    while len(values) < n:
        drawn = int.from_bytes(data[at : at + size], "little")
        at += size
        if drawn < 256**size // m**digits * m**digits:
            values += [drawn // m**i % m for i in range(digits)]
    return values[:n], at
