"""The two ways in which residues become bytes: whole bits each, as the paper counts them, or dense.

What a chunk holds and what a formula counts follow from the encoding alone, so both ends cut vectors alike.
"""

from __future__ import annotations

from typing import Protocol

from hubbub.protocol import dense, packing, residues
from hubbub.protocol.fields import BYTE_BITS
from hubbub.protocol.residues import Residues

ALIGNMENT = 64
"""Residues: this many of any width end on a whole 64-bit word."""


class Encoding(Protocol):
    """A way to write residues."""

    def bits(self, n: int, m: int) -> int:
        """Payload of n residues."""

    def size(self, n: int, m: int) -> int:
        """Bytes that n residues take, the last one padded."""

    def fitting(self, room: int, m: int) -> int:
        """How many residues, ending on a whole byte, fit into so many bytes."""

    def pack(self, x: Residues, m: int) -> bytes:
        """Write residues."""

    def unpack(self, data: bytes | memoryview, n: int, m: int) -> Residues:
        """Read n residues, or refuse with `PeerError` what cannot have been written."""

    def check(self, data: bytes | memoryview, n: int, m: int) -> None:
        """Refuse what cannot be a share of n residues."""


class WholeBits:
    """⌈log2 m⌉ bits each (Beguier et al., section 2.3.2)."""

    def bits(self, n: int, m: int) -> int:
        """n·⌈log2 m⌉."""
        return n * residues.element_bits(m)

    def size(self, n: int, m: int) -> int:
        """In bytes."""
        return residues.packed_bytes(n, m)

    def fitting(self, room: int, m: int) -> int:
        """A multiple of 64; residues of 64 bits each end on a whole word."""
        aligned = 1 if m == residues.WORD_MODULUS else ALIGNMENT
        return room * 8 // residues.element_bits(m) // aligned * aligned

    def pack(self, x: Residues, m: int) -> bytes:
        """One after another."""
        return packing.pack(x, m)

    def unpack(self, data: bytes | memoryview, n: int, m: int) -> Residues:
        """One after another."""
        return packing.unpack(data, n, m)

    def check(self, data: bytes | memoryview, n: int, m: int) -> None:
        """By reading it."""
        packing.unpack(data, n, m)


class Dense:
    """⌈n/g⌉·w bits: within a few percent of log2 m each."""

    def bits(self, n: int, m: int) -> int:
        """⌈n/g⌉·w."""
        return dense.dense_bits(n, m)

    def size(self, n: int, m: int) -> int:
        """In bytes."""
        return dense.dense_bytes(n, m)

    def fitting(self, room: int, m: int) -> int:
        """A multiple of 8·g: eight words end on a whole byte."""
        word = dense.word_of(m)
        return room // word.bits * BYTE_BITS * word.digits

    def pack(self, x: Residues, m: int) -> bytes:
        """In words."""
        return dense.pack_dense(x, m)

    def unpack(self, data: bytes | memoryview, n: int, m: int) -> Residues:
        """In words."""
        return dense.unpack_dense(data, n, m)

    def check(self, data: bytes | memoryview, n: int, m: int) -> None:
        """By its length and end: any word may be a share."""
        dense.read_frame(data, n, m)


WHOLE_BITS: Encoding = WholeBits()
DENSE: Encoding = Dense()
