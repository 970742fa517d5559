"""Vectors over Z_m: uniform sampling, addition, packing to bits and back (Beguier et al., section 2.3).

All functions are local: splitting a vector into slices, treating each and joining the results gives what
treating the whole gives, so a caller may work chunk by chunk. They run over blocks that stay in the
processor's cache, so that no temporary is ever as long as the input.

Residues and their packing are defined in `packing`, and can be imported from here.
"""

from collections.abc import Iterator
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hubbub.errors import ConfigurationError, LocalError
from hubbub.protocol.packing import (
    BLOCK,
    MAX_MODULUS,
    UNSIGNED,
    Residues,
    check_modulus,
    check_residues,
    container_bits,
    element_bits,
    pack,
    packed_bytes,
    residue_type,
    unpack,
)

__all__ = [
    "BLOCK",
    "MAX_MODULUS",
    "RandomStream",
    "Residues",
    "add_into",
    "check_modulus",
    "check_residues",
    "element_bits",
    "pack",
    "packed_bytes",
    "residue_type",
    "sample",
    "subtract_into",
    "unpack",
]


class RandomStream(Protocol):
    """Stream of secret random bytes that never gives the same ones twice."""

    def fill(self, out: NDArray[np.uint8]) -> None:
        """Overwrite all of `out` with the next bytes of the stream."""


def sample(stream: RandomStream, n: int, m: int) -> Residues:
    """Draw x ∈_R Z_m^n, without modulo bias.

    Candidates are the stream's little-endian words of 8, 16, 32 or 64 bits, the smallest that hold m values.
    Words from the largest multiple of m on are rejected, the others reduced, and the result is the first n of
    these. Exactly the bytes up to the last accepted word are taken, so drawing n and then n' elements is the
    same as drawing n + n'. Time depends on the random bytes alone, never on anything that is shared.
    """
    check_modulus(m)
    if n < 0:
        raise ConfigurationError(f"a vector cannot have {n} elements")
    x = np.empty(n, dtype=residue_type(m))
    if _fills(x, m):
        stream.fill(x.view(np.uint8))
        return x
    candidates = np.empty(min(n, BLOCK), dtype=word_type(m))
    filled = 0
    while filled < n:
        drawn = candidates[: min(BLOCK, n - filled)]
        stream.fill(drawn.view(np.uint8))
        accepted = accept(drawn, m)
        x[filled : filled + accepted.size] = accepted
        filled += accepted.size
    return x


def word_type(m: int) -> np.dtype[np.unsignedinteger]:
    """Return the narrowest type that holds residues mod m; its bytes mean the same on every machine."""
    return UNSIGNED[container_bits(element_bits(m))]


def accept(words: NDArray[np.unsignedinteger], m: int) -> NDArray[np.unsignedinteger]:
    """Reject the words from the largest multiple of m on, reduce the others mod m; may overwrite `words`."""
    values = 2 ** (8 * words.dtype.itemsize)
    limit = values - values % m
    # Where rejection is rare, the maximum shows in one pass that there is nothing to reject.
    if limit < values and int(words.max()) >= limit:
        words = words[words < words.dtype.type(limit)]
    reduce_words(words, m)
    return words


def reduce_words(words: NDArray[np.unsignedinteger], m: int) -> None:
    """Reduce mod m, in place."""
    kind = words.dtype.type
    if _fills(words, m):
        return
    if m & (m - 1) == 0:
        words &= kind(m - 1)
        return
    # numpy divides by a constant in vector instructions, but has no such remainder: 20 times faster than `%`.
    quotients = words // kind(m)
    quotients *= kind(m)
    words -= quotients


def add_into(total: Residues, x: Residues, m: int) -> None:
    """Set total to total + x mod m, in place; both must hold residues."""
    for a, b, scratch in _blocks(total, x, m):
        if m > MAX_MODULUS // 2:
            _add_wide_block(a, b, m, scratch)
            continue
        np.add(a, b, out=a)
        # Where the sum is below m, subtracting m wraps to something larger, which the minimum ignores.
        np.subtract(a, a.dtype.type(m), out=scratch)
        np.minimum(a, scratch, out=a)


def subtract_into(total: Residues, x: Residues, m: int) -> None:
    """Set total to total - x mod m, in place; both must hold residues."""
    for a, b, scratch in _blocks(total, x, m):
        if m > MAX_MODULUS // 2:
            _subtract_wide_block(a, b, m)
            continue
        np.subtract(a, b, out=a)
        # A negative difference has wrapped to something above m; adding m wraps it back.
        np.add(a, a.dtype.type(m), out=scratch)
        np.minimum(a, scratch, out=a)


def _add_wide_block(a: Residues, b: Residues, m: int, scratch: Residues) -> None:
    """Add where a sum of two residues may not fit their type."""
    if _fills(a, m):
        a += b
    else:
        # a + b - m = a - (m - b), and the right-hand side does not overflow.
        np.subtract(a.dtype.type(m), b, out=scratch)
        _subtract_wide_block(a, scratch, m)


def _subtract_wide_block(a: Residues, b: Residues, m: int) -> None:
    if _fills(a, m):
        a -= b
    else:
        borrow = a < b
        a -= b
        a += borrow * a.dtype.type(m)


def _fills(x: Residues, m: int) -> bool:
    """Say whether every value of the vector's type is a residue: then its arithmetic is that of the ring."""
    return bool(m == 2 ** (8 * x.dtype.itemsize))


def _blocks(total: Residues, x: Residues, m: int) -> Iterator[tuple[Residues, Residues, Residues]]:
    """Pair the blocks of two vectors, each with scratch space of its length."""
    check_modulus(m)
    if total.shape != x.shape or total.ndim != 1:
        # numpy would stretch a vector of length 1.
        raise LocalError(f"vectors over Z_{m} of shapes {total.shape} and {x.shape} cannot be added")
    kind = residue_type(m)
    if total.dtype != kind or x.dtype != kind:
        raise LocalError(f"vectors over Z_{m} are {kind}, not {total.dtype} and {x.dtype}")
    scratch = np.empty(min(total.size, BLOCK), dtype=kind)
    for start in range(0, total.size, BLOCK):
        a = total[start : start + BLOCK]
        yield a, x[start : start + BLOCK], scratch[: a.size]
