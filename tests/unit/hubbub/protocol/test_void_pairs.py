"""Two unions around a void round: what they tell of the client that is in the first one only, and its measure.

Clients choose at random here, and choose again so that a given share of their choices stays.
"""

from __future__ import annotations

import importlib.util
import math
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from numpy.typing import NDArray

from hubbub.crypto.stream import AesCtrStream
from hubbub.protocol import leakage, unions

Chosen = NDArray[np.bool_]
Totals = NDArray[np.int64]

N, RHO, CLIENTS = 100_000, 0.1, 5


def load_tool(name: str) -> ModuleType:
    """Tools are scripts, not a package."""
    path = Path(__file__).parents[4] / "tools" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # A dataclass looks its module up.
    spec.loader.exec_module(module)
    return module


TOOL = load_tool("measure_void_pairs")


def choose(seed: int) -> Chosen:
    return np.random.default_rng(seed).random((CLIENTS, N)) < RHO


def choose_again(chosen: Chosen, overlap: float, seed: int) -> Chosen:
    """Each client keeps this share of its choices, and as many as before on the whole."""
    chance = np.where(chosen, overlap, RHO * (1 - overlap) / (1 - RHO))
    return np.random.default_rng(seed).random(chosen.shape) < chance


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
def test_after_training_on_the_same_batches_the_difference_is_the_absent_clients_choice(
    q: int | None, absent: int
) -> None:
    """This is why a void round is trained anew."""
    chosen = choose(seed=1)

    differ = unite(chosen, q) != unite(np.delete(chosen, absent, axis=0), q)

    assert np.array_equal(differ, chosen[absent])


@pytest.mark.parametrize("overlap", [RHO, 0.5, 0.7, 0.9])
def test_after_fresh_batches_parities_mislead_as_often_as_the_formula_says(overlap: float) -> None:
    first = choose(seed=2)
    second = choose_again(first, overlap, seed=3)

    differ = unite(first, 1) != unite(second[1:], 1)

    wrong, chance = int((differ != first[0]).sum()), leakage.pair_error(RHO, overlap, CLIENTS - 1)
    assert abs(wrong - N * chance) < 4 * math.sqrt(N * chance * (1 - chance))


@pytest.mark.parametrize("overlap", [0.5, 0.7, 0.9])
def test_more_pairs_from_one_model_mislead_less(overlap: float) -> None:
    """All that a client chooses again is seen again, and what the others change averages out."""
    usual = choose(seed=4)
    votes = np.zeros(N, dtype=np.int64)
    areas = []
    for pair in range(3):
        first, second = (choose_again(usual, overlap, seed=10 + 2 * pair + place) for place in (0, 1))
        votes += unite(first, 1) != unite(second[1:], 1)
        areas.append(TOOL.area(TOOL.tabulate([3 - votes], usual[0])))

    assert areas == sorted(areas)
    assert areas[2] > areas[0] + 0.04


# The measuring tool -------------------------------------------------------------------------------------


def binary_entropy(p: float) -> float:
    return -p * math.log2(p) - (1 - p) * math.log2(1 - p)


def test_who_sees_the_choice_itself_has_no_doubt_left() -> None:
    truth = choose(seed=5)[0]
    table = TOOL.tabulate([truth.astype(np.int64)], truth)

    assert TOOL.entropy(table) == 0.0
    assert TOOL.area(TOOL.order_by_suspicion(table)) == 1.0
    assert TOOL.hit_rate(table, int(truth.sum())) == 1.0


def test_who_sees_something_else_knows_how_many_there_are_and_no_more() -> None:
    truth, other = choose(seed=6)[:2]
    table = TOOL.tabulate([other.astype(np.int64)], truth)
    rate = float(truth.mean())

    assert TOOL.entropy(table) == pytest.approx(binary_entropy(rate), abs=1e-4)
    assert TOOL.area(TOOL.order_by_suspicion(table)) == pytest.approx(0.5, abs=0.005)
    assert TOOL.hit_rate(table, int(truth.sum())) == pytest.approx(rate, abs=0.01)


@pytest.mark.parametrize("flips", [0.05, 0.2])
def test_a_choice_seen_through_a_noisy_channel_is_worth_what_shannon_says(flips: float) -> None:
    truth = choose(seed=7)[0]
    seen = truth ^ (np.random.default_rng(8).random(N) < flips)
    table = TOOL.tabulate([seen.astype(np.int64)], truth)

    shown = RHO * (1 - flips) + (1 - RHO) * flips
    left = binary_entropy(RHO) - (binary_entropy(shown) - binary_entropy(flips))

    assert TOOL.entropy(table) == pytest.approx(left, abs=0.01)
    assert TOOL.area(TOOL.order_by_suspicion(table)) == pytest.approx(1 - flips, abs=0.01)


def test_what_is_seen_together_is_told_apart() -> None:
    """Two views, neither of which tells anything alone."""
    truth = np.array([False, True, True, False] * 10)
    one, two = np.array([0, 0, 1, 1] * 10), np.array([0, 1, 0, 1] * 10)

    assert TOOL.entropy(TOOL.tabulate([one], truth)) == 1.0
    assert TOOL.entropy(TOOL.tabulate([one, two], truth)) == 0.0
    assert TOOL.tabulate([one, two], truth, truth).tolist() == [[0, 10], [0, 10]]
