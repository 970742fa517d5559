"""Bit fields of one width, from one per word to end to end in bytes.

Field i holds bits w·i to w·(i + 1) of the byte string. Every P = 8/gcd(w, 8) fields start on a byte again, so
that field j of every group is found at the same place: a word at byte ⌊w·j / 8⌋ of its group, and w·j mod 8
bits into that. Such words are read and written for all groups at once, through an array whose elements lie a
group's bytes apart, at any address, and overlap where a group is shorter than a word. Where written words
overlap they hold the same bits, so that their order does not matter.
"""

from math import gcd

import numpy as np
from numpy.typing import NDArray

WORD_BITS = 64
BYTE_BITS = 8

SLACK = 16
"""Bytes that are read or written after the last field; what they hold matters to nobody."""

# Little-endian by name: the bytes are the same on every machine.
UNSIGNED: dict[int, np.dtype[np.unsignedinteger]] = {
    8: np.dtype("u1"),
    16: np.dtype("<u2"),
    32: np.dtype("<u4"),
    64: np.dtype("<u8"),
}

Bytes = NDArray[np.uint8]
Fields = NDArray[np.unsignedinteger]


def join_fields(fields: Fields, out: Bytes, width: int) -> None:
    """Write fields of `width` bits end to end; their words hold no other bits, and are overwritten.

    The width is from 8 bits to a word, the number of fields a multiple of P, and `out` longer than they are by
    `SLACK`.
    """
    if width in UNSIGNED:
        out[: fields.size * width // BYTE_BITS].view(UNSIGNED[width])[:] = fields
        return
    _fill_up(fields, width)
    kind, period = fields.dtype.type, _period(width)
    for lane in range(period):
        at, shift = divmod(lane * width, BYTE_BITS)
        row = fields[lane::period]
        if shift:
            # The byte begins with the end of the field before.
            row = row << kind(shift) | fields[lane - 1 :: period] >> kind(width - shift)
        words_at(out, at, row.size, width * period // BYTE_BITS, fields.dtype)[:] = row


def part_fields(data: Bytes, fields: Fields, width: int) -> None:
    """Undo `join_fields`: fill all of `fields`, one to a word. `data` is longer than they are by `SLACK`."""
    if width in UNSIGNED:
        fields[:] = data[: fields.size * width // BYTE_BITS].view(UNSIGNED[width])
        return
    kind, word_bytes, period = fields.dtype.type, fields.dtype.itemsize, _period(width)
    stride = width * period // BYTE_BITS
    for lane in range(period):
        at, shift = divmod(lane * width, BYTE_BITS)
        row = words_at(data, at, fields.size // period, stride, fields.dtype)
        if shift:
            row = row >> kind(shift)
        rest = word_bytes * BYTE_BITS - shift
        if rest < width:
            # The field runs on into the next word.
            row |= words_at(data, at + word_bytes, row.size, stride, fields.dtype) << kind(rest)
        fields[lane::period] = row
    fields &= kind((1 << width) - 1)


def _period(width: int) -> int:
    """P: so many fields end on a byte."""
    return BYTE_BITS // gcd(width, BYTE_BITS)


def _fill_up(fields: Fields, width: int) -> None:
    """Put into the free bits of every word what comes after its field."""
    filled, following = width, 1
    while filled < fields.dtype.itemsize * BYTE_BITS:
        fields[:-following] |= fields[following:] << fields.dtype.type(filled)
        filled, following = 2 * filled, 2 * following


def words_at(data: Bytes, at: int, count: int, stride: int, kind: np.dtype[np.unsignedinteger]) -> Fields:
    """View words that begin `stride` bytes apart, the first at byte `at`."""
    return np.ndarray((count,), dtype=kind, buffer=data.data, offset=at, strides=(stride,))
