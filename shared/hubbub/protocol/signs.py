"""Signs as residues mod 2C + 1: T and its inverse (Beguier et al., section 3.2.3).

T takes [-C, C] to [0, 2C], negative values to the upper half. The sum of C signs lies in [-C, C] again, so
that T⁻¹ of the sum mod 2C + 1 is the sum. C is the cohort's size, also when fewer clients take part.
"""

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from hubbub.errors import LocalError
from hubbub.protocol.residues import Residues, check_modulus, check_residues

Signs: TypeAlias = NDArray[np.int8] | NDArray[np.int16] | NDArray[np.int32]


def modulus(clients: int) -> int:
    """2C + 1, for which the sum of C signs does not overflow."""
    m = 2 * clients + 1
    check_modulus(m)
    return m


def to_ring(signs: Signs, clients: int) -> Residues:
    """T(x) = x, or x + (2C + 1) if x is negative (Eq. 11)."""
    m = modulus(clients)
    if signs.size and max(int(signs.max()), -int(signs.min())) > clients:
        raise LocalError(f"a sign is outside [-{clients}, {clients}], the values that T is defined for")
    # A negative value wraps to 2^32 + x; adding m wraps it back, to m + x.
    residues = signs.astype(np.uint32)
    residues += (signs < 0) * np.uint32(m)
    return residues


def from_ring(residues: Residues, clients: int) -> NDArray[np.int32]:
    """T⁻¹(x) = x, or x - (2C + 1) if x is above C (Eq. 12)."""
    m = modulus(clients)
    check_residues(residues, m)
    signs = (residues > np.uint32(clients)) * np.uint32(m)
    np.subtract(residues, signs, out=signs)
    return signs.view(np.int32)
