"""A vector over Z_m that is added to piece by piece: values, packed vectors, expanded streams.

It is all the arithmetic of compact mode, for any length and in any order of the additions:

    client        its values, plus its mask, minus the shares that travel as seeds: the full share
    aggregator    one full share or expanded seed of every member: its partial sum
    combiner      the aggregators' partial sums: the masked sum
    client        the masked sum, minus the members' masks: the sum

It is kept as words mod 2^w (`dense`), which overflow as they should, so that adding is one pass over few numbers.
Bits are kept packed: over Z_2 addition, and subtraction, is XOR.
"""

from abc import ABC, abstractmethod

import numpy as np

from hubbub.errors import LocalError
from hubbub.protocol.dense import (
    Digits,
    check_digits,
    count_words,
    dense_bytes,
    from_words,
    pack_words,
    read_frame,
    read_words,
    to_words,
    words_type,
)
from hubbub.protocol.expansion import expand_bits, expand_words
from hubbub.protocol.ring import RandomStream


class Total(ABC):
    """A running sum of vectors of n elements mod m; zero at first. It does not print."""

    def __init__(self, n: int, m: int) -> None:
        self._n, self._m = n, m

    def __repr__(self) -> str:
        return f"{type(self).__name__}(<secret>, n={self._n}, m={self._m})"

    def add(self, x: Digits) -> None:
        """Add a vector that is at hand, of any unsigned type."""
        if x.size != self._n:
            raise LocalError(f"a vector of {x.size} elements cannot be added to {self._n}")
        self._add(x)

    @abstractmethod
    def _add(self, x: Digits) -> None: ...

    @abstractmethod
    def add_packed(self, data: bytes | bytearray | memoryview) -> None:
        """Add what `pack` has written elsewhere; anything else is refused as the sender's fault, and not added."""

    @abstractmethod
    def add_expanded(self, stream: RandomStream) -> None:
        """Add the vector that the stream's next bytes stand for."""

    @abstractmethod
    def subtract_expanded(self, stream: RandomStream) -> None:
        """Subtract the vector that the stream's next bytes stand for."""

    @abstractmethod
    def pack(self) -> bytes:
        """Write the sum as words."""

    @abstractmethod
    def values(self) -> tuple[Digits, bool]:
        """The sum, in the narrowest type that holds residues mod m, and whether residues can have it; a copy."""


def begin_total(n: int, m: int) -> Total:
    """Begin with zeros."""
    return _Bits(n, m) if m == 2 else _Words(n, m)  # noqa: PLR2004 - the ring of bits.


class _Words(Total):
    def __init__(self, n: int, m: int) -> None:
        super().__init__(n, m)
        self._words = np.zeros(count_words(n, m), dtype=words_type(m))

    def _add(self, x: Digits) -> None:
        self._words += to_words(x, self._m)

    def add_packed(self, data: bytes | bytearray | memoryview) -> None:
        for place, words in read_words(data, self._n, self._m):
            self._words[place] += words

    def add_expanded(self, stream: RandomStream) -> None:
        for place, words in expand_words(stream, self._n, self._m):
            self._words[place] += words

    def subtract_expanded(self, stream: RandomStream) -> None:
        for place, words in expand_words(stream, self._n, self._m):
            self._words[place] -= words

    def pack(self) -> bytes:
        return pack_words(self._words, self._m)

    def values(self) -> tuple[Digits, bool]:
        return from_words(self._words, self._n, self._m)


class _Bits(Total):
    def __init__(self, n: int, m: int) -> None:
        super().__init__(n, m)
        self._packed = np.zeros(dense_bytes(n, m), dtype=np.uint8)

    def _add(self, x: Digits) -> None:
        check_digits(x, self._m)
        # numpy packs bytes fifty times as fast as wider types.
        self._packed ^= np.packbits(x.astype(np.uint8, copy=False), bitorder="little")

    def add_packed(self, data: bytes | bytearray | memoryview) -> None:
        self._packed ^= read_frame(data, self._n, self._m)

    def add_expanded(self, stream: RandomStream) -> None:
        self._packed ^= expand_bits(stream, self._n)

    def subtract_expanded(self, stream: RandomStream) -> None:
        self.add_expanded(stream)

    def pack(self) -> bytes:
        return self._packed.tobytes()

    def values(self) -> tuple[Digits, bool]:
        return np.unpackbits(self._packed, count=self._n, bitorder="little"), True
