"""What clients do with the sums: check that they are possible, then step (Beguier et al., Alg. 2, last line).

θ' = θ + U with U = (α/M)·(D/M), where M is the number of members whose shares are in the sums; in the paper
M = C. The mean factor α/M is clamped before (`hubbub.protocol.influence`). All clients must hold the same θ
to the bit, so U is one fixed sequence of elementwise float32 operations: IEEE 754 fixes each of them, and numpy
fuses none.
"""

import math

import numpy as np
from numpy.typing import NDArray

from hubbub.errors import LocalError
from hubbub.protocol.fixed_point import FixedPoint


def apply_sum(
    theta: NDArray[np.float32], signs_sum: NDArray[np.signedinteger], mean_factor: float, members: int
) -> NDArray[np.float32]:
    """Step to the next model; `theta` is left as it is. Slices of a model may be stepped one by one."""
    if members < 1:
        raise LocalError(f"a sum has at least one member, not {members}")
    if theta.dtype != np.float32 or theta.shape != signs_sum.shape:
        raise LocalError(
            f"a {theta.dtype} model of shape {theta.shape} cannot take signs of shape {signs_sum.shape}"
        )
    if not math.isfinite(mean_factor):
        raise LocalError("the mean of the scaling factors is not a finite number")
    updated = signs_sum.astype(np.float32)
    updated /= np.float32(members)
    updated *= np.float32(mean_factor)
    updated += theta
    return updated


def apply_sum_on(
    support: NDArray[np.int64],
    theta: NDArray[np.float32],
    signs_sum: NDArray[np.signedinteger],
    mean_factor: float,
    members: int,
) -> NDArray[np.float32]:
    """Step to a model that differs from `theta` at these indices alone."""
    updated = theta.copy()
    updated[support] = apply_sum(theta[support], signs_sum, mean_factor, members)
    return updated


def are_sums_possible(
    signs_sum: NDArray[np.signedinteger], factors_sum: int, members: int, fixed_point: FixedPoint
) -> bool:
    """Tell whether any inputs of `members` clients have these sums.

    Sums and public parameters are read, and nothing of a client's own input.
    """
    largest_sign = max(int(signs_sum.max(initial=0)), -int(signs_sum.min(initial=0)))
    largest_factor = members * fixed_point.to_ring(fixed_point.alpha_max)
    return (largest_sign <= members) & (0 <= factors_sum <= largest_factor)
