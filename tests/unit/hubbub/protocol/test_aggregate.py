import math
import struct
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hubbub.errors import ConfigurationError, LocalError
from hubbub.protocol.aggregate import FactorBounds, add_momentum, apply_sum, are_sums_possible, pack, unpack
from hubbub.protocol.fixed_point import FixedPoint

POINT = FixedPoint.for_cohort(5, 16.0)


def test_step_is_mean_factor_times_mean_sign() -> None:
    theta = np.array([1.0, 2.0, 3.0], dtype=np.float32)

    updated = apply_sum(theta, np.array([4, 0, -2], dtype=np.int32), mean_factor=2.0, members=4)

    assert updated.tolist() == [3.0, 2.0, 2.0]
    assert updated.dtype == np.float32
    assert theta.tolist() == [1.0, 2.0, 3.0]


@pytest.mark.parametrize("mean_factor", [0.1, 0.3, 0.7, 9.1])
@pytest.mark.parametrize("members", [3, 7, 100])
def test_bits_are_those_of_one_fixed_order_of_roundings(mean_factor: float, members: int) -> None:
    signs_sum = np.arange(-members, members + 1, dtype=np.int32)
    theta = np.full(signs_sum.size, 0.001, dtype=np.float32)

    updated = apply_sum(theta, signs_sum, mean_factor, members)

    scale = np.float32(mean_factor)
    means = [np.float32(d) / np.float32(members) for d in signs_sum]
    assert updated.tolist() == [float(mean * scale + np.float32(0.001)) for mean in means]


def test_slices_step_like_the_whole_and_steps_that_cannot_be_are_refused() -> None:
    generator = np.random.default_rng(4)
    theta = generator.normal(size=1000).astype(np.float32)
    signs_sum = generator.integers(-5, 6, 1000).astype(np.int32)

    slices = [apply_sum(theta[a : a + 77], signs_sum[a : a + 77], 0.7, 5) for a in range(0, 1000, 77)]

    assert np.concatenate(slices).tobytes() == apply_sum(theta, signs_sum, 0.7, 5).tobytes()
    with pytest.raises(LocalError, match="shape"):
        apply_sum(theta, signs_sum[:1], 1.0, 5)
    with pytest.raises(LocalError, match="float64"):
        apply_sum(theta.astype(np.float64), signs_sum, 1.0, 5)
    for mean_factor in (math.nan, math.inf):
        with pytest.raises(LocalError, match="finite"):
            apply_sum(theta, signs_sum, mean_factor, 5)
    with pytest.raises(LocalError, match="at least one member"):
        apply_sum(theta, signs_sum, 1.0, 0)


def test_with_momentum_a_model_moves_by_the_new_step_and_a_part_of_its_last_movement() -> None:
    theta, velocity, tenth = (np.array([value], dtype=np.float32) for value in (1.0, 0.3, 0.1))

    updated, moved = add_momentum(theta, theta + tenth, velocity, 0.9)

    step = np.float32(np.float32(1.0) + np.float32(0.1)) - np.float32(1.0)
    assert moved.tolist() == [float(np.float32(0.3) * np.float32(0.9) + step)]
    assert updated.tolist() == [float(np.float32(1.0) + moved[0])]
    assert (theta.tolist(), velocity.tolist()) == ([1.0], [float(np.float32(0.3))]), "they are not changed"
    assert updated.dtype == moved.dtype == np.float32


def test_a_velocity_ends_before_it_is_too_small_to_be_normal() -> None:
    """Threads differ in what they make of subnormal numbers, and clients must not."""
    theta = np.zeros(2, dtype=np.float32)
    velocity = np.array([1e-3, -1e-3], dtype=np.float32)
    for _ in range(400):
        _, velocity = add_momentum(theta, theta, velocity, 0.75)
        assert not ((velocity != 0) & (np.abs(velocity) < np.finfo(np.float32).tiny)).any()
    assert not velocity.any()


@pytest.mark.parametrize(
    ("signs_sum", "factors_sum"),
    [([5, 0], 0), ([0, -5], 0), ([0, 0], 4 * POINT.to_ring(16.0) + 1), ([0, 0], -1)],
)
def test_sums_that_members_cannot_have_are_told_apart(signs_sum: list[int], factors_sum: int) -> None:
    assert are_sums_possible(np.array([4, -4], dtype=np.int32), 4 * POINT.to_ring(16.0), 4, POINT)
    assert not are_sums_possible(np.array(signs_sum, dtype=np.int32), factors_sum, 4, POINT)


BOUNDS = FactorBounds(kappa=4.0, first=0.1, floor=0.001)
means = st.floats(0, 1e6, allow_subnormal=True)


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
def test_a_later_factor_is_bounded_by_the_lower_median(history: tuple[float, ...], bound: float) -> None:
    clamped = BOUNDS.clamp(1.0, history)

    assert clamped.factor == bound
    assert clamped.scale == bound
    assert clamped.history == (*history, bound)
    below = math.nextafter(bound, 0)
    assert (BOUNDS.clamp(below, history).factor, BOUNDS.clamp(below, history).scale) == (below, 1.0)


def test_the_first_round_has_a_bound_of_its_own_and_a_round_that_moves_nothing_does_not_count() -> None:
    """Otherwise rounds of zeros would bring the median down, and freeze the model."""
    assert BOUNDS.clamp(0.05, ()).factor == 0.05
    assert BOUNDS.clamp(16.0, ()).factor == 0.1
    assert BOUNDS.clamp(0.0, ()).history == ()
    assert BOUNDS.clamp(0.0, (0.02,)).history == (0.02,)
    assert BOUNDS.clamp(0.0, (0.02,)).scale == 1.0


def test_a_client_that_pushes_in_every_round_raises_the_bound_slowly() -> None:
    """A clamped factor counts as clamped, so that the bound grows κ-fold with every doubling of the rounds."""
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
        *((kappa, 0.1, 0.001, f"kappa is {kappa}") for kappa in (0.5, math.nan, math.inf)),
        *((4.0, first, 0.001, f"first_factor_bound is {first}") for first in (0.0, math.inf, math.nan)),
        *((4.0, 0.1, floor, f"factor_floor is {floor}") for floor in (0.0, math.nan)),
        (4.0, 0.1, 0.2, "the floor at most the first bound"),
    ],
)
def test_bounds_that_bound_nothing_are_refused(kappa: float, first: float, floor: float, word: str) -> None:
    with pytest.raises(ConfigurationError, match=word):
        FactorBounds(kappa, first, floor)


def test_a_history_is_packed_as_little_endian_doubles_and_zeros_and_does_not_print() -> None:
    packed = pack((0.1, 5e-324), 4)

    assert packed == struct.pack("<4d", 0.1, 5e-324, 0, 0)
    assert unpack(packed) == (0.1, 5e-324)
    assert unpack(b"") == ()
    assert "0.0625" not in repr(BOUNDS.clamp(0.0625, (0.0625,)))
