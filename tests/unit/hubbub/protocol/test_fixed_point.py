import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hubbub.errors import BadUpdate, ConfigurationError, LocalError
from hubbub.protocol.fixed_point import FixedPoint, fraction_bits

positive = st.floats(min_value=1e-30, max_value=1e30, allow_nan=False)


def largest_sum(a: int, clients: int, alpha_max: float) -> int:
    return clients * math.floor(Fraction(2) ** a * Fraction(alpha_max))


@given(clients=st.integers(1, 10_000), alpha_max=positive, modulus_bits=st.integers(14, 32))
def test_fraction_bits_is_the_largest_that_cannot_overflow(
    clients: int, alpha_max: float, modulus_bits: int
) -> None:
    a = fraction_bits(clients, alpha_max, modulus_bits)

    assert largest_sum(a, clients, alpha_max) < 2**modulus_bits
    assert largest_sum(a + 1, clients, alpha_max) >= 2**modulus_bits


@pytest.mark.parametrize(
    ("clients", "alpha_max", "modulus_bits", "a"),
    [
        (5, 16.0, 32, 25),
        (1, 1.0, 32, 31),
        (1, 1.5, 1, 0),
        (1, 2.0, 32, 30),
        (2, 1.0, 32, 30),
        (5, 2.0**40, 32, -11),
        (3, 0.1, 32, 33),
    ],
)
def test_fraction_bits_of_known_cases(clients: int, alpha_max: float, modulus_bits: int, a: int) -> None:
    assert fraction_bits(clients, alpha_max, modulus_bits) == a


def test_rings_bounds_and_cohorts_that_cannot_be_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="use more bits"):
        fraction_bits(2**8, 1.0, 8)
    for alpha_max in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ConfigurationError, match="alpha_max"):
            FixedPoint.for_cohort(5, alpha_max)
    for modulus_bits in (0, 33):
        with pytest.raises(ConfigurationError, match="from 1 to 32"):
            fraction_bits(5, 16.0, modulus_bits)
    with pytest.raises(ConfigurationError, match="at least one client"):
        fraction_bits(0, 16.0)
    for a in (28, -5):
        with pytest.raises(ConfigurationError, match="not between 1"):
            FixedPoint(a, 32, 16.0)


@given(alpha=st.floats(0, 16))
def test_factor_comes_back_rounded_down_by_less_than_one_step(alpha: float) -> None:
    point = FixedPoint.for_cohort(5, 16.0)

    returned = point.from_ring(point.to_ring(alpha))

    assert 0 <= alpha - returned < 2.0**-25


@given(alpha=st.floats(0, allow_infinity=False), clients=st.integers(1, 1000), alpha_max=positive)
def test_conversion_is_the_exact_floor_after_clipping(alpha: float, clients: int, alpha_max: float) -> None:
    point = FixedPoint.for_cohort(clients, alpha_max)

    exact = math.floor(Fraction(2) ** point.fraction_bits * min(Fraction(alpha), Fraction(alpha_max)))

    assert point.to_ring(alpha) == exact


def test_factor_that_is_no_length_and_value_outside_the_ring_are_refused() -> None:
    point = FixedPoint.for_cohort(5, 16.0)
    for alpha in (-1e-9, math.nan, math.inf, -math.inf):
        with pytest.raises(BadUpdate, match="scaling factor"):
            point.to_ring(alpha)
    for value in (-1, 2**32):
        with pytest.raises(LocalError, match="no residue"):
            point.from_ring(value)
