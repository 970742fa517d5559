"""Residues as bits: exactly ⌈log2 m⌉ per element, one after another.

Bit i of the stream is bit i mod 8 of byte ⌊i / 8⌋, and an element starts with its lowest bit; the last byte
is padded with zeros. A vector's packed form is the integer Σ x[i]·2^(b·i), little-endian.

Two steps serve every width b from 1 to 64, each a handful of vector operations on 64-bit words:

1. *Fold*: elements sit in containers of 8 to 64 bits, so a 64-bit word holds 8, 4, 2 or 1 of them. Closing
   the gaps between neighbours, then between pairs, then between fours leaves one dense field of w = 8b, 4b or
   2b bits in each word.
2. *Join*: the fields are put end to end (`fields`).

Unpacking runs the same steps backwards. 64 elements always fill b whole words, and a block is a multiple of
that.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from hubbub.errors import PeerError, RejectReason
from hubbub.protocol.fields import BYTE_BITS, SLACK, UNSIGNED, WORD_BITS, Bytes, join_fields, part_fields
from hubbub.protocol.radix import container_bits, merge_lanes, split_lanes
from hubbub.protocol.residues import Residues, check_residues, element_bits, packed_bytes, residue_type

_WORD = UNSIGNED[WORD_BITS]

_BLOCK_BITS = 2**21

Words = NDArray[np.uint64]
Elements = NDArray[np.unsignedinteger]


def pack(x: Residues, m: int) -> bytes:
    """Write the residues with ⌈log2 m⌉ bits each."""
    check_residues(x, m)
    return write_elements(x, element_bits(m))


def unpack(data: bytes | bytearray | memoryview, n: int, m: int) -> Residues:
    """Read n residues and refuse, as the sender's fault, anything that `pack` cannot have written."""
    bits = element_bits(m)
    raw = read_bytes(data, packed_bytes(n, m), f"{n} residues mod {m}")
    check_padding(raw, n * bits)
    x = np.empty(n, dtype=residue_type(m))
    for place, elements in read_elements(raw, n, bits):
        x[place] = elements
    # Where m is a power of two the bits cannot hold anything larger.
    if n and m != 2**bits and int(x.max()) >= m:
        raise PeerError(RejectReason.RESIDUE_OUT_OF_RANGE, f"a packed value is {m} or more, no residue mod {m}")
    return x


def write_elements(x: Elements, bits: int) -> bytes:
    """Write the lowest bits of each element, so many of each, up to 64."""
    size = block_elements(bits)
    packed, buffer = _new_bytes(x.size, bits), _new_elements(min(x.size, size), bits)
    for start in range(0, x.size, size):
        block = x[start : start + size]
        elements = buffer[: _padded(block.size)]
        elements[: block.size] = block
        elements[block.size :] = 0
        elements &= elements.dtype.type(2**bits - 1)
        _pack_block(elements, packed[start * bits // BYTE_BITS :], bits)
    return packed[: -(-x.size * bits // BYTE_BITS)].tobytes()


def read_elements(raw: Bytes, n: int, bits: int) -> Iterator[tuple[slice, Elements]]:
    """Undo `write_elements`, block by block: each with its place; the next one overwrites it."""
    size = block_elements(bits)
    # Copied block by block, because the bytes may start at any address and end within a word. What is left over
    # in the last word belongs to elements after the n-th, which nobody reads.
    packed, buffer = _new_bytes(min(n, size), bits), _new_elements(min(n, size), bits)
    for start in range(0, n, size):
        stop = min(n, start + size)
        elements = buffer[: _padded(stop - start)]
        read = raw[start * bits // BYTE_BITS : (start + elements.size) * bits // BYTE_BITS]
        packed[: read.size] = read
        _unpack_block(packed, elements, bits)
        yield slice(start, stop), elements[: stop - start]


def read_bytes(data: bytes | bytearray | memoryview, expected: int, what: str) -> Bytes:
    """View what a peer sent, if it has the length that `what` takes."""
    raw = np.frombuffer(data, dtype=np.uint8) if len(data) else np.empty(0, dtype=np.uint8)
    if raw.size != expected:
        raise PeerError(RejectReason.WRONG_LENGTH, f"{what} take {expected} bytes packed, not {raw.size}")
    return raw


def check_padding(raw: Bytes, bits: int) -> None:
    """Refuse a last byte that goes on after so many bits."""
    last_bits = bits % BYTE_BITS
    if last_bits and raw[-1] >> last_bits:
        raise PeerError(RejectReason.NONZERO_PADDING, "the bits after the last residue are not all zero")


def block_elements(bits: int) -> int:
    """Elements to pack at once: few enough for their containers to stay in cache."""
    return _BLOCK_BITS // container_bits(bits)


def _padded(n: int) -> int:
    """Round up to the elements that fill whole words."""
    return -(-n // WORD_BITS) * WORD_BITS


def _new_bytes(n: int, bits: int) -> Bytes:
    """Make room for n elements packed, rounded up to whole words, and for what a join writes after them."""
    return np.empty(_padded(n) * bits // BYTE_BITS + SLACK, dtype=np.uint8)


def _new_elements(n: int, bits: int) -> Elements:
    """Make room for n elements in containers, rounded up to what fills whole words."""
    return np.empty(_padded(n), dtype=UNSIGNED[container_bits(bits)])


def _pack_block(elements: Elements, out: Bytes, bits: int) -> None:
    """Write a multiple of 64 elements into the first bytes of `out`; overwrites `elements`."""
    container = container_bits(bits)
    words = elements.view(_WORD)
    if bits < container:
        merge_lanes(words, 2**bits, container)
    join_fields(words, out, bits * WORD_BITS // container)


def _unpack_block(packed: Bytes, elements: Elements, bits: int) -> None:
    """Read a multiple of 64 elements from the first bytes; all of them are 0 to 2^bits - 1."""
    container = container_bits(bits)
    words = elements.view(_WORD)
    part_fields(packed, words, bits * WORD_BITS // container)
    if bits < container:
        split_lanes(words, 2**bits, container)
