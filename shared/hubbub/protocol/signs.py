"""Encodings of signs as residues mod 2C + 1 (Beguier et al., section 3.2.3).

The paper's T maps [-C, C] to [0, 2C], negative values to the upper half. The sum of C signs lies in [-C, C] again,
so T⁻¹ of the sum mod 2C + 1 is the sum. C is the cohort's size, also when fewer clients take part.

Dense words (`dense`) need sums that do not wrap. There a sign is sent as x + 1, which is 0, 1 or 2: those of M
members add up to at most 2M, and the sum of the signs is that minus M.
"""

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from hubbub.errors import LocalError
from hubbub.protocol.dense import Digits, check_digits
from hubbub.protocol.packing import check_modulus
from hubbub.protocol.ring import word_type

Signs: TypeAlias = NDArray[np.int8] | NDArray[np.int16] | NDArray[np.int32]


def modulus(clients: int) -> int:
    """Return 2C + 1, for which the sum of C signs does not overflow."""
    m = 2 * clients + 1
    check_modulus(m)
    return m


def to_ring(signs: Signs, clients: int) -> Digits:
    """Compute T(x) = x, or x + (2C + 1) if x is negative (Eq. 11)."""
    m = modulus(clients)
    if signs.size and max(int(signs.max()), -int(signs.min())) > clients:
        raise LocalError(f"a sign is outside [-{clients}, {clients}], the values that T is defined for")
    # A negative value wraps to 2^b + x; adding m wraps it back, to m + x.
    residues = signs.astype(word_type(m))
    residues += (signs < 0) * residues.dtype.type(m)
    return residues


def from_ring(residues: Digits, clients: int) -> NDArray[np.signedinteger]:
    """Compute T⁻¹(x) = x, or x - (2C + 1) if x is above C (Eq. 12); as wide as the residues."""
    m = modulus(clients)
    check_digits(residues, m)
    kind = residues.dtype.type
    signs = (residues > kind(clients)) * kind(m)
    # A negative value wraps, as in the signed type of the same width.
    np.subtract(residues, signs, out=signs)
    return signs.view(f"i{signs.itemsize}")


def to_digits(signs: Signs, clients: int) -> Digits:
    """Compute x + 1, for a sum that does not wrap."""
    if signs.size and max(int(signs.max()), -int(signs.min())) > 1:
        raise LocalError("a sign is -1, 0 or 1")
    digits = signs.astype(word_type(modulus(clients)))
    digits += digits.dtype.type(1)
    return digits


def from_digits(total: Digits, members: int) -> NDArray[np.signedinteger]:
    """Return the sum of the members' signs; meaningless if their digits cannot add up to `total`."""
    signs = total - total.dtype.type(members)
    # A negative value wraps, as in the signed type of the same width.
    return signs.view(f"i{signs.itemsize}")
