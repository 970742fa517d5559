"""A vector over Z_m that is added to piece by piece: values, packed vectors, expanded streams.

It is all the arithmetic of compact mode, for any length and in any order of the additions:

    client        its values, plus its mask, minus the shares that travel as seeds: the full share
    aggregator    one full share or expanded seed of every member: its partial sum
    combiner      the aggregators' partial sums: the masked sum
    client        the masked sum, minus the members' masks: the sum

Elements are kept in the narrowest type that holds a sum of two and are reduced only before they could overflow,
so that for m = 11 every 25th addition takes the trouble. Bits are kept packed: over Z_2 addition, and
subtraction, is XOR.
"""

from abc import ABC, abstractmethod

import numpy as np

from hubbub.errors import LocalError
from hubbub.protocol.dense import Digits, check_digits, dense_bytes, pack_dense, unpack_digits
from hubbub.protocol.expansion import expand_digits, expand_packed, is_power_of_two
from hubbub.protocol.fields import BYTE_BITS, UNSIGNED
from hubbub.protocol.packing import block_elements, check_padding, read_bytes
from hubbub.protocol.ring import RandomStream, reduce_words, word_type


class Total(ABC):
    """A running sum of vectors of n elements mod m; zero at first. It does not print."""

    def __init__(self, n: int, m: int) -> None:
        self._n, self._m = n, m

    def __repr__(self) -> str:
        return f"{type(self).__name__}(<secret>, n={self._n}, m={self._m})"

    def add(self, x: Digits) -> None:
        """Add a vector that is at hand, of any unsigned type."""
        check_digits(x, self._m)
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
        """Write the sum as dense residues."""

    @abstractmethod
    def values(self) -> Digits:
        """The sum, in the narrowest type that holds residues mod m; a copy."""


def begin_total(n: int, m: int) -> Total:
    """Begin with zeros."""
    return _Bits(n, m) if m == 2 else _Lanes(n, m)  # noqa: PLR2004 - the ring of bits.


class _Lanes(Total):
    def __init__(self, n: int, m: int) -> None:
        super().__init__(n, m)
        # Where m is a power of two an overflow changes no residue.
        self._wraps = is_power_of_two(m)
        largest = m - 1 if self._wraps else 2 * m - 1
        self._lanes = np.zeros(n, dtype=next(kind for kind in UNSIGNED.values() if largest <= np.iinfo(kind).max))
        self._largest = 0

    def _add(self, x: Digits) -> None:
        self._make_room(self._m - 1)
        np.add(self._lanes, x, out=self._lanes, dtype=self._lanes.dtype, casting="same_kind")

    def add_packed(self, data: bytes | bytearray | memoryview) -> None:
        self._add(unpack_digits(data, self._n, self._m))

    def add_expanded(self, stream: RandomStream) -> None:
        self._add(expand_digits(stream, self._n, self._m))

    def subtract_expanded(self, stream: RandomStream) -> None:
        x = expand_digits(stream, self._n, self._m)
        if self._wraps:
            self._lanes -= x
            return
        # m - x is positive: nothing falls below zero.
        np.subtract(x.dtype.type(self._m), x, out=x)
        self._make_room(self._m)
        self._lanes += x

    def _make_room(self, addend: int) -> None:
        """Reduce, if this much more could overflow a lane."""
        if not self._wraps and self._largest + addend > np.iinfo(self._lanes.dtype).max:
            self._reduce()
        self._largest += addend

    def _reduce(self) -> None:
        size = block_elements(BYTE_BITS * self._lanes.itemsize)
        for start in range(0, self._n, size):
            reduce_words(self._lanes[start : start + size], self._m)
        self._largest = self._m - 1

    def pack(self) -> bytes:
        self._reduce()
        return pack_dense(self._lanes, self._m)

    def values(self) -> Digits:
        self._reduce()
        return self._lanes.astype(word_type(self._m))


class _Bits(Total):
    def __init__(self, n: int, m: int) -> None:
        super().__init__(n, m)
        self._packed = np.zeros(dense_bytes(n, m), dtype=np.uint8)

    def _add(self, x: Digits) -> None:
        # numpy packs bytes fifty times as fast as wider types.
        self._packed ^= np.packbits(x.astype(np.uint8, copy=False), bitorder="little")

    def add_packed(self, data: bytes | bytearray | memoryview) -> None:
        raw = read_bytes(data, self._packed.size, f"{self._n} residues mod {self._m}")
        check_padding(raw, self._n)
        self._packed ^= raw

    def add_expanded(self, stream: RandomStream) -> None:
        self._packed ^= expand_packed(stream, self._n, self._m)

    def subtract_expanded(self, stream: RandomStream) -> None:
        self.add_expanded(stream)

    def pack(self) -> bytes:
        return self._packed.tobytes()

    def values(self) -> Digits:
        return np.unpackbits(self._packed, count=self._n, bitorder="little")
