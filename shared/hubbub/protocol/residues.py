"""Residues mod m, for any m from 2 to 2^32: what they are and how many bits they take.

A residue is a `uint32` from 0 to m - 1.
"""

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from hubbub.errors import ConfigurationError, LocalError

Residues: TypeAlias = NDArray[np.uint32]
"""A vector over Z_m; the modulus travels beside it."""

MIN_MODULUS = 2
MAX_MODULUS = 2**32

BLOCK = 2**16
"""Elements worked on at once: few enough to stay in cache, enough to hide the cost of a numpy call."""


def check_modulus(m: int) -> None:
    """Refuse a modulus that residues in 32 bits cannot serve."""
    if not MIN_MODULUS <= m <= MAX_MODULUS:
        raise ConfigurationError(f"the modulus is {m}; choose one from {MIN_MODULUS} to {MAX_MODULUS}")


def check_residues(x: Residues, m: int) -> None:
    """Refuse a vector that is not over Z_m: shares of it would add up to something else."""
    check_modulus(m)
    if x.ndim != 1 or x.dtype != np.uint32:
        raise LocalError(f"a vector over Z_{m} is one-dimensional and uint32, not {x.ndim}-dimensional {x.dtype}")
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
