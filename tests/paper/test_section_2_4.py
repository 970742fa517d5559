"""Section 2.4, fixed-point representation; its parameters are chosen in section 3.2.4."""

import math

import pytest

from hubbub.protocol.fixed_point import FixedPoint


@pytest.mark.parametrize("x", [0.0, 2**-26, 0.1, 1.0, math.pi, 15.999, 16.0])
def test_q_is_the_floor_of_the_scaled_value(x: float) -> None:
    """2.4, Eq. 4: "Q(x) = ⌊2^a·x⌋ mod 2^λ"."""
    point = FixedPoint.for_cohort(5, 16.0)

    assert point.to_ring(x) == math.floor(2**point.fraction_bits * x) % 2**32


@pytest.mark.parametrize("clients", [2, 5, 10, 100])
@pytest.mark.parametrize("alpha_max", [0.3, 1.0, 16.0, 1000.0])
def test_sum_of_factors_does_not_overflow(clients: int, alpha_max: float) -> None:
    """3.2.4: "we must account for potential overflows when summing together the C scalar factors".

    The paper leaves open how large a factor may be; here it is clipped at alpha_max.
    """
    point = FixedPoint.for_cohort(clients, alpha_max)

    total = clients * point.to_ring(10 * alpha_max)

    assert total < 2**32
    assert point.from_ring(total) == pytest.approx(clients * alpha_max, rel=1e-7)
