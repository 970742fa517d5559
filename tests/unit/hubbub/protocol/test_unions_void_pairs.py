"""Two unions around a void round: what they tell of the client that is in the first one only.

Clients choose at random here, and choose again so that a given share of their choices stays.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from hubbub.crypto.stream import AesCtrStream
from hubbub.protocol import unions

Chosen = NDArray[np.bool_]
Totals = NDArray[np.int64]

N, RHO, CLIENTS = 100_000, 0.1, 5


def choose(seed: int) -> Chosen:
    return np.random.default_rng(seed).random((CLIENTS, N)) < RHO


def choose_again(chosen: Chosen, overlap: float, seed: int) -> Chosen:
    """Each client keeps this share of its choices, and as many as before on the whole."""
    chance = np.where(chosen, overlap, RHO * (1 - overlap) / (1 - RHO))
    return np.random.default_rng(seed).random(chosen.shape) < chance


def pair_error(rho: float, overlap: float, others: int) -> float:
    """Compute how often the unions before and after a void round mislead about a client only in the first.

    At q = 1 an index is in V if an odd number of clients chose it. If it is in one of the two unions and not in
    the other, the absent client chose it, unless an odd number of the others changed their choice. A client that
    chooses a share ρ of all indices, and of these the share `overlap` again, does so with probability
    2·ρ·(1 - overlap). With the same batches the overlap is 1 and nothing misleads.
    """
    changed = 2 * rho * (1 - overlap)
    return (1 - math.pow(1 - 2 * changed, others)) / 2


def unite(chosen: Chosen, q: int | None) -> Totals:
    """The sum of the marks: counts, or random marks of q bits."""
    stream = AesCtrStream(bytes(32))
    marks = [
        unions.mark(each.astype(np.int8)) if q is None else unions.mark_at_random(each.astype(np.int8), q, stream)
        for each in chosen
    ]
    total: Totals = np.sum([each.astype(np.int64) for each in marks], axis=0)
    return total if q is None else total % 2**q


@pytest.mark.parametrize("absent", range(CLIENTS))
@pytest.mark.parametrize("q", [None, 1])
def test_after_the_same_batches_the_difference_is_the_absent_clients_choice(q: int | None, absent: int) -> None:
    """This is why a void round is trained anew."""
    chosen = choose(seed=1)

    differ = unite(chosen, q) != unite(np.delete(chosen, absent, axis=0), q)

    assert np.array_equal(differ, chosen[absent])


@pytest.mark.parametrize("overlap", [RHO, 0.5, 0.7, 0.9])
def test_after_fresh_batches_parities_mislead_as_often_as_the_formula_says(overlap: float) -> None:
    first = choose(seed=2)
    second = choose_again(first, overlap, seed=3)

    differ = unite(first, 1) != unite(second[1:], 1)

    wrong, chance = int((differ != first[0]).sum()), pair_error(RHO, overlap, CLIENTS - 1)
    assert abs(wrong - N * chance) < 4 * math.sqrt(N * chance * (1 - chance))


@pytest.mark.parametrize("overlap", [0.5, 0.7, 0.9])
def test_more_pairs_from_one_model_mislead_less(overlap: float) -> None:
    """All that a client chooses again is seen again, and what the others change averages out."""
    usual = choose(seed=4)
    pairs = [
        tuple(choose_again(usual, overlap, seed=10 + 2 * pair + place) for place in (0, 1)) for pair in range(3)
    ]

    votes = [unite(first, 1) != unite(second[1:], 1) for first, second in pairs]

    wrong = [int((vote != usual[0]).sum()) for vote in (votes[0], np.sum(votes, axis=0) > 1)]
    assert wrong[1] < 0.9 * wrong[0]
