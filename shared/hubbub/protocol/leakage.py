"""What SecUnion loses and what it tells, in expectation (Beguier et al., appendix on SecUnion).

Both are computed for clients that choose their k indices independently and uniformly. The paper takes 1/2^q for
the chance that t ≥ 2 random non-zero marks cancel; exactly, it is (1 + (-1)^t / (2^q - 1)^(t-1)) / 2^q, which is
larger for even t. At q = 1 every even number of marks cancels. Functions named `paper_` follow the paper to the
letter; the others are exact.
"""

from __future__ import annotations

import math


def choosing_probability(clients: int, rho: float, choosers: int) -> float:
    """P(N, k, C, t): the chance that exactly t of C clients choose a given index, with ρ = k/N."""
    return math.comb(clients, choosers) * math.pow(rho, choosers) * math.pow(1 - rho, clients - choosers)


def cancel_probability(choosers: int, q: int) -> float:
    """The chance that t uniform non-zero marks of Z_{2^q} add up to zero."""
    if choosers == 0:
        return 1.0
    sign = 1 if choosers % 2 == 0 else -1
    return (1 + sign * math.pow(2**q - 1, 1 - choosers)) / math.pow(2, q)


def expected_union(n: int, rho: float, clients: int) -> float:
    """The expected |V| of a union that loses nothing."""
    return n * (1 - math.pow(1 - rho, clients))


def expected_lost(n: int, rho: float, clients: int, q: int) -> float:
    """The expected number of indices that SecUnion loses."""
    return n * sum(
        choosing_probability(clients, rho, choosers) * cancel_probability(choosers, q)
        for choosers in range(2, clients + 1)
    )


def paper_expected_lost(n: int, rho: float, clients: int, q: int) -> float:
    """The same by the paper's formula: N · Pr[t ≥ 2] / 2^q."""
    return n * _several(clients, rho) / math.pow(2, q)


def alone_probability(rho: float, clients: int, q: int) -> float:
    """How sure a client can be, when the sum at an index is its own mark, that nobody else chose the index.

    By Bayes' rule over the number of other choosers, whose marks then cancel.
    """
    others = clients - 1
    alone = choosing_probability(others, rho, 0)
    hidden = sum(
        choosing_probability(others, rho, choosers) * cancel_probability(choosers, q)
        for choosers in range(2, others + 1)
    )
    # Everybody chooses everything and nothing cancels: the sum is never a single mark.
    return alone / (alone + hidden) if alone + hidden else 0.0


def paper_alone_probability(rho: float, clients: int, q: int) -> float:
    """The same by the paper's formula: 1 - Pr[t ≥ 2 | C - 1] / 2^q."""
    return 1 - _several(clients - 1, rho) / math.pow(2, q)


def expected_alone_share(rho: float, clients: int) -> float:
    """The expected share of V's indices that a single client chose."""
    return choosing_probability(clients, rho, 1) / (1 - math.pow(1 - rho, clients))


def _several(clients: int, rho: float) -> float:
    """Pr[t ≥ 2]: at least two clients choose a given index."""
    return 1 - choosing_probability(clients, rho, 0) - choosing_probability(clients, rho, 1)
