"""The exact formulas against enumeration, a second derivation, and simulation."""

from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hubbub.crypto.stream import AesCtrStream
from hubbub.protocol import leakage, unions

N_LENET = 61_706
shares = st.sampled_from([0.001, 0.1, 0.5, 0.88, 1.0]) | st.floats(0.001, 1.0)


def enumerate_cancellations(choosers: int, q: int) -> Fraction:
    """Of all ways to draw the marks, the share that adds up to zero."""
    draws = list(product(range(1, 2**q), repeat=choosers))
    return Fraction(sum(1 for marks in draws if sum(marks) % 2**q == 0), len(draws))


def test_chance_to_cancel_is_that_of_all_draws() -> None:
    cases = [(t, q) for q, most in ((1, 9), (2, 8), (3, 5), (4, 4), (5, 3)) for t in range(most + 1)]
    exact = {case: float(enumerate_cancellations(*case)) for case in cases}

    found = {case: leakage.cancel_probability(*case) for case in cases}

    assert found == pytest.approx(exact, rel=1e-12, abs=1e-15)


@given(q=st.integers(1, 32))
def test_one_mark_never_cancels_and_two_do_if_they_are_opposite(q: int) -> None:
    assert leakage.cancel_probability(1, q) == 0.0
    assert leakage.cancel_probability(2, q) == pytest.approx(1 / (2**q - 1), rel=1e-12)


@given(clients=st.integers(2, 10), rho=shares)
def test_numbers_of_choosers_are_a_distribution(clients: int, rho: float) -> None:
    chances = [leakage.choosing_probability(clients, rho, t) for t in range(clients + 1)]

    assert math.fsum(chances) == pytest.approx(1)
    assert math.fsum(t * p for t, p in enumerate(chances)) == pytest.approx(clients * rho)


def lost_by_characters(n: int, rho: float, clients: int, q: int) -> float:
    """A second derivation, without conditioning on the number of choosers.

    A client adds the character value 1 - ρ·M/(M - 1) on average, M = 2^q, for each of the M - 1 characters of
    Z_M that are not trivial; the chance of a zero sum is the mean over all characters.
    """
    m = 2**q
    zero = (1 + (m - 1) * (1 - rho * m / (m - 1)) ** clients) / m
    return float(n * (zero - (1 - rho) ** clients))


@given(clients=st.integers(2, 10), rho=shares, q=st.integers(1, 10))
def test_expected_loss_agrees_with_a_second_derivation(clients: int, rho: float, q: int) -> None:
    lost = leakage.expected_lost(N_LENET, rho, clients, q)

    assert lost == pytest.approx(lost_by_characters(N_LENET, rho, clients, q), rel=1e-9, abs=1e-6)


@given(clients=st.integers(2, 10), rho=shares, q=st.integers(1, 32))
def test_what_is_found_is_the_union_less_what_is_lost(clients: int, rho: float, q: int) -> None:
    found = leakage.expected_found(N_LENET, rho, clients, q)
    union, lost = leakage.expected_union(N_LENET, rho, clients), leakage.expected_lost(N_LENET, rho, clients, q)

    assert found == pytest.approx(union - lost, rel=1e-9, abs=1e-6)


def test_what_is_found_is_known_of_any_number_of_clients() -> None:
    """Where everybody chooses much, a sum of many bits is odd half the time."""
    assert leakage.expected_found(100, 0.5, 1_000_001, 1) == 50
    assert [leakage.expected_found(100, 1.0, clients, 1) for clients in (1_000_000, 1_000_001)] == [0, 100]


def simulate(n: int, rho: float, clients: int, q: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Choices (clients by indices) and the marks that Hubbub gives them."""
    chosen = np.random.default_rng(seed).random((clients, n)) < rho
    stream = AesCtrStream(bytes([seed]) * 32)
    marks = np.stack([unions.mark_at_random(each.astype(np.int8), q, stream) for each in chosen])
    return chosen, marks.astype(np.int64)


@pytest.mark.parametrize(
    ("clients", "rho", "q"), [(5, 0.1, 1), (5, 0.1, 2), (4, 0.4, 2), (8, 0.3, 3), (5, 0.1, 5)]
)
def test_simulation_agrees_within_four_standard_deviations(clients: int, rho: float, q: int) -> None:
    n = 200_000
    chosen, marks = simulate(n, rho, clients, q, seed=clients)
    union = chosen.any(axis=0)
    zero = marks.sum(axis=0) % 2**q == 0

    lost, expected = int((union & zero).sum()), leakage.expected_lost(n, rho, clients, q)
    assert abs(lost - expected) < 4 * math.sqrt(expected * (1 - expected / n))

    size, expected = int(union.sum()), leakage.expected_union(n, rho, clients)
    assert abs(size - expected) < 4 * math.sqrt(expected * (1 - expected / n))

    alone, share = int((chosen.sum(axis=0) == 1).sum()), leakage.expected_alone_share(rho, clients)
    assert abs(alone - share * size) < 4 * math.sqrt(size * share * (1 - share))


@pytest.mark.parametrize(("clients", "rho", "q"), [(5, 0.1, 1), (5, 0.3, 2), (3, 0.5, 1), (8, 0.3, 3)])
def test_who_sees_its_own_mark_was_alone_as_often_as_bayes_says(clients: int, rho: float, q: int) -> None:
    chosen, marks = simulate(200_000, rho, clients, q, seed=10 + clients)
    back = chosen[0] & (marks.sum(axis=0) % 2**q == marks[0])
    alone = back & (chosen.sum(axis=0) == 1)

    seen, chance = int(back.sum()), leakage.alone_probability(rho, clients, q)

    assert abs(int(alone.sum()) - seen * chance) < 4 * math.sqrt(seen * chance * (1 - chance))


def test_alone_is_enumerated_for_a_small_case() -> None:
    """Three clients, q = 2: over all choices and marks, weighted."""
    rho, weights = 0.25, Counter[bool]()
    value = {0: 0.75, 1: rho / 3, 2: rho / 3, 3: rho / 3}
    for first, second in product(value, repeat=2):
        if (first + second) % 4 == 0:
            weights[first == 0 and second == 0] += value[first] * value[second]  # type: ignore[assignment]  # Weights.

    assert leakage.alone_probability(rho, 3, 2) == pytest.approx(weights[True] / weights.total())
    assert leakage.alone_probability(0.1, 2, 1) == 1.0, "of two clients, who sees its own mark is alone"


def test_the_papers_formulas_promise_more_than_there_is_but_for_wide_marks() -> None:
    for q in (1, 2, 5):
        assert leakage.paper_expected_lost(N_LENET, 0.1, 5, q) < leakage.expected_lost(N_LENET, 0.1, 5, q)
        assert leakage.paper_alone_probability(0.1, 5, q) > leakage.alone_probability(0.1, 5, q)
    exact = leakage.expected_lost(N_LENET, 0.1, 5, 20)
    assert leakage.paper_expected_lost(N_LENET, 0.1, 5, 20) == pytest.approx(exact, rel=1e-5)
    dense = leakage.expected_union(100, 1.0, 5), leakage.expected_alone_share(1.0, 5)
    assert dense == (100, 0.0), "a dense choice leaves nobody alone"


def estimate_and_share(chosen: np.ndarray, q: int, seed: int) -> tuple[float | None, float]:
    """What the first client estimates, and the share of V that a single client chose."""
    generator = np.random.default_rng(seed)
    marks = np.where(chosen, generator.integers(1, max(2, 2**q), size=chosen.shape), 0)
    total = marks.sum(axis=0) % 2**q
    estimate = leakage.estimate_alone_share(
        kept=int(chosen[0].sum()),
        matched=int(np.count_nonzero((total == marks[0]) & chosen[0])),
        union_size=int(np.count_nonzero(total)),
        members=len(chosen),
        q=q,
    )
    return estimate, np.count_nonzero((chosen.sum(axis=0) == 1) & (total != 0)) / np.count_nonzero(total)


@pytest.mark.parametrize(
    ("q", "clients", "alike"),
    [(1, 3, 0.0), (1, 4, 0.9), (2, 5, 0.5), (3, 5, 0.7), (5, 5, 0.9), (16, 5, 0.0), (16, 5, 0.9)],
)
def test_one_client_can_tell_roughly_how_much_was_chosen_alone(q: int, clients: int, alike: float) -> None:
    n, k = 40_000, 4_000
    generator = np.random.default_rng(7)
    common = generator.normal(size=n)
    chosen = np.zeros((clients, n), dtype=np.bool_)
    for place in range(clients):
        score = np.abs(alike * common + (1 - alike) * generator.normal(size=n))
        chosen[place, np.argpartition(-score, k)[:k]] = True

    estimate, share = estimate_and_share(chosen, q, seed=7)

    assert estimate == pytest.approx(share, abs=0.12 if q <= 2 else 0.06)


@pytest.mark.parametrize("rho", [0.03, 0.1])
@pytest.mark.parametrize("q", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("clients", [2, 3, 4, 5, 10, 20, 100])
def test_where_clients_choose_independently_the_estimate_is_right_or_left_out(
    clients: int, q: int, rho: float
) -> None:
    chosen = np.random.default_rng(clients).random((clients, 40_000)) < rho

    estimate, share = estimate_and_share(chosen, q, seed=q)

    assert estimate is None or estimate == pytest.approx(share, abs=0.07)
    assert (estimate is None) == (clients > 2 * 2**q), "it is left out only where marks are few"


@pytest.mark.parametrize(
    ("matched", "union_size", "members", "q", "share"),
    [(0, 0, 3, 2, 0.0), (6, 12, 2, 1, 1.0), (4, 12, 2, 4, 8 / 12)],
    ids=["an empty union", "one other client and one bit", "one other client, whose marks do not cancel"],
)
def test_the_share_chosen_alone_if_certain(
    matched: int, union_size: int, members: int, q: int, share: float
) -> None:
    estimate = leakage.estimate_alone_share(kept=10, matched=matched, union_size=union_size, members=members, q=q)

    assert estimate == pytest.approx(share)
