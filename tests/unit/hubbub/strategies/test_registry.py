"""A client whose training failed is a member like any other: it adds nothing, and loses nothing."""

from dataclasses import replace

import numpy as np
import pytest

from hubbub.parameters import Parameters
from hubbub.strategies.base import ClientInput
from hubbub.strategies.registry import STRATEGIES
from hubbub.strategies.unions import SIGNS
from support.strategy_rounds import N, absorb, draw, make_input, play, setting

THETA = draw(99)
NOTHING = np.zeros(N, np.float32)
IN_BLOCKS = "sec-union in blocks"


def draw_up(name: str) -> Parameters:
    parameters = setting(clients=3, q=3)
    return replace(parameters, block=4) if name == IN_BLOCKS else parameters


def silent_input(seed: int = 0) -> ClientInput:
    """There is something in its accumulator, which would be said otherwise."""
    return replace(make_input(seed, theta=THETA), update=NOTHING, silent=True)


@pytest.mark.parametrize("name", [*STRATEGIES, IN_BLOCKS])
def test_who_says_nothing_moves_along_and_keeps_its_accumulator(name: str) -> None:
    strategy = STRATEGIES[name.removesuffix(" in blocks")]
    silent = silent_input()
    assert silent.accumulator.any()

    mine, *others = play(strategy, draw_up(name), [silent, make_input(1, theta=THETA), make_input(2, theta=THETA)])

    # A strategy that adds numbers as they are carries nothing over.
    np.testing.assert_array_equal(mine.accumulator, NOTHING if strategy.repeats else silent.accumulator)
    for other in others:
        # A model of one's own moves by one's own factor, which is zero.
        np.testing.assert_array_equal(mine.theta, THETA if strategy.own_models else other.theta)
        assert (other.theta != THETA).any()


@pytest.mark.parametrize("name", [*STRATEGIES, IN_BLOCKS])
def test_the_model_stays_if_nobody_says_anything(name: str) -> None:
    strategy = STRATEGIES[name.removesuffix(" in blocks")]

    ends = play(strategy, draw_up(name), [silent_input(seed) for seed in range(3)])

    for end in ends:
        np.testing.assert_array_equal(end.theta, NOTHING if strategy.repeats else THETA)


def test_in_blocks_its_signs_are_drawn_from_the_clients_secret_and_its_factor_is_zero() -> None:
    """If all signs agree everybody knows everybody's: pluses alone would tell that it has nothing to say."""
    parameters = replace(setting(clients=3, rho=0.5, q=3), block=4)
    marks = np.zeros(parameters.blocks, np.uint32)
    marks[:30] = 1
    drawn = []
    for seed in (0, 0, 1):
        mine = STRATEGIES["sec-union"].begin(parameters, silent_input(seed))
        assert not mine.contribute("union")[0].any(), "it chooses no block"
        absorb(mine, "union", [marks], 3)
        signs, factor, _ = mine.contribute(SIGNS.name)
        assert int(factor[0]) == 0
        drawn.append(signs)
    first, again, other = drawn

    np.testing.assert_array_equal(first, again)
    assert (first != other).any()
    assert 30 < np.count_nonzero(first) < 90
