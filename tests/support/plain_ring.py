"""Vectors over Z_m a second time: plain Python integers, one element at a time, nothing of Hubbub."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


class ByteStream:
    """A stream that gives the bytes it was made with, and counts them."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.taken = 0

    def fill(self, out: NDArray[np.uint8]) -> None:
        part = self._data[self.taken : self.taken + out.size]
        assert len(part) == out.size, "the stream has run dry"
        out[:] = np.frombuffer(part, dtype=np.uint8)
        self.taken += out.size


def bits_for(m: int) -> int:
    """The smallest b with 2^b ≥ m."""
    bits = 0
    while 2**bits < m:
        bits += 1
    return bits


def pack(values: Sequence[int], m: int) -> bytes:
    """All values as one long integer, value i at bit b·i."""
    whole = sum(value << (bits_for(m) * i) for i, value in enumerate(values))
    return whole.to_bytes((len(values) * bits_for(m) + 7) // 8, "little")


def unpack(data: bytes, n: int, m: int) -> list[int]:
    whole = int.from_bytes(data, "little")
    return [(whole >> (bits_for(m) * i)) % 2 ** bits_for(m) for i in range(n)]


def sample(data: bytes, n: int, m: int) -> tuple[list[int], int]:
    """The first n accepted words reduced mod m, and how many bytes that took."""
    size = 1 if m <= 2**8 else 2 if m <= 2**16 else 4 if m <= 2**32 else 8
    values: list[int] = []
    at = 0
    while len(values) < n:
        word = int.from_bytes(data[at : at + size], "little")
        at += size
        if word < 256**size // m * m:
            values.append(word % m)
    return values, at


def split(x: Sequence[int], m: int, servers: int, data: bytes) -> list[list[int]]:
    """Alg. 1, first block."""
    shares = []
    for _ in range(servers - 1):
        share, taken = sample(data, len(x), m)
        data = data[taken:]
        shares.append(share)
    last = [(value - sum(column)) % m for value, *column in zip(x, *shares, strict=True)]
    return [*shares, last]


def add(vectors: Sequence[Sequence[int]], m: int) -> list[int]:
    return [sum(column) % m for column in zip(*vectors, strict=True)]
