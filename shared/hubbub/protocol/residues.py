"""Residues mod m, for any m from 2 to 2^32 and for m = 2^64: what they are and how many bits they take.

A residue is an integer from 0 to m - 1, in a `uint32`; mod 2^64 it is a `uint64`, and arithmetic wraps by itself.
"""

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from hubbub.errors import ConfigurationError, LocalError

Residues: TypeAlias = NDArray[np.unsignedinteger]
"""A vector over Z_m; the modulus travels beside it."""

MIN_MODULUS = 2
MAX_MODULUS = 2**32
WORD_MODULUS = 2**64
"""The one ring above 2^32."""

BLOCK = 2**16
"""Elements worked on at once: few enough to stay in cache, enough to hide the cost of a numpy call."""


def check_modulus(m: int) -> None:
    """Refuse a modulus that residues in 32 bits cannot serve, other than 2^64."""
    if not is_modulus(m):
        raise ConfigurationError(
            f"the modulus is {m}; choose one from {MIN_MODULUS} to {MAX_MODULUS}, or {WORD_MODULUS}"
        )


def is_modulus(m: int) -> bool:
    """Tell whether there is a ring Z_m here."""
    return MIN_MODULUS <= m <= MAX_MODULUS or m == WORD_MODULUS


def residue_type(m: int) -> np.dtype[np.unsignedinteger]:
    """Return the type of residues mod m."""
    return np.dtype(np.uint64 if m == WORD_MODULUS else np.uint32)


def check_residues(x: Residues, m: int) -> None:
    """Refuse a vector that is not over Z_m: shares of it would add up to something else."""
    check_modulus(m)
    kind = residue_type(m)
    if x.ndim != 1 or x.dtype != kind:
        raise LocalError(f"a vector over Z_{m} is one-dimensional and {kind}, not {x.ndim}-dimensional {x.dtype}")
    if x.size and int(x.max()) >= m:
        raise LocalError(f"a value in a vector over Z_{m} is {m} or more; reduce it first")


def element_bits(m: int) -> int:
    """⌈log2 m⌉, the bits that one residue takes (Beguier et al., section 2.3.2)."""
    check_modulus(m)
    return (m - 1).bit_length()


def packed_bytes(n: int, m: int) -> int:
    """Count the bytes that n residues take when packed; the last byte may be padded."""
    if n < 0:
        raise ConfigurationError(f"a vector cannot have {n} elements")
    return (n * element_bits(m) + 7) // 8
