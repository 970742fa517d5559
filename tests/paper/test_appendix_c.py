"""Appendix C, further details on SecUnion: what it loses, and what it tells a client about being alone.

The paper takes 1/2^q for the chance that t ≥ 2 marks cancel. Exactly it is (1 + (-1)^t/(2^q-1)^(t-1))/2^q: two
marks cancel with 1/(2^q-1), and at q = 1, where the only mark is 1, every even number of them does.
"""

import math

import numpy as np
import pytest

from hubbub.crypto.stream import AesCtrStream
from hubbub.protocol import leakage, unions
from hubbub.protocol.compression import count_kept
from hubbub.protocol.sharing import accumulate, recombine, split

N_LENET = 61_706
N_ALEXNET = 1_756_426
CLIENTS = 5


@pytest.mark.parametrize("t", range(CLIENTS + 1))
def test_how_many_clients_choose_an_index_is_binomial(t: int) -> None:
    """C, Eq. 16: P(N, k, C, t) = C(C, t)·(k/N)^t·((N-k)/N)^(C-t)."""
    n, k = N_LENET, 6_170

    chance = leakage.choosing_probability(CLIENTS, k / n, t)

    assert chance == pytest.approx(math.comb(CLIENTS, t) * (k / n) ** t * ((n - k) / n) ** (CLIENTS - t))


@pytest.mark.parametrize(
    ("n", "q", "printed"),
    [
        (N_LENET, 1, 2_513),
        (N_LENET, 5, 157),
        (N_LENET, 10, 5),
        (N_ALEXNET, 1, 71_539),
        (N_ALEXNET, 5, 4_471),
        (N_ALEXNET, 10, 140),
    ],
)
def test_table_of_false_negatives_by_the_papers_formula(n: int, q: int, printed: int) -> None:
    """C.1, Table 4: N·Pr[t ≥ 2]/2^q, ρ = 0.1, C = 5."""
    assert round(leakage.paper_expected_lost(n, count_kept(n, 0.1) / n, CLIENTS, q)) == printed


@pytest.mark.parametrize(
    ("n", "q", "printed"),
    [
        (N_LENET, 1, "97.39"),
        (N_LENET, 5, "99.84"),
        (N_LENET, 10, "99.99"),
        (N_ALEXNET, 1, "97.39"),
        (N_ALEXNET, 5, "99.84"),
        (N_ALEXNET, 10, "99.99"),
    ],
)
def test_table_of_being_alone_by_the_papers_formula(n: int, q: int, printed: str) -> None:
    """C.2, Table 5: 1 - Pr[t ≥ 2 | C-1]/2^q, ρ = 0.1, C = 5."""
    chance = leakage.paper_alone_probability(count_kept(n, 0.1) / n, CLIENTS, q)

    assert f"{100 * chance:.2f}" == printed


@pytest.mark.parametrize(
    ("q", "paper", "exact"), [(1, 2_513, 4_525), (2, 1_256, 1_618), (5, 157, 162), (10, 5, 5)]
)
def test_exact_false_negatives_are_more_than_the_paper_says(q: int, paper: int, exact: int) -> None:
    """C.1, a slip: "the probability to obtain a false negative for this index is equal to 1/2^q" is not exact."""
    share = count_kept(N_LENET, 0.1) / N_LENET

    assert round(leakage.paper_expected_lost(N_LENET, share, CLIENTS, q)) == paper
    assert round(leakage.expected_lost(N_LENET, share, CLIENTS, q)) == exact


@pytest.mark.parametrize(
    ("q", "paper", "exact"),
    [(1, "97.39", "93.09"), (2, "98.69", "97.47"), (5, "99.84", "99.74"), (10, "99.99", "99.99")],
)
def test_exactly_a_client_is_less_sure_to_be_alone_than_the_paper_says(q: int, paper: str, exact: str) -> None:
    """C.2: besides the slip, the chance is not given that the client sees its own mark; Bayes' rule adds that."""
    share = count_kept(N_LENET, 0.1) / N_LENET

    assert f"{100 * leakage.paper_alone_probability(share, CLIENTS, q):.2f}" == paper
    assert f"{100 * leakage.alone_probability(share, CLIENTS, q):.2f}" == exact


def run_sec_union(q: int, seed: int) -> tuple[int, int]:
    """SecUnion over real shares on index sets of exactly k; sizes of the true union and of the one found."""
    n, k = N_LENET, count_kept(N_LENET, 0.1)
    generator, stream = np.random.default_rng(seed), AesCtrStream(bytes([seed]) * 32)
    sums = [np.zeros(n, dtype=np.uint32) for _ in range(2)]
    union = np.zeros(n, dtype=np.bool_)
    for _ in range(CLIENTS):
        signs = np.zeros(n, dtype=np.int8)
        signs[generator.choice(n, k, replace=False)] = 1
        union |= signs != 0
        marks = unions.mark_at_random(signs, q, stream)
        for total, share in zip(sums, split(marks, 2**q, 2, stream), strict=True):
            accumulate(total, share, 2**q)
    found = unions.indices_of(recombine(sums, 2**q))
    assert union[found].all()
    return int(union.sum()), found.size


@pytest.mark.parametrize("q", [1, 2, 5])
def test_false_negatives_of_real_unions_are_the_exact_expectation(q: int) -> None:
    """C.1, on random index sets, LeNet: within four standard deviations of the exact number, in each of 10 runs.

    Choices of different indices hardly depend on each other, so the spread is nearly a binomial's; as every client
    chooses exactly k, it is a little less.
    """
    expected = leakage.expected_lost(N_LENET, count_kept(N_LENET, 0.1) / N_LENET, CLIENTS, q)
    deviation = math.sqrt(expected * (1 - expected / N_LENET))
    runs = [run_sec_union(q, seed) for seed in range(10 * q, 10 * q + 10)]

    lost = [union - found for union, found in runs]

    assert max(abs(each - expected) for each in lost) < 4 * deviation
    assert abs(sum(lost) / 10 - expected) < 4 * deviation / math.sqrt(10)


def test_the_papers_number_is_excluded_at_one_bit() -> None:
    """C.1: 2,513 is printed for q = 1; no run is anywhere near."""
    union, found = run_sec_union(1, seed=99)

    assert abs((union - found) - 2_513) > 20 * math.sqrt(2_513)
