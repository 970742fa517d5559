"""Chi-square tests with a bound that is proved, not looked up.

Laurent and Massart (2000): a chi-square variable with d degrees of freedom exceeds d + 2·√(d·t) + 2·t with
probability at most e^-t. Streams in tests have fixed keys, so that a test passes always or never; the bound
says how unlikely it is that the key chosen fails by chance.
"""

import math

import numpy as np
from numpy.typing import NDArray

CHANCE = 1e-12
"""Of failing though all is well; a thousand such tests stay under 10^-9 together."""


def bound(cells: int) -> float:
    degrees, t = cells - 1, -math.log(CHANCE)
    return degrees + 2 * math.sqrt(degrees * t) + 2 * t


def against_uniform(counts: NDArray[np.int64]) -> float:
    expected = counts.sum() / counts.size
    return float(((counts - expected) ** 2).sum() / expected)


def against_each_other(first: NDArray[np.int64], second: NDArray[np.int64]) -> float:
    """Two samples of the same size: do they come from one distribution?"""
    assert first.sum() == second.sum()
    either = first + second
    seen = either > 0
    return float(((first - second)[seen] ** 2 / either[seen]).sum())


def joint_counts(vectors: list[NDArray[np.uint32]], m: int) -> NDArray[np.int64]:
    """How often each combination of residues occurs; of 2^32, one table of 256 for each byte."""
    if m == 2**32:
        octets = [vector.astype("<u4").view(np.uint8).reshape(-1, 4)[:, k] for vector in vectors for k in range(4)]
        return np.concatenate([np.bincount(octet, minlength=256) for octet in octets])
    combined = np.zeros(vectors[0].size, dtype=np.int64)
    for vector in vectors:
        combined = combined * m + vector
    return np.bincount(combined, minlength=m ** len(vectors))
