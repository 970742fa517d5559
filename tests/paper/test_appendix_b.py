"""Appendix B, further details on TopBinary aggregation: how far SepAgg is from DirectAgg."""

import numpy as np
import pytest
from numpy.typing import NDArray

from hubbub.protocol.aggregate import apply_sum
from hubbub.protocol.compression import TopBinary, top_binary

N, K = 2_000, 200


def draw_updates(clients: int, spread: float, seed: int) -> list[NDArray[np.float32]]:
    """Updates of random directions, with norms from 1 to 1 + spread."""
    generator = np.random.default_rng(seed)
    norms = 1 + spread * generator.random(clients)
    directions = generator.normal(size=(clients, N))
    return [(norm * x / np.linalg.norm(x)).astype(np.float32) for norm, x in zip(norms, directions, strict=True)]


def direct(coded: list[TopBinary]) -> NDArray[np.float64]:
    """D̄ = (1/C)·Σ α_i·D_i."""
    total = np.zeros(N)
    for each in coded:
        total += each.alpha * each.signs
    return total / len(coded)


def separate(coded: list[TopBinary]) -> NDArray[np.float32]:
    """D̃ as a client computes it: U of Eq. 8, in float32."""
    signs_sum = np.stack([each.signs for each in coded]).sum(axis=0, dtype=np.int32)
    mean_factor = sum(each.alpha for each in coded) / len(coded)
    return apply_sum(np.zeros(N, dtype=np.float32), signs_sum, mean_factor, len(coded))


def predicted_square(updates: list[NDArray[np.float32]], coded: list[TopBinary]) -> float:
    """(1/(C²·k))·Σ_j (Σ_i (L_i - L̃)·D_i[j])²."""
    clients = len(updates)
    norms = np.array([np.linalg.norm(x.astype(np.float64)) for x in updates])
    inner = sum((norms[i] - norms.mean()) * coded[i].signs.astype(np.float64) for i in range(clients))
    return float((np.asarray(inner) ** 2).sum() / (clients**2 * K))


@pytest.mark.parametrize("clients", [2, 5, 10])
@pytest.mark.parametrize("spread", [0.1, 1.0, 10.0])
def test_squared_difference_is_the_appendix_s_formula(clients: int, spread: float) -> None:
    """B, last equation: ‖D̄ - D̃‖² = (1/(C²·k))·Σ_j (Σ_i (L_i - L̃)·D_i[j])²."""
    updates = draw_updates(clients, spread, seed=clients)
    coded = [top_binary(x, K) for x in updates]

    difference = float(((direct(coded) - separate(coded)) ** 2).sum())

    assert difference == pytest.approx(predicted_square(updates, coded), rel=1e-4)


def test_with_equal_norms_there_is_no_difference() -> None:
    """B: "if the expectation of the difference L_i - L̃ is small", SepAgg is adequate; with none it is exact."""
    generator = np.random.default_rng(1)
    first = generator.normal(size=N).astype(np.float32)
    coded = [top_binary(generator.permutation(first) * np.float32(sign), K) for sign in (1, -1, 1, 1)]

    assert np.allclose(direct(coded), separate(coded), rtol=1e-6, atol=1e-9)


def test_the_difference_grows_with_the_spread_of_the_norms() -> None:
    """B: the average norm "serves as an approximation for the individual norms"."""
    relative = []
    for spread in (0.01, 0.1, 1.0):
        coded = [top_binary(x, K) for x in draw_updates(5, spread, seed=7)]
        exact = direct(coded)
        relative.append(float(np.linalg.norm(exact - separate(coded)) / np.linalg.norm(exact)))

    assert relative == sorted(relative)
    assert relative[0] < 0.01
    assert relative[2] > 0.1


def test_alpha_is_the_norm_over_the_root_of_k() -> None:
    """B: ‖D_i‖₂ = √k, "thus α_i = ‖X_i‖₂/√k"."""
    for x in draw_updates(5, 1.0, seed=8):
        coded = top_binary(x, K)

        assert np.linalg.norm(coded.signs.astype(np.float64)) == pytest.approx(np.sqrt(K))
        assert coded.alpha == pytest.approx(np.linalg.norm(x.astype(np.float64)) / np.sqrt(K), rel=1e-12)
