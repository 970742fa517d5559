"""TopBinary: an update as k signs and one factor, with error accumulation (Beguier et al., section 3.1).

    D = sgn(Top-k(X))    α = ‖X‖₂ / ‖D‖₂    δ' = X - Q⁻¹(Q(α))·D    where X = U + δ

The paper has ‖D‖₂ = √k; here it is √(non-zeros of D), which differs only where X has fewer than k non-zeros,
and then still preserves the norm. Ties go to the lower index. δ' subtracts what was really sent, so that later
rounds make up for the rounding and clipping of α.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cache

import numpy as np
from numpy.typing import NDArray

from hubbub.errors import BadUpdate, ConfigurationError
from hubbub.ids import AlphaRule
from hubbub.protocol.packing import BLOCK

Floats = NDArray[np.float32]
AnyFloats = NDArray[np.float32] | NDArray[np.float64]
Indices = NDArray[np.int64]
"""Coordinates of θ, ascending."""


@dataclass(frozen=True, slots=True, eq=False)
class TopBinary:
    """α and D of one client; as secret as its update."""

    alpha: float
    signs: NDArray[np.int8]

    def __repr__(self) -> str:
        return f"TopBinary(<secret>, n={self.signs.size})"


@cache
def count_kept(n: int, rho: float) -> int:
    """Compute k = ⌊ρ·N⌋ for ρ as it was written down.

    The double next to 0.29 is a little less than 0.29; of 100 parameters, 29 are still kept.
    """
    if not 0 < rho <= 1:
        raise ConfigurationError(f"rho is {rho}; it must be above 0 and at most 1")
    k = math.floor(Fraction(repr(float(rho))) * n)
    if k < 1:
        raise ConfigurationError(f"rho = {rho} of {n} parameters keeps none of them; choose a larger rho")
    return k


def top_k(x: AnyFloats, k: int) -> Indices:
    """Find the k elements of largest magnitude, in O(N); indices ascend."""
    if not 1 <= k <= x.size:
        raise ConfigurationError(f"cannot keep {k} of {x.size} elements")
    check_finite(x)
    magnitudes = np.abs(x)
    threshold = np.partition(magnitudes, x.size - k)[x.size - k]
    kept = magnitudes > threshold
    tied = np.flatnonzero(magnitudes == threshold)
    kept[tied[: k - np.count_nonzero(kept)]] = True
    return np.flatnonzero(kept).astype(np.int64, copy=False)


def top_binary(x: NDArray[np.float32], k: int, *, rule: AlphaRule = "norm") -> TopBinary:
    """Compute TopBinary(X; k) = α·D (Eq. 6); an all-zero X gives α = 0 and D = 0."""
    indices = top_k(x, k)
    signs = np.zeros(x.size, dtype=np.int8)
    signs[indices] = np.sign(x[indices])
    return TopBinary(alpha=scaling_factor(x, np.flatnonzero(signs), rule=rule), signs=signs)


def scaling_factor(x: Floats, chosen: Indices, *, rule: AlphaRule = "norm") -> float:
    """Compute α for these chosen entries; 0 if there are none.

    `norm` is the paper's: ‖X‖₂ over the root of their number, which preserves the norm of X. `mean` is their mean
    magnitude, as in Sparse Binary Compression. It is smaller: entries that were not chosen add nothing to it.
    """
    if not chosen.size:
        return 0.0
    if rule == "mean":
        return float(np.abs(x[chosen]).sum(dtype=np.float64)) / chosen.size
    return math.sqrt(squared_norm(x) / chosen.size)


def accumulate_error(x: NDArray[np.float32], sent_alpha: float, signs: NDArray[np.int8]) -> NDArray[np.float32]:
    """Compute δ' = X - Q⁻¹(Q(α))·D (Alg. 2), where `sent_alpha` is Q⁻¹(Q(α)) and X = U + δ."""
    error = signs.astype(np.float32)
    error *= np.float32(sent_alpha)
    np.subtract(x, error, out=error)
    return error


def check_finite(x: AnyFloats) -> None:
    """Raise `BadUpdate` if an entry is NaN or infinite."""
    for start in range(0, x.size, BLOCK):
        if not np.isfinite(x[start : start + BLOCK]).all():
            raise BadUpdate("the update holds NaN or infinity; look at the learning rate and the data")


def squared_norm(x: AnyFloats) -> float:
    """Compute ‖X‖₂² in double precision, as a fixed sequence of additions.

    BLAS (np.dot, np.linalg.norm) adds in an order that depends on its threads, and so do the last bits of its
    result. Its threads also take milliseconds to begin on a busy machine.
    """
    sums = []
    for start in range(0, x.size, BLOCK):
        squares = x[start : start + BLOCK].astype(np.float64)
        squares *= squares
        sums.append(float(squares.sum()))
    return math.fsum(sums)
