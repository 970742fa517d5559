import math
import struct
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hubbub.errors import ConfigurationError
from hubbub.protocol.aggregate import FactorBounds, pack, unpack

BOUNDS = FactorBounds(kappa=4.0, first=0.1, floor=0.001)
means = st.floats(0, 1e6, allow_subnormal=True)


def test_the_first_round_has_a_bound_of_its_own() -> None:
    assert BOUNDS.clamp(0.05, ()).factor == 0.05
    assert BOUNDS.clamp(16.0, ()).factor == 0.1


@pytest.mark.parametrize(
    ("history", "bound"),
    [
        ((0.02,), 0.08),
        ((0.02, 0.05), 0.08),  # Of two, the lower one.
        ((0.05, 0.01, 0.02), 0.08),
        ((0.05, 0.01, 0.03, 0.02), 0.08),
        ((0.0002, 0.0001, 0.0002), 0.001),  # The floor.
    ],
)
def test_a_later_one_is_bounded_by_the_lower_median_of_those_before(
    history: tuple[float, ...], bound: float
) -> None:
    clamped = BOUNDS.clamp(1.0, history)

    assert clamped.factor == bound
    assert clamped.scale == bound
    assert clamped.history == (*history, bound)
    below = math.nextafter(bound, 0)
    assert (BOUNDS.clamp(below, history).factor, BOUNDS.clamp(below, history).scale) == (below, 1.0)


def test_a_round_that_moves_nothing_does_not_count() -> None:
    """Otherwise rounds of zeros would bring the median down, and freeze the model."""
    assert BOUNDS.clamp(0.0, ()).history == ()
    assert BOUNDS.clamp(0.0, (0.02,)).history == (0.02,)
    assert BOUNDS.clamp(0.0, (0.02,)).scale == 1.0


def test_a_client_that_pushes_in_every_round_raises_the_bound_slowly() -> None:
    """What was clamped counts as clamped, so that the bound grows κ-fold with every doubling of the rounds."""
    history: tuple[float, ...] = ()
    for _ in range(64):
        history = BOUNDS.clamp(16.0, history).history

    assert [history[place - 1] for place in (1, 2, 4, 8, 16, 32, 64)] == pytest.approx(
        [0.1, 0.4, 1.6, 6.4, 16, 16, 16]
    )


@given(mean=means, history=st.lists(means.filter(bool), max_size=9).map(tuple))
def test_the_scale_is_what_was_applied_of_the_mean(mean: float, history: tuple[float, ...]) -> None:
    clamped = BOUNDS.clamp(mean, history)

    assert clamped.factor <= mean
    assert 0 <= clamped.scale <= 1
    assert math.isclose(Fraction(clamped.scale) * Fraction(mean), clamped.factor, rel_tol=1e-15, abs_tol=1e-300)


@pytest.mark.parametrize(
    ("kappa", "first", "floor", "word"),
    [
        (0.5, 0.1, 0.001, "kappa is 0.5"),
        (math.nan, 0.1, 0.001, "kappa"),
        (math.inf, 0.1, 0.001, "kappa"),
        (4.0, 0.0, 0.001, "first_factor_bound is 0.0"),
        (4.0, math.inf, 0.001, "first_factor_bound"),
        (4.0, math.nan, 0.001, "first_factor_bound"),
        (4.0, 0.1, 0.0, "factor_floor is 0.0"),
        (4.0, 0.1, math.nan, "factor_floor"),
        (4.0, 0.1, 0.2, "the floor at most the first bound"),
    ],
)
def test_bounds_that_bound_nothing_are_refused(kappa: float, first: float, floor: float, word: str) -> None:
    with pytest.raises(ConfigurationError, match=word):
        FactorBounds(kappa, first, floor)


def test_a_history_is_packed_as_little_endian_doubles_and_zeros() -> None:
    packed = pack((0.1, 5e-324), 4)

    assert packed == struct.pack("<4d", 0.1, 5e-324, 0, 0)
    assert unpack(packed) == (0.1, 5e-324)
    assert unpack(b"") == ()


def test_what_was_clamped_does_not_print() -> None:
    assert "0.0625" not in repr(BOUNDS.clamp(0.0625, (0.0625,)))
