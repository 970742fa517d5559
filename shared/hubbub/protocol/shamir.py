"""Shamir's secret sharing over a prime field (Shamir, 1979), of vectors and of single numbers.

    dealer      f(x) = secret + c_1·x + … + c_(t-1)·x^(t-1) mod p, with random c;  f(j) for party j = 1, 2, …
    any t       secret = f(0) = Σ_j λ_j·f(j),  λ_j = Π_m m/(m - j) over the others of the t

Fewer than t shares are uniform and independent of the secret. Shares of one party add up to its share of the sum.
Every element is shared alone, so a vector may be treated chunk by chunk.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from hubbub.errors import ConfigurationError, LocalError
from hubbub.protocol.dense import Digits, check_digits
from hubbub.protocol.ring import RandomStream, Residues, residue_type, sample

Element = TypeVar("Element", int, NDArray[np.uint64])
"""A number mod p, or a vector of them; p is below 2^32 for vectors, so that products fit."""


LONG_PRIME = 2**256 - 189
"""The field of single numbers below 2^255, such as keys; a share has 256 bits."""
_LONG_BYTES = 32


def find_prime(at_least: int) -> int:
    """Return the smallest prime of at least this size; for small ones, by trial division."""
    return next(p for p in count(max(2, at_least)) if all(p % d for d in range(2, int(p**0.5) + 1)))


def check_threshold(threshold: int, parties: int, prime: int) -> None:
    """Raise `ConfigurationError` unless 1 <= t <= n < p."""
    if not 1 <= threshold <= parties < prime:
        raise ConfigurationError(f"a threshold of {threshold} among {parties} parties does not fit mod {prime}")


def evaluate(coefficients: Sequence[Element], x: int, prime: int) -> Element:
    """Return f(x), by Horner's rule; the first coefficient is the secret."""
    total = coefficients[-1]
    for each in reversed(coefficients[:-1]):
        total = (total * x + each) % prime
    return total


def interpolate(shares: Mapping[int, Element], prime: int) -> Element:
    """Return f(0) from the values at t or more points."""
    if not shares:
        raise LocalError("nothing can be interpolated from no shares")
    terms = [
        value * factor % prime for value, factor in zip(shares.values(), _factors(shares, prime), strict=True)
    ]
    total = terms[0]
    for term in terms[1:]:
        total = (total + term) % prime
    return total


def _factors(points: Mapping[int, Element], prime: int) -> list[int]:
    """Return λ for each point."""
    factors = []
    for j in points:
        above = below = 1
        for m in points:
            if m != j:
                above, below = above * m % prime, below * (m - j) % prime
        factors.append(above * pow(below, -1, prime) % prime)
    return factors


def deal(values: Digits, prime: int, parties: int, threshold: int, stream: RandomStream) -> list[Residues]:
    """Make one share of a vector for each party; the stream must be secret and fresh."""
    check_threshold(threshold, parties, prime)
    check_digits(values, prime)
    drawn = (sample(stream, values.size, prime) for _ in range(threshold - 1))
    coefficients = [values.astype(np.uint64), *(each.astype(np.uint64) for each in drawn)]
    return [evaluate(coefficients, x, prime).astype(residue_type(prime)) for x in range(1, parties + 1)]


def recover(shares: Mapping[int, Residues], prime: int) -> Residues:
    """Return the vector from the shares of t or more parties, by their numbers."""
    wide = {party: share.astype(np.uint64) for party, share in shares.items()}
    return interpolate(wide, prime).astype(residue_type(prime))


def deal_number(secret: int, parties: int, threshold: int, stream: RandomStream) -> list[int]:
    """Make one share of a number for each party; the stream must be secret and fresh."""
    check_threshold(threshold, parties, LONG_PRIME)
    coefficients = [secret, *(_draw_number(stream) for _ in range(threshold - 1))]
    return [evaluate(coefficients, x, LONG_PRIME) for x in range(1, parties + 1)]


def recover_numbers(shares: Mapping[int, Sequence[int]]) -> list[int]:
    """Return several numbers from the shares of t or more parties, by their numbers."""
    # Factors are the same for all of them, so they are treated as a vector.
    columns = {party: np.array(each, dtype=object) for party, each in shares.items()}
    return [int(number) for number in interpolate(columns, LONG_PRIME)]


def _draw_number(stream: RandomStream) -> int:
    """Draw a number mod p, without bias."""
    drawn, raw = LONG_PRIME, np.empty(_LONG_BYTES, dtype=np.uint8)
    while drawn >= LONG_PRIME:
        stream.fill(raw)
        drawn = int.from_bytes(raw.tobytes(), "little")
    return drawn
