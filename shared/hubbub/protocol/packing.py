"""Residues as bits: exactly ⌈log2 m⌉ per element, one after another.

Bit i of the stream is bit i mod 8 of byte ⌊i / 8⌋, and an element starts with its lowest bit; the last byte
is padded with zeros. A vector's packed form is the integer Σ x[i]·2^(b·i), little-endian.

Two steps serve every width b from 1 to 32, each a handful of vector operations on 64-bit words:

1. *Fold*: elements sit in containers of 8, 16 or 32 bits, so a 64-bit word holds 8, 4 or 2 of them. Closing
   the gaps between neighbours, then between pairs, then between fours leaves one dense field of w = 8b, 4b or
   2b bits in each word.
2. *Lanes*: 64/gcd(w, 64) fields fill w/gcd(w, 64) whole words. Field j of every group lies at the same place,
   so that a shift and an OR move it for all groups at once. Fields of 8, 16, 32 or 64 bits need a cast only.

Unpacking runs the same steps backwards. 64 elements always fill b whole words, and a block is a multiple of
that.
"""

from functools import cache
from math import gcd

import numpy as np
from numpy.typing import NDArray

from hubbub.errors import PeerError, RejectReason
from hubbub.protocol.residues import BLOCK, Residues, check_residues, element_bits, packed_bytes

WORD_BITS = 64
BYTE_BITS = 8

# Little-endian by name: the packed bytes are the same on every machine.
_WORD = np.dtype("<u8")
_UNSIGNED: dict[int, np.dtype[np.unsignedinteger]] = {
    8: np.dtype("u1"),
    16: np.dtype("<u2"),
    32: np.dtype("<u4"),
    64: _WORD,
}

Words = NDArray[np.uint64]


def pack(x: Residues, m: int) -> bytes:
    """Write the residues with ⌈log2 m⌉ bits each."""
    check_residues(x, m)
    bits = element_bits(m)
    container = _container_bits(bits)
    words = np.empty(_padded(x.size) * bits // WORD_BITS, dtype=_WORD)
    fields, scratch = _field_buffers(x.size, container)
    for start in range(0, x.size, BLOCK):
        block = x[start : start + BLOCK]
        used = _padded(block.size)
        narrow = fields.view(_UNSIGNED[container])[:used]
        narrow[: block.size] = block
        narrow[block.size :] = 0
        _fold(narrow.view(_WORD), scratch, bits, container)
        _join_lanes(narrow.view(_WORD), _words_of(words, start, used, bits), bits * WORD_BITS // container)
    return words.view(np.uint8)[: packed_bytes(x.size, m)].tobytes()


def unpack(data: bytes | bytearray | memoryview, n: int, m: int) -> Residues:
    """Read n residues and refuse, as the sender's fault, anything that `pack` cannot have written."""
    raw = _check_bytes(data, n, m)
    bits = element_bits(m)
    container = _container_bits(bits)
    x = np.empty(n, dtype=np.uint32)
    fields, scratch = _field_buffers(n, container)
    # Copied block by block, because `data` may start at any address and end within a word. What is left over
    # in the last word belongs to elements after the n-th, which nobody reads.
    words = np.empty(min(_padded(n), BLOCK) * bits // WORD_BITS, dtype=_WORD)
    for start in range(0, n, BLOCK):
        block = x[start : start + BLOCK]
        used = _padded(block.size)
        read = raw[start * bits // BYTE_BITS : (start + used) * bits // BYTE_BITS]
        words.view(np.uint8)[: read.size] = read
        narrow = fields.view(_UNSIGNED[container])[:used]
        _part_lanes(_words_of(words, 0, used, bits), narrow.view(_WORD), bits * WORD_BITS // container)
        _unfold(narrow.view(_WORD), scratch, bits, container)
        block[:] = narrow[: block.size]
    _check_range(x, m)
    return x


def _check_bytes(data: bytes | bytearray | memoryview, n: int, m: int) -> NDArray[np.uint8]:
    expected = packed_bytes(n, m)
    raw = np.frombuffer(data, dtype=np.uint8) if len(data) else np.empty(0, dtype=np.uint8)
    if raw.size != expected:
        raise PeerError(
            RejectReason.WRONG_LENGTH, f"{n} residues mod {m} take {expected} bytes packed, not {raw.size}"
        )
    last_bits = n * element_bits(m) % BYTE_BITS
    if last_bits and raw[-1] >> last_bits:
        raise PeerError(RejectReason.NONZERO_PADDING, "the bits after the last residue are not all zero")
    return raw


def _check_range(x: Residues, m: int) -> None:
    # Where m is a power of two the bits cannot hold anything larger.
    if x.size and m != 2 ** element_bits(m) and int(x.max()) >= m:
        raise PeerError(RejectReason.RESIDUE_OUT_OF_RANGE, f"a packed value is {m} or more, no residue mod {m}")


def _container_bits(bits: int) -> int:
    return next(size for size in _UNSIGNED if bits <= size)


def _padded(n: int) -> int:
    """Round up to the elements that fill whole words."""
    return -(-n // WORD_BITS) * WORD_BITS


def _field_buffers(n: int, container: int) -> tuple[Words, Words]:
    size = min(_padded(n), BLOCK) * container // WORD_BITS
    return np.empty(size, dtype=_WORD), np.empty(size, dtype=_WORD)


def _words_of(words: Words, start: int, used: int, bits: int) -> Words:
    return words[start * bits // WORD_BITS : (start + used) * bits // WORD_BITS]


@cache
def _gaps(bits: int, container: int) -> tuple[tuple[np.uint64, np.uint64], ...]:
    """For each doubling, the gap to close and a mask of the lower of every two neighbours, smallest first."""
    gaps = []
    while container < WORD_BITS:
        mask = sum(((1 << bits) - 1) << at for at in range(0, WORD_BITS, 2 * container))
        gaps.append((np.uint64(container - bits), np.uint64(mask)))
        bits, container = 2 * bits, 2 * container
    return tuple(gaps) if gaps[0][0] else ()


def _fold(fields: Words, scratch: Words, bits: int, container: int) -> None:
    """Close the gaps between the elements in each word."""
    lower = scratch[: fields.size]
    for gap, mask in _gaps(bits, container):
        np.bitwise_and(fields, mask, out=lower)
        fields ^= lower
        fields >>= gap
        fields |= lower


def _unfold(fields: Words, scratch: Words, bits: int, container: int) -> None:
    """Open the gaps again."""
    lower = scratch[: fields.size]
    for gap, mask in reversed(_gaps(bits, container)):
        np.bitwise_and(fields, mask, out=lower)
        fields ^= lower
        fields <<= gap
        fields |= lower


@cache
def _lanes(width: int) -> tuple[tuple[int, int, np.uint64, np.uint64 | None], ...]:
    """For each field of a group: lane, first word, shift in it, and its bits there if it runs on."""
    lanes = []
    for lane in range(WORD_BITS // gcd(width, WORD_BITS)):
        word, shift = divmod(lane * width, WORD_BITS)
        runs_on = shift + width > WORD_BITS
        lanes.append((lane, word, np.uint64(shift), np.uint64(WORD_BITS - shift) if runs_on else None))
    return tuple(lanes)


def _groups(fields: Words, words: Words, width: int) -> tuple[Words, Words]:
    """One row per group of fields and of the words that they fill; columns are lanes."""
    common = gcd(width, WORD_BITS)
    return fields.reshape(-1, WORD_BITS // common), words.reshape(-1, width // common)


def _join_lanes(fields: Words, words: Words, width: int) -> None:
    if width in _UNSIGNED:
        words.view(_UNSIGNED[width])[:] = fields
        return
    grouped_fields, grouped_words = _groups(fields, words, width)
    grouped_words[:] = 0
    for lane, word, shift, rest in _lanes(width):
        field = grouped_fields[:, lane]
        grouped_words[:, word] |= field << shift
        if rest is not None:
            grouped_words[:, word + 1] |= field >> rest


def _part_lanes(words: Words, fields: Words, width: int) -> None:
    if width in _UNSIGNED:
        fields[:] = words.view(_UNSIGNED[width])
        return
    grouped_fields, grouped_words = _groups(fields, words, width)
    for lane, word, shift, rest in _lanes(width):
        field = grouped_words[:, word] >> shift
        if rest is not None:
            field |= grouped_words[:, word + 1] << rest
        grouped_fields[:, lane] = field
    fields &= np.uint64((1 << width) - 1)
