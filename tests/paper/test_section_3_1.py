"""Section 3.1, communication-efficient federated learning: TopBinary coding and separate aggregation."""

import math

import numpy as np
import pytest

from hubbub.protocol.aggregate import apply_sum
from hubbub.protocol.compression import accumulate_error, count_kept, top_binary

N_LENET = 61_706
N_ALEXNET = 1_756_426


@pytest.mark.parametrize(("n", "k"), [(N_LENET, 6_170), (N_ALEXNET, 175_642)])
def test_kept_of_the_papers_networks(n: int, k: int) -> None:
    """Tables 4 and 5 of the appendix: k = ⌊N·ρ⌋ for ρ = 0.1."""
    assert count_kept(n, 0.1) == k


def test_top_binary_preserves_the_norm() -> None:
    """3.1.1, below Eq. 6: "α […] is a scaling factor used to preserve the Euclidean norm of X"."""
    x = np.random.default_rng(0).normal(size=N_LENET).astype(np.float32)
    k = count_kept(N_LENET, 0.1)

    coded = top_binary(x, k)

    assert np.count_nonzero(coded.signs) == k
    exact = math.sqrt(math.fsum(float(v) ** 2 for v in x))
    assert coded.alpha == pytest.approx(exact / math.sqrt(k), rel=1e-13)
    assert np.linalg.norm(coded.alpha * coded.signs) == pytest.approx(exact, rel=1e-12)


def test_signs_are_those_of_the_largest_magnitudes() -> None:
    """3.1.1, Eq. 5: Top-k keeps "only the k components with largest magnitude"."""
    x = np.random.default_rng(1).normal(size=1000).astype(np.float32)

    signs = top_binary(x, 100).signs

    assert np.abs(x[signs != 0]).min() >= np.abs(x[signs == 0]).max()
    assert np.array_equal(signs[signs != 0], np.sign(x[signs != 0]))


def test_accumulator_holds_all_that_was_not_sent() -> None:
    """Alg. 2: δ_i ← δ_i + U_i - α_i·D_i.

    Departure: what is subtracted is Q⁻¹(Q(α))·D, which was really sent.
    """
    update, error = (np.random.default_rng(seed).normal(size=500).astype(np.float32) for seed in (2, 3))
    x = update + error
    coded = top_binary(x, 50)

    remaining = accumulate_error(x, coded.alpha, coded.signs)

    assert np.allclose(remaining + coded.alpha * coded.signs, x, atol=1e-6)


def test_separate_aggregation_multiplies_the_two_means() -> None:
    """3.1.2, Eq. 8: U = (1/C²)·(Σ α_i)·(Σ D_i)."""
    generator = np.random.default_rng(4)
    alphas = generator.uniform(0.5, 2.0, 5)
    directions = generator.integers(-1, 2, (5, 300))

    theta = apply_sum(
        np.zeros(300, dtype=np.float32), directions.sum(axis=0).astype(np.int32), float(alphas.mean()), 5
    )

    assert np.allclose(theta, alphas.sum() * directions.sum(axis=0) / 25, rtol=1e-6, atol=0)
