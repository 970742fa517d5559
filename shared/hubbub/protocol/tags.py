"""Tags: short linear checksums with which clients verify the servers' sums; not in the paper.

    client i    t_i = Σ_j r_j·x_i[j]              shared, masked and added like x_i
    client      Σ_i t_i = Σ_j r_j·(Σ_i x_i[j])    or the sum is false

The coefficients r follow from the clients' group secret, so that no server knows them, and are the same for all
clients. There are three kinds, by what a phase adds:

    integers    x and Σx are integers below 2^32 in size; r and t are in Z_(2^64); 3 lanes
    wide        x and Σx are integers mod 2^64; r is 0 or 1, and t is in Z_(2^64); 84 lanes
    marks       x and Σx are residues mod 2^q; r is 0 or 1, and t is in Z_(2^q); 128 lanes

Every lane has an r of its own. A server that shifts the sum must shift the tags to match, without knowing r. For
integers a shift by 2^v·odd moves a lane by one of 2^(64-v) equally likely values. As v is at most 31, a server
guesses 3 lanes with probability 2^-99. In Z_(2^64), v is up to 63, and a shift by 2^63 would meet one bit of such
an r. So wide tags have an r of one bit and more lanes: any shift moves a lane in at least two equally likely ways,
2^-84. For marks likewise: 2^-128.

Σt depends on r and Σx alone, because tags are added in the ring in which they are computed and wrap there. Tags
in a prime field that are added as integers would not do: the size of their sum depends on the single inputs.

r_j is computed on demand: for non-zero elements only, one by one, or as a range where most are not zero.
"""

from collections.abc import Callable, Sequence
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from hubbub.errors import ConfigurationError
from hubbub.protocol.dense import Digits, is_power_of_two
from hubbub.protocol.layout import Vector
from hubbub.protocol.packing import BYTE_BITS, MAX_MODULUS, WORD_MODULUS
from hubbub.protocol.ring import word_type

NAME = "tags"
"""Name of the vector that carries them, and of the traffic category."""
LANES = 3
WIDE_LANES = 84
MARK_LANES = 128

Kind = Literal["integers", "wide", "marks"]
Rows = NDArray[np.uint64]
"""One row of coefficients for each index."""

_INTEGER_WORDS = 4
"""64-bit words of one index's coefficients: two blocks of AES, of which three words are used."""
_WIDE_WORDS = _MARK_WORDS = 2
"""One block of AES, a bit for each lane; wide tags leave some over."""
_BLOCK = 2**12
"""Indices worked on at once: their coefficients stay in cache."""
_MOST_SPARSE = 2
"""Single coefficients are computed if at most one element in this many is not zero."""


class Coefficients(Protocol):
    """The secret coefficients of one vector: rows of 64-bit words by index, in any order."""

    def at(self, indices: NDArray[np.int64], words: int) -> Rows:
        """Return the rows of these indices; the next call overwrites them."""

    def run(self, first: int, count: int, words: int) -> Rows:
        """Return the same rows for consecutive indices."""


CoefficientsOf = Callable[[str], Coefficients]
"""The coefficients of a vector of a phase, by its name."""
CoefficientsIn = Callable[[str, str], Coefficients]
"""The coefficients of a vector in a round, by the names of its phase and of the vector."""


def describe(kind: Kind, vectors: Sequence[Vector]) -> Vector:
    """Describe the vector of tags that goes with a phase's vectors."""
    if kind == "wide":
        return describe_for(kind, 0)
    for vector in vectors:
        if vector.modulus > MAX_MODULUS:
            raise ConfigurationError(
                f"{vector.name} is over Z_{vector.modulus}; tags of {kind} are for rings up to 2^32"
            )
    if kind == "integers":
        return describe_for(kind, 0)
    rings = {vector.modulus for vector in vectors}
    if len(rings) != 1 or not is_power_of_two(vectors[0].modulus):
        raise ConfigurationError(f"marks are over one ring Z_(2^q), not over {sorted(rings)}")
    return describe_for(kind, vectors[0].modulus.bit_length() - 1)


def describe_for(kind: Kind, q: int) -> Vector:
    """Describe the vector of tags of a kind; marks are over Z_(2^q)."""
    if kind == "marks":
        return Vector(NAME, MARK_LANES, 2**q)
    return Vector(NAME, LANES if kind == "integers" else WIDE_LANES, WORD_MODULUS)


def compute(
    kind: Kind, vectors: Sequence[Vector], values: Sequence[Digits], coefficients: CoefficientsOf
) -> Digits:
    """Compute the tags of a client's values, or of a sum."""
    tags = describe(kind, vectors)
    total = np.zeros(tags.length, dtype=np.uint64)
    for vector, x in zip(vectors, values, strict=True):
        if kind == "marks":
            total += _tag_marks(x, vector.modulus, coefficients(vector.name))
        else:
            total += _tag_integers(kind, vector, x, coefficients(vector.name))
    total &= np.uint64(tags.modulus - 1)
    return total.astype(word_type(tags.modulus), copy=False)


# Integers -------------------------------------------------------------------------------------------------------


def _tag_integers(kind: Kind, vector: Vector, x: Digits, coefficients: Coefficients) -> Rows:
    words = _INTEGER_WORDS if kind == "integers" else _WIDE_WORDS
    total = np.zeros(describe_for(kind, 0).length, dtype=np.uint64)
    # numpy finds true values several times as fast as non-zero ones.
    present = np.flatnonzero(x != 0)
    if present.size * _MOST_SPARSE > x.size:
        for start in range(0, x.size, _BLOCK):
            part = x[start : start + _BLOCK]
            total += _weigh(kind, vector, part, coefficients.run(start, part.size, words))
    else:
        for start in range(0, present.size, _BLOCK):
            indices = present[start : start + _BLOCK]
            total += _weigh(kind, vector, x[indices], coefficients.at(indices, words))
    return total


def _weigh(kind: Kind, vector: Vector, x: Digits, rows: Rows) -> Rows:
    """Compute Σ r·x over some elements, for each lane."""
    if kind == "integers":
        factors = rows[:, :LANES]
    else:
        bits = np.unpackbits(rows.view(np.uint8), axis=1, count=WIDE_LANES, bitorder="little")
        factors = bits.astype(np.uint64)
    weighed: Rows = read_integers(vector, x) @ factors
    return weighed


def read_integers(vector: Vector, x: Digits) -> NDArray[np.uint64]:
    """Read residues as integers, mod 2^64; in the upper half of a signed vector's ring they are negative."""
    integers = x.astype(np.uint64)
    if vector.signed and vector.modulus < WORD_MODULUS:
        integers -= (integers > (vector.modulus - 1) // 2) * np.uint64(vector.modulus)
    return integers


# Marks ----------------------------------------------------------------------------------------------------------


def _tag_marks(x: Digits, modulus: int, coefficients: Coefficients) -> Rows:
    present = np.flatnonzero(x != 0)
    bins = np.zeros((MARK_LANES // BYTE_BITS, 2**BYTE_BITS), dtype=np.uint64)
    parity = np.zeros(_MARK_WORDS, dtype=np.uint64)
    for start in range(0, present.size, _BLOCK):
        indices = present[start : start + _BLOCK]
        rows = coefficients.at(indices, _MARK_WORDS)
        if modulus == 2:  # noqa: PLR2004 - the ring of bits, in which addition is XOR.
            parity ^= _xor_rows(rows)
        else:
            bins += _sort_into_bins(rows, x[indices])
    if modulus == 2:  # noqa: PLR2004 - as above.
        return np.unpackbits(parity.view(np.uint8), bitorder="little").astype(np.uint64)
    return (bins @ _BITS_OF_BYTES).ravel()


def _xor_rows(rows: Rows) -> Rows:
    """XOR all rows; numpy is several times as fast over long rows, so rows are put side by side first."""
    wide = rows.size // MARK_LANES * MARK_LANES
    words = rows.reshape(-1)
    long_row = np.bitwise_xor.reduce(words[:wide].reshape(-1, MARK_LANES), axis=0)
    rest = np.concatenate([long_row, words[wide:]]).reshape(-1, _MARK_WORDS)
    parity: Rows = np.bitwise_xor.reduce(rest, axis=0)
    return parity


def _sort_into_bins(rows: Rows, x: Digits) -> NDArray[np.uint64]:
    """Sum the elements by the value of each byte of their rows.

    A double holds the sum of a block of 32-bit numbers exactly.
    """
    weights = x.astype(np.float64)
    columns = rows.view(np.uint8).T
    return np.array([np.bincount(each, weights, 2**BYTE_BITS) for each in columns]).astype(np.uint64)


_BITS_OF_BYTES = np.unpackbits(
    np.arange(2**BYTE_BITS, dtype=np.uint8)[:, np.newaxis], axis=1, bitorder="little"
).astype(np.uint64)
"""The bits of every byte value, the lowest first."""
