"""Shared masks: all clients train the same few coordinates, and send how far each moved in a few bits.

This is not in the paper. In each round V is drawn without a look at anybody's data, so that it says nothing about
them, and no union is needed. A client trains only V and sends, for each coordinate of V, one of 2^b levels:

    α = c_b · mean |X|    D = one of -α, -α + 2α/t, …, α, where t = 2^b - 1

X is its change on V. Changes beyond ±α are cut off. With two bits or more, a change between two levels goes to
either of them at random, the nearer one more often, so that D is X on average; with one bit D is the sign of X.
Levels are sent as 0 … t and added mod C·t + 1. A change of zero goes to one of the two middle levels.

V has more of small tensors: their share is proportional to the root of their size, and a tensor whose share is
larger than itself is in V as a whole. All clients have to draw the same V, so only integers are used.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hubbub.errors import ConfigurationError, LocalError
from hubbub.protocol.compression import Floats, Indices, scaling_factor
from hubbub.protocol.dense import Digits
from hubbub.protocol.packing import check_modulus
from hubbub.protocol.ring import RandomStream, word_type

DEFAULT_BITS = 2
SPREAD = {1: 1.0, 2: 2.2, 3: 3.0, 4: 4.0}
"""c_b by the number of bits: the range of the levels, in mean magnitudes. Found by simulation."""

_RATE_FACTOR = 2.0
_ROOT_BITS = 32
_INDEX_BITS = 32
_WORD = np.dtype("<u4")


def check_bits(bits: int) -> None:
    """Raise `ConfigurationError` for a number of bits that is not from 1 to 4."""
    if bits not in SPREAD:
        raise ConfigurationError(f"bits is {bits}; levels of shared-mask have from 1 to {max(SPREAD)} bits")


def top_level(bits: int) -> int:
    """Return t = 2^b - 1, the highest level."""
    return int(2**bits) - 1


def modulus(clients: int, bits: int) -> int:
    """Return C·t + 1, for sums of levels of the whole cohort."""
    m = clients * top_level(bits) + 1
    check_modulus(m)
    return m


# The mask -----------------------------------------------------------------------------------------------


def share_out(sizes: Sequence[int], n: int) -> list[int]:
    """Divide n coordinates among tensors of these sizes by the roots of the sizes; none gets more than it has."""
    if not 0 <= n <= sum(sizes):
        raise LocalError(f"{n} coordinates cannot be chosen of {sum(sizes)}")
    roots = [math.isqrt(size << 2 * _ROOT_BITS) for size in sizes]
    shares, left, open_ones = [0] * len(sizes), n, [place for place, size in enumerate(sizes) if size]
    # Tensors that get less than their share are whole; what is left of it goes to the others.
    while whole := [
        place for place in open_ones if left * roots[place] >= sizes[place] * _total(roots, open_ones)
    ]:
        for place in whole:
            shares[place] = sizes[place]
        left -= sum(sizes[place] for place in whole)
        open_ones = [place for place in open_ones if place not in whole]
    total = _total(roots, open_ones)
    for place in open_ones:
        shares[place] = left * roots[place] // total
    # Division leaves fewer over than there are tensors; one each goes to those with the largest remainders.
    over = left - sum(shares[place] for place in open_ones)
    for place in sorted(open_ones, key=lambda each: (-(left * roots[each] % total), each))[:over]:
        shares[place] += 1
    return shares


def _total(roots: Sequence[int], places: Sequence[int]) -> int:
    return sum(roots[place] for place in places)


def draw_mask(sizes: Sequence[int], n: int, stream: RandomStream) -> Indices:
    """Draw V: n coordinates, ascending, of a model that is made of tensors of these sizes."""
    chosen, start = [], 0
    for size, share in zip(sizes, share_out(sizes, n), strict=True):
        chosen.append(_draw_some(size, share, stream) + start)
        start += size
    return np.concatenate(chosen) if chosen else np.empty(0, dtype=np.int64)


def _draw_some(size: int, count: int, stream: RandomStream) -> Indices:
    """Draw `count` of `size` coordinates: those with the smallest random words, of equal ones the lower."""
    if count in (0, size):
        return np.arange(count, dtype=np.int64)
    words = np.empty(size, dtype=_WORD)
    stream.fill(words.view(np.uint8))
    keys = words.astype(np.uint64) << np.uint64(_INDEX_BITS)
    keys |= np.arange(size, dtype=np.uint64)
    smallest = np.partition(keys, count - 1)[:count] & np.uint64(2**_INDEX_BITS - 1)
    return np.sort(smallest.astype(np.int64))


def recommend_rate(own: float, rho: float) -> float:
    """Recommend a learning rate for a task whose own is for training all coordinates: the more, the fewer move.

    The rule fits what was measured on LeNet and AlexNet (docs/findings.md). Two digits, so that it can be read.
    """
    return float(f"{_RATE_FACTOR * own / math.sqrt(rho):.2g}")


# Levels -------------------------------------------------------------------------------------------------


def scale(x: Floats, bits: int) -> float:
    """Compute α = c_b · mean |X|; 0 if X is empty."""
    return SPREAD[bits] * scaling_factor(x, np.arange(x.size, dtype=np.int64), rule="mean")


def quantise(x: Floats, alpha: float, bits: int, stream: RandomStream) -> Digits:
    """Choose a level, 0 to t, for each change; with α = 0 one of the two middle levels."""
    top = top_level(bits)
    if bits == 1:
        steps = np.sign(x).astype(np.float64)
    else:
        steps = np.clip(x.astype(np.float64) / alpha, -1, 1) if alpha else np.zeros(x.size)
    steps += 1
    steps *= top / 2
    words = np.empty(x.size, dtype=_WORD)
    stream.fill(words.view(np.uint8))
    # What is added is below 1, so that a whole number of steps stays what it is.
    steps += words / 2.0**32
    levels: Digits = np.floor(steps).astype(word_type(top + 1))
    return levels


def to_directions(total: Digits, members: int, bits: int) -> NDArray[np.int32]:
    """Compute ΣD in units of α/t from the sum of M members' levels: 2·Σ - M·t."""
    directions = total.astype(np.int32)
    directions *= 2
    directions -= members * top_level(bits)
    return directions
