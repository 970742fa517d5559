"""TernGrad: an update as a factor and random signs that are right on average (Wen et al., 2017).

    s = max |x|        T_i = sgn(x_i) with probability |x_i|/s, else 0        so that the mean of s·T is x

Nothing has to be kept for later rounds: the error is zero on average. A few large entries make s large and most
of T zero. Wen et al. therefore clip gradients at 2.5 standard deviations. Here an update is the change of many
steps, and clipping it did not help (docs/findings.md).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hubbub.protocol.compression import check_finite
from hubbub.protocol.packing import BLOCK
from hubbub.protocol.ring import RandomStream

_DRAWS = 2.0**32
"""Values of a random word, and so steps of a probability."""


@dataclass(frozen=True, slots=True, eq=False)
class Ternary:
    """s and T of one client; as secret as its update."""

    factor: float = field(repr=False)
    signs: NDArray[np.int8] = field(repr=False)


def ternarise(x: NDArray[np.float32], stream: RandomStream) -> Ternary:
    """Draw T."""
    check_finite(x)
    factor = float(np.abs(x).max(initial=0.0))
    signs = np.zeros(x.size, dtype=np.int8)
    if factor == 0:
        return Ternary(0.0, signs)
    for start in range(0, x.size, BLOCK):
        block = x[start : start + BLOCK]
        words = np.empty(block.size, dtype=np.uint32)
        stream.fill(words.view(np.uint8))
        chosen = words < np.abs(block, dtype=np.float64) * (_DRAWS / factor)
        signs[start : start + BLOCK] = np.sign(block) * chosen
    return Ternary(factor, signs)
