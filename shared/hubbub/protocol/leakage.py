"""Expected losses and leakage of SecUnion (Beguier et al., appendix on SecUnion).

Both are computed for clients that choose their k indices independently and uniformly. The paper takes 1/2^q for
the chance that t ≥ 2 random non-zero marks cancel; exactly, it is (1 + (-1)^t / (2^q - 1)^(t-1)) / 2^q, which is
larger for even t. At q = 1 every even number of marks cancels. Functions named `paper_` follow the paper to the
letter; the others are exact.
"""

from __future__ import annotations

import math


def choosing_probability(clients: int, rho: float, choosers: int) -> float:
    """Compute P(N, k, C, t), the chance that exactly t of C clients choose a given index, with ρ = k/N."""
    return math.comb(clients, choosers) * math.pow(rho, choosers) * math.pow(1 - rho, clients - choosers)


def cancel_probability(choosers: int, q: int) -> float:
    """Compute the chance that t uniform non-zero marks of Z_{2^q} add up to zero."""
    if choosers == 0:
        return 1.0
    sign = 1 if choosers % 2 == 0 else -1
    return (1 + sign * math.pow(2**q - 1, 1 - choosers)) / math.pow(2, q)


def expected_union(n: int, rho: float, clients: int) -> float:
    """Compute the expected |V| of a union that loses nothing."""
    return n * (1 - math.pow(1 - rho, clients))


def expected_found(n: int, rho: float, clients: int, q: int) -> float:
    """Compute the expected |V| of SecUnion: the expected union less what is lost, for any number of clients.

    On average a client multiplies each non-trivial character of Z_m, m = 2^q, by 1 - ρ·m/(m-1); the chance of a
    zero sum is the mean over all m characters.
    """
    other = 1 - math.pow(2, -q)
    return n * other * (1 - math.pow(1 - rho / other, clients))


def expected_lost(n: int, rho: float, clients: int, q: int) -> float:
    """Compute the expected number of indices that SecUnion loses."""
    return n * sum(
        choosing_probability(clients, rho, choosers) * cancel_probability(choosers, q)
        for choosers in range(2, clients + 1)
    )


def paper_expected_lost(n: int, rho: float, clients: int, q: int) -> float:
    """Compute the same by the paper's formula: N · Pr[t ≥ 2] / 2^q."""
    return n * _several(clients, rho) / math.pow(2, q)


def alone_probability(rho: float, clients: int, q: int) -> float:
    """Compute the chance that nobody else chose an index, given that the sum there is the client's own mark.

    This is Bayes' rule over the number of other choosers, whose marks then cancel.
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
    """Compute the same by the paper's formula: 1 - Pr[t ≥ 2 | C - 1] / 2^q."""
    return 1 - _several(clients - 1, rho) / math.pow(2, q)


def expected_alone_share(rho: float, clients: int) -> float:
    """Compute the expected share of V's indices that a single client chose."""
    return choosing_probability(clients, rho, 1) / (1 - math.pow(1 - rho, clients))


def estimate_alone_share(*, kept: int, matched: int, union_size: int, members: int, q: int) -> float | None:
    """Estimate the share of SecUnion's V that a single client chose, from what one client sees.

    The client chose `kept` indices; at `matched` of them the sum is its own mark; V has `union_size`. Of its own
    indices let N_1, N_2 and N_3 be those that it alone, one other, or more others chose. Marks of two or more
    others cancel with probability p = 1/2^q or so, hence matched = N_1 + p·N_3, and an index that t clients chose
    stands in t of their lists, hence |V|/M = N_1 + (1 - 1/(2^q-1))·N_2/2 + (1-p)·N_3/t. This assumes that the
    other clients are like this one, and that t for N_3 lies halfway between 3 and M.

    At q = 1 all marks are equal, and V holds the indices that an odd number of clients chose. Then the only
    evidence is the mean number of choosers, M·matched/|V|. With up to four members that number is one or three,
    and its mean gives the share. With more members it does not: half chosen by one and half by five look like
    all chosen by three. With wider marks p·N_3 hides N_1 only in larger cohorts. So the result is None where
    M > 2^(q+1).
    """
    if members > 2 ** (q + 1):
        return None
    if not union_size:
        return 0.0
    if q == 1:
        return _clip((3 - members * matched / union_size) / 2)
    cancel = math.pow(2, -q)
    several = 0.0
    if members > 2:  # noqa: PLR2004  (With one other client, nothing cancels on its own.)
        pairs = (1 - 1 / (math.pow(2, q) - 1)) / 2
        excess = union_size / members - matched - (kept - matched) * pairs
        several = excess / ((1 - cancel) * 2 / (3 + members) - cancel - (1 - cancel) * pairs)
    several = min(max(several, 0.0), (kept - matched) / (1 - cancel))
    return _clip(members * (matched - cancel * several) / union_size)


def _clip(share: float) -> float:
    return min(1.0, max(0.0, share))


def _several(clients: int, rho: float) -> float:
    """Compute Pr[t ≥ 2], the chance that at least two clients choose a given index."""
    return 1 - choosing_probability(clients, rho, 0) - choosing_probability(clients, rho, 1)
