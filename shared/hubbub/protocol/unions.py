"""The union of the clients' indices, by sums alone (Beguier et al., section 3.2.2).

A client marks the indices that it chose in a vector of N elements; the marks are added over all members, and an
index is in V where the sum is not zero. The three protocols differ in the marks, and so in what the sum tells:

    PartialSecUnion   1 in Z_{C+1}                    how many clients chose an index
    SecUnion          random non-zero in Z_{2^q}      whether a client was alone; loses an index where marks cancel
    PlaintextUnion    1 in Z_2, OR-ed by one server   nothing to clients; a server sees every client's indices
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hubbub.errors import ConfigurationError
from hubbub.protocol.dense import Digits
from hubbub.protocol.ring import RandomStream, sample, word_type

MAX_Q = 32


def check_q(q: int) -> None:
    """Refuse a q that has no ring, or one above 2^32."""
    if not 1 <= q <= MAX_Q:
        raise ConfigurationError(f"q is {q}; marks of SecUnion have from 1 to {MAX_Q} bits")


def mark(signs: NDArray[np.int8]) -> Digits:
    """B_i: 1 at every index that the client chose."""
    # A truth value is a byte of 0 or 1.
    marks: Digits = (signs != 0).view(np.uint8)
    return marks


def mark_at_random(signs: NDArray[np.int8], q: int, stream: RandomStream) -> Digits:
    """A_i: a uniform non-zero element of Z_{2^q} at every index that the client chose.

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


def indices_of(total: Digits) -> NDArray[np.int64]:
    """V: the indices whose marks do not add up to zero, ascending."""
    # numpy looks for what is true several times as fast as for what is not zero.
    return np.flatnonzero(total != 0).astype(np.int64, copy=False)


# What members can add up to. Sums and public numbers are read, never a client's own input --------------------


def is_union_possible(union_size: int, members: int, kept: int) -> bool:
    """Tell whether the members' choices together can be as many."""
    return union_size <= members * kept


def are_directions_possible(counts: Digits, directions: NDArray[np.signedinteger]) -> bool:
    """Tell whether as many signs can add up to this: |D| ≤ B, and of the same parity."""
    magnitudes = np.abs(directions)
    return not ((magnitudes > counts).any() | ((magnitudes ^ counts.astype(np.int32)) & 1).any())


def are_counts_possible(counts: Digits, members: int) -> bool:
    """Tell whether no index has more choosers than there are members (PartialSecUnion)."""
    return int(counts.max(initial=0)) <= members
