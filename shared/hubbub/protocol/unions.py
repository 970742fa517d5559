"""The union V of the clients' indices, by sums alone (Beguier et al., section 3.2.2).

A client marks the indices that it chose in a vector of N elements; the marks are added over all members, and an
index is in V where the sum is not zero. The three protocols differ in the marks, and so in what the sum reveals:

    PartialSecUnion   1 in Z_{C+1}                    how many clients chose an index
    SecUnion          random non-zero in Z_{2^q}      whether a client was alone; loses an index where marks cancel
    PlaintextUnion    1 in Z_2, OR-ed by one server   nothing to clients; a server sees every client's indices

SecUnion can also choose blocks of neighbouring indices instead of single ones, which is not in the paper. The
union is most of the cost of sparse signs: N marks to agree on a few thousand indices. Cut [1, N] into ⌈N/b⌉ blocks
of b neighbours (the last may be shorter), and let a client choose the ⌊k/b⌋ blocks of largest norm. The union is
over blocks, b times shorter, and V is every index of every active block. Every client sends a sign for every index
of V, whoever chose it: +1 or -1 and no zeros.

    D_i = sgn(X_i) on V, a zero as +1    α_i = ‖X_i restricted to V‖₂ / √|V|    δ_i' = X_i - Q⁻¹(Q(α_i))·D_i on V

A sum of M signs without zeros follows from the number p of pluses, D = 2p - M, and p lies in [0, C]: signs are
added mod C + 1, not mod 2C + 1. α is taken over V: the paper's ‖X‖₂/√k attributes all of X to k indices, and
overshoots where every client sends all signs.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hubbub.errors import ConfigurationError
from hubbub.ids import AlphaRule
from hubbub.protocol import compression
from hubbub.protocol.compression import Floats, Indices
from hubbub.protocol.dense import Digits
from hubbub.protocol.packing import BLOCK, check_modulus
from hubbub.protocol.ring import RandomStream, sample, word_type

MAX_Q = 32


def check_q(q: int) -> None:
    """Raise `ConfigurationError` for a q that is not from 1 to 32."""
    if not 1 <= q <= MAX_Q:
        raise ConfigurationError(f"q is {q}; marks of SecUnion have from 1 to {MAX_Q} bits")


def mark(signs: NDArray[np.int8]) -> Digits:
    """Return B_i: 1 at every index that the client chose."""
    # A truth value is a byte of 0 or 1.
    marks: Digits = (signs != 0).view(np.uint8)
    return marks


def mark_at_random(signs: NDArray[np.int8], q: int, stream: RandomStream) -> Digits:
    """Draw A_i: a uniform non-zero element of Z_{2^q} at every index that the client chose.

    With q = 1 there is only one non-zero element, so nothing is random and every even number of marks cancels.
    """
    check_q(q)
    marks = mark(signs)
    if q == 1:
        return marks
    chosen = indices_of(marks)
    at_random = np.zeros(signs.size, dtype=word_type(2**q))
    at_random[chosen] = sample(stream, chosen.size, 2**q - 1) + np.uint32(1)
    return at_random


def indices_of(total: Digits) -> Indices:
    """Return V: the indices whose marks do not add up to zero, ascending."""
    # numpy finds true values several times as fast as non-zero ones.
    return np.flatnonzero(total != 0).astype(np.int64, copy=False)


# Checks that sums are possible. They read sums and public numbers, never a client's own input ------------------


def is_union_possible(union_size: int, members: int, kept: int) -> bool:
    """Say whether the members' choices together can be this many."""
    return union_size <= members * kept


def are_directions_possible(counts: Digits, directions: NDArray[np.signedinteger]) -> bool:
    """Say whether B signs can add up to D: |D| ≤ B, and of the same parity."""
    magnitudes = np.abs(directions)
    return not ((magnitudes > counts).any() | ((magnitudes ^ counts.astype(np.int32)) & 1).any())


def are_counts_possible(counts: Digits, members: int) -> bool:
    """Say whether no index has more choosers than there are members (PartialSecUnion)."""
    return int(counts.max(initial=0)) <= members


# Blocks ---------------------------------------------------------------------------------------------------------

MAX_BLOCK = 1024
"""The union then takes a thousandth of N marks: larger blocks save nothing, and only make V coarser."""

Signs = NDArray[np.int8]


def check_block(block: int, kept: int) -> None:
    """Raise `ConfigurationError` for a block size that is invalid or larger than what a client may choose."""
    if not 1 <= block <= MAX_BLOCK:
        raise ConfigurationError(f"block is {block}; blocks of sec-union have from 1 to {MAX_BLOCK} indices")
    if kept < block:
        raise ConfigurationError(
            f"a client keeps {kept} indices, less than one block of {block}: take a larger rho or a smaller block"
        )


def count_blocks(n: int, block: int) -> int:
    """Return ⌈N/b⌉, the number of blocks."""
    return -(-n // block)


def squared_norms(x: Floats, block: int) -> NDArray[np.float64]:
    """Compute ‖X‖₂² of every block, in double precision; the last block may be shorter."""
    stretch = max(BLOCK // block, 1) * block
    sums = []
    for start in range(0, x.size, stretch):
        squares = x[start : start + stretch].astype(np.float64)
        squares *= squares
        sums.append(np.add.reduceat(squares, np.arange(0, squares.size, block)))
    return np.concatenate(sums)


def choose_blocks(x: Floats, block: int, count: int) -> Signs:
    """Return 1 at the blocks of largest norm; ties go to the lower one, and a block of zeros is never chosen."""
    compression.check_finite(x)
    norms = squared_norms(x, block)
    largest = compression.top_k(norms, count)
    chosen = np.zeros(norms.size, dtype=np.int8)
    chosen[largest[norms[largest] > 0]] = 1
    return chosen


def indices_in(active: Indices, block: int, n: int) -> Indices:
    """Return V: the indices of these blocks, ascending if the blocks are."""
    indices = (active[:, np.newaxis] * block + np.arange(block, dtype=np.int64)).ravel()
    within: Indices = indices[indices < n]
    return within


def speak(x: Floats, support: Indices) -> Signs:
    """Return D_i on V: +1 or -1 at every index, whoever chose it. A zero becomes a plus."""
    return np.where(x[support] < 0, np.int8(-1), np.int8(1))


def speak_at_random(n: int, stream: RandomStream) -> Signs:
    """Draw D_i on V for a client that contributes nothing: n signs, each a plus with a chance of one half."""
    return sample(stream, n, 2).astype(np.int8) * np.int8(2) - np.int8(1)


def scale(x: Floats, support: Indices, *, rule: AlphaRule = "norm") -> float:
    """Compute α_i over V: the root mean square of X there, or with `mean` the mean magnitude; 0 if V is empty."""
    return compression.scaling_factor(x[support], np.arange(support.size, dtype=np.int64), rule=rule)


def modulus(clients: int) -> int:
    """Return C + 1, for 0 to C pluses. C is the cohort's size, also when fewer take part."""
    m = clients + 1
    check_modulus(m)
    return m


def to_ring(spoken: Signs) -> Digits:
    """Return 1 for a plus, 0 for a minus."""
    # A truth value is a byte of 0 or 1.
    pluses: Digits = (spoken > 0).view(np.uint8)
    return pluses


def from_ring(pluses: Digits, members: int) -> NDArray[np.int32]:
    """Compute D = 2p - M, for the M members whose signs are in the sum."""
    directions = pluses.astype(np.int32)
    directions *= 2
    directions -= members
    return directions
