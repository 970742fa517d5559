import math

import numpy as np
import pytest

from hubbub.errors import LocalError
from hubbub.protocol.aggregate import apply_sum, are_sums_possible
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


def test_slices_step_like_the_whole() -> None:
    generator = np.random.default_rng(4)
    theta = generator.normal(size=1000).astype(np.float32)
    signs_sum = generator.integers(-5, 6, 1000).astype(np.int32)

    slices = [apply_sum(theta[a : a + 77], signs_sum[a : a + 77], 0.7, 5) for a in range(0, 1000, 77)]

    assert np.concatenate(slices).tobytes() == apply_sum(theta, signs_sum, 0.7, 5).tobytes()


def test_steps_that_cannot_be_are_refused() -> None:
    theta, signs_sum = np.zeros(3, dtype=np.float32), np.zeros(3, dtype=np.int32)
    with pytest.raises(LocalError, match="shape"):
        apply_sum(theta, signs_sum[:1], 1.0, 5)
    with pytest.raises(LocalError, match="float64"):
        apply_sum(np.zeros(3), signs_sum, 1.0, 5)  # type: ignore[arg-type] # on purpose
    for mean_factor in (math.nan, math.inf):
        with pytest.raises(LocalError, match="finite"):
            apply_sum(theta, signs_sum, mean_factor, 5)
    with pytest.raises(LocalError, match="at least one member"):
        apply_sum(theta, signs_sum, 1.0, 0)


@pytest.mark.parametrize(
    ("signs_sum", "factors_sum"),
    [([5, 0], 0), ([0, -5], 0), ([0, 0], 4 * POINT.to_ring(16.0) + 1), ([0, 0], -1)],
)
def test_sums_that_members_cannot_have_are_told_apart(signs_sum: list[int], factors_sum: int) -> None:
    assert are_sums_possible(np.array([4, -4], dtype=np.int32), 4 * POINT.to_ring(16.0), 4, POINT)
    assert not are_sums_possible(np.array(signs_sum, dtype=np.int32), factors_sum, 4, POINT)
