import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hubbub.errors import BadUpdate, ConfigurationError, LocalError
from hubbub.protocol.fixed_point import FixedPoint, SignedFixedPoint, fraction_bits

positive = st.floats(min_value=1e-30, max_value=1e30, allow_nan=False)


def largest_sum(a: int, clients: int, alpha_max: float) -> int:
    return clients * math.floor(Fraction(2) ** a * Fraction(alpha_max))


@given(clients=st.integers(1, 10_000), alpha_max=positive, modulus_bits=st.integers(14, 32))
def test_fraction_bits_are_the_most_without_overflow(clients: int, alpha_max: float, modulus_bits: int) -> None:
    a = fraction_bits(clients, alpha_max, modulus_bits)

    assert largest_sum(a, clients, alpha_max) < 2**modulus_bits
    assert largest_sum(a + 1, clients, alpha_max) >= 2**modulus_bits


def test_fraction_bits_of_known_cases_and_of_rings_bounds_and_cohorts_that_cannot_be() -> None:
    for clients, alpha_max, modulus_bits, a in (
        *((5, 16.0, 32, 25), (1, 1.0, 32, 31), (1, 1.5, 1, 0), (1, 2.0, 32, 30), (2, 1.0, 32, 30)),
        *((5, 2.0**40, 32, -11), (3, 0.1, 32, 33)),
    ):
        assert fraction_bits(clients, alpha_max, modulus_bits) == a
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


FIVE = SignedFixedPoint.for_cohort(5, 1000.0)


@given(
    clients=st.integers(2, 4096),
    largest=st.sampled_from([1.0, 16.0, 1000.0, 0.001, 2.0**40, 1 / 3]) | st.floats(1e-6, 1e12),
    bits=st.integers(16, 32),
)
@example(clients=2, largest=1.0, bits=32)
@example(clients=4096, largest=2.0**40, bits=16)
def test_units_are_the_finest_without_overflow(clients: int, largest: float, bits: int) -> None:
    point = SignedFixedPoint.for_cohort(clients, largest, bits)

    assert point.largest_units == math.floor(Fraction(largest) / Fraction(float(point.unit)))
    assert clients * point.largest_units < 2 ** (bits - 1)
    assert clients * math.floor(2 * Fraction(largest) / Fraction(float(point.unit))) >= 2 ** (bits - 1)


@given(
    clients=st.integers(2, 200),
    largest=st.floats(1e-6, 1e12),
    bits=st.integers(9, 32),
    sign=st.sampled_from([-1, 1]),
)
def test_the_sum_of_all_largest_numbers_is_exact(clients: int, largest: float, bits: int, sign: int) -> None:
    point = SignedFixedPoint.for_cohort(clients, largest, bits)
    units = point.to_units(np.array([sign * largest]))

    total = np.mod(clients * point.to_ring(units).astype(np.uint64), point.modulus).astype(np.uint32)

    assert point.from_ring(total).tolist() == [sign * clients * point.largest_units]
    assert point.are_sums_possible(point.from_ring(total), clients)


@given(st.lists(st.floats(-1000, 1000), max_size=30))
def test_a_number_comes_back_to_within_half_a_unit(numbers: list[float]) -> None:
    values = np.array(numbers)

    back = FIVE.to_reals(FIVE.from_ring(FIVE.to_ring(FIVE.to_units(values))))

    assert (np.abs(back - values) <= FIVE.unit / 2).all()


def test_multiples_of_the_unit_come_back_and_half_way_goes_to_the_even_unit() -> None:
    values = np.array([0.0, FIVE.unit, -FIVE.unit, 1.0, -999.0, 1000.0, -1000.0, 0.5])
    halves = np.array([0.5, 1.5, 2.5, -0.5, -1.5]) * FIVE.unit

    assert FIVE.to_reals(FIVE.to_units(values)).tolist() == values.tolist()
    assert FIVE.to_units(halves).tolist() == [0, 2, 2, 0, -2], "rounding has no direction"


def test_what_is_beyond_the_range_is_clipped_and_what_is_no_number_is_nothing() -> None:
    values = np.array([1000.5, -np.inf, np.inf, np.nan, 1000.0, -3.0], np.float32)

    assert FIVE.to_reals(FIVE.to_units(values)).tolist() == [1000.0, -1000.0, 1000.0, 0.0, 1000.0, -3.0]
    assert FIVE.outside(values).tolist() == [True, True, True, True, False, False]


def test_a_range_wider_than_the_ring_rounds_whole_numbers_and_none_out_of_the_range() -> None:
    """⌊2^a·largest⌋ is less than 2^a·largest, which is nearer to the unit above."""
    point = SignedFixedPoint.for_cohort(2, 1.9, modulus_bits=3)
    assert (float(point.unit), int(point.largest_units)) == (1.0, 1)
    assert point.to_units(np.array([1.9, -1.9])).tolist() == [1, -1]
    point = SignedFixedPoint.for_cohort(4, 2.0**34)

    assert point.unit == 64.0
    assert point.to_reals(point.to_units(np.array([2.0**34, 100.0]))).tolist() == [2.0**34, 128.0]


def test_rings_ranges_and_cohorts_that_cannot_be_are_refused() -> None:
    for bits in (1, 0, 33):
        with pytest.raises(ConfigurationError, match=f"numbers take {bits} bits; choose from 2 to 32"):
            SignedFixedPoint.for_cohort(2, 1.0, bits)
    for largest in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(ConfigurationError, match="finite number above 0"):
            SignedFixedPoint.for_cohort(2, largest)
    with pytest.raises(ConfigurationError, match="without overflow; use more bits"):
        SignedFixedPoint.for_cohort(5, 1.0, modulus_bits=3)
    with pytest.raises(LocalError, match="16 or more"):
        SignedFixedPoint.for_cohort(2, 1.0, modulus_bits=4).from_ring(np.array([16], np.uint32))


@pytest.mark.parametrize("sign", [-1, 1])
def test_a_sum_that_its_summands_cannot_have_is_told_apart_for_all_or_one_by_one(sign: int) -> None:
    most, counts = FIVE.largest_units, np.array([3, 0], np.uint32)

    assert FIVE.are_sums_possible(np.array([3 * sign * most, 0]), 3)
    assert FIVE.are_sums_possible(np.array([3 * sign * most, 0]), counts)
    for summands in (2, np.array([2, 5], np.uint32), counts):
        assert not FIVE.are_sums_possible(np.array([3 * sign * most, sign]), summands)
