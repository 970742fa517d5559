"""Section 4, related work: what the paper compares itself with costs, and who learns what there (Table 2)."""

import pytest

from hubbub.protocol.costs import bonawitz_bits, eastly_he_bits, eastly_tss_bits
from hubbub.strategies.planner import Question, plan

N_LENET = 61_706
N_ALEXNET = 1_756_426
networks = pytest.mark.parametrize("n", [N_LENET, N_ALEXNET])
cohorts = pytest.mark.parametrize("c", [2, 5, 10])


@networks
@cohorts
def test_practical_secure_aggregation(n: int, c: int) -> None:
    """4, Eq. 13: C·(2·C·a_K + (5·C-4)·a_S + 2·N·⌈log2 T⌉) with a_K = a_S = 256, T = 2^32."""
    assert bonawitz_bits(n, c) == c * (2 * c * 256 + (5 * c - 4) * 256 + 2 * n * 32)


@networks
@pytest.mark.parametrize(("c", "bits"), [(2, 3), (5, 4), (10, 5)])
@pytest.mark.parametrize("s", [2, 3])
def test_eastly_with_threshold_secret_sharing(n: int, c: int, bits: int, s: int) -> None:
    """4: 2·S·C·N·⌈log2(2C+1)⌉."""
    assert eastly_tss_bits(n, c, s) == 2 * s * c * n * bits


@networks
@cohorts
def test_eastly_with_homomorphic_encryption(n: int, c: int) -> None:
    """Table 2: 4·C·N·(prec+pad), prec = 24, pad = 8.

    A slip of the paper: its text has C·N·(prec+pad). Table 3 follows from Table 2.
    """
    assert eastly_he_bits(n, c) == 4 * c * n * (24 + 8)


def test_the_server_of_practical_secure_aggregation_learns_the_sum() -> None:
    """4: "aggregated updates are revealed to the aggregator server"; ours reveal none."""
    answer = plan(Question(parameters=N_LENET, clients=5, servers=2, rho=0.1, wire="paper", verified=False))

    told = {row.strategy for row in answer.rows if row.exposure.sums and not row.exposure.updates}

    assert told == {"bonawitz"}


def test_our_method_without_a_union_costs_what_eastly_does_and_the_factors() -> None:
    """4: EaSTLy does "not take into account the sparsity of the ternary vector"."""
    answer = plan(Question(parameters=N_LENET, clients=5, servers=2, rho=0.1, wire="paper", verified=False))

    factors = answer.row("no-union").bits_per_round - answer.row("eastly-tss").bits_per_round

    assert factors == 2 * 2 * 5 * 32
