"""Blocks of indices, against a slow computation with plain Python numbers."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hubbub.errors import BadUpdate, ConfigurationError
from hubbub.protocol import unions
from support.plain_federation import choose_blocks

SMALL = st.lists(st.integers(-4, 4), min_size=1, max_size=60)


@given(SMALL, st.integers(1, 20))
def test_a_block_has_the_sum_of_its_squares(values: list[int], block: int) -> None:
    x = np.array(values, np.float32)

    found = unions.squared_norms(x, block)

    expected = [sum(v * v for v in values[start : start + block]) for start in range(0, len(values), block)]
    assert found.tolist() == expected
    assert unions.count_blocks(x.size, block) == len(expected)


@pytest.mark.parametrize("block", [2, 3, 16, 1000, 1024])
def test_norms_are_exact_over_many_stretches(block: int) -> None:
    """More than are worked on at once, with a last block that is shorter."""
    x = np.random.default_rng(1).integers(-8, 9, 3 * 2**16 + 5).astype(np.float32)

    expected = [int((x[start : start + block].astype(np.int64) ** 2).sum()) for start in range(0, x.size, block)]

    assert unions.squared_norms(x, block).tolist() == expected


@given(SMALL, st.integers(1, 20), st.data())
def test_the_largest_blocks_or_the_lower_ones_are_chosen(
    values: list[int], block: int, data: st.DataObject
) -> None:
    x = np.array(values, np.float32)
    count = data.draw(st.integers(1, unions.count_blocks(x.size, block)))

    chosen = unions.choose_blocks(x, block, count)

    assert np.flatnonzero(chosen).tolist() == choose_blocks(x, block, count)
    assert set(chosen.tolist()) <= {0, 1}


def test_a_block_of_zeros_is_never_chosen() -> None:
    x = np.zeros(20, np.float32)
    assert not unions.choose_blocks(x, 4, 5).any()

    x[9] = np.float32(1e-45)  # The smallest float32: its square is no float32, and not lost all the same.
    assert np.flatnonzero(unions.choose_blocks(x, 4, 5)).tolist() == [2]


def test_the_largest_floats_do_not_overflow_and_what_is_no_number_is_refused() -> None:
    x = np.array([3e38, 3e38, 3e38, -3e38, 3e38], np.float32)

    assert unions.choose_blocks(x, 2, 1).tolist() == [1, 0, 0]
    for value in (np.nan, np.inf):
        with pytest.raises(BadUpdate, match="NaN or infinity"):
            unions.choose_blocks(np.array([1, value, 3], np.float32), 2, 1)


@pytest.mark.parametrize(
    ("active", "expected"), [([], []), ([0], [0, 1, 2, 3]), ([0, 2], [0, 1, 2, 3, 8, 9]), ([2], [8, 9])]
)
def test_v_is_every_index_of_every_active_block(active: list[int], expected: list[int]) -> None:
    found = unions.indices_in(np.array(active, np.int64), 4, 10)

    assert found.tolist() == expected
    assert found.dtype == np.int64


def test_everybody_speaks_at_every_index_and_a_zero_is_a_plus() -> None:
    x = np.array([5, -0.5, 0, -0.0, 2], np.float32)

    spoken = unions.speak(x, np.array([0, 1, 2, 3], np.int64))

    assert spoken.tolist() == [1, -1, 1, 1]
    assert spoken.dtype == np.int8
    assert unions.to_ring(spoken).tolist() == [1, 0, 1, 1]


def test_alpha_is_over_v_alone() -> None:
    x = np.array([3, 100, -4, 0], np.float32)
    support = np.array([0, 2], np.int64)

    assert unions.scale(x, support) == pytest.approx(math.sqrt(12.5))
    assert unions.scale(x, support, rule="mean") == 3.5
    assert unions.scale(x, support[:0]) == unions.scale(np.zeros(4, np.float32), support) == 0.0


@pytest.mark.parametrize("members", [2, 3, 5])
def test_the_number_of_pluses_tells_the_sum_of_the_members_signs(members: int) -> None:
    """Also where fewer than the cohort take part: the ring is the cohort's, the sum the members'."""
    drawn = np.random.default_rng(members).choice(np.array([-1, 1], np.int8), size=(members, 200))
    total = np.zeros(200, np.uint32)
    for spoken in drawn:
        total = (total + unions.to_ring(spoken)) % np.uint32(unions.modulus(5))

    found = unions.from_ring(total, members)

    np.testing.assert_array_equal(found, drawn.sum(axis=0))
    assert found.dtype == np.int32
    assert unions.from_ring(np.array([0, 3, 4], np.uint32), 3).tolist() == [-3, 3, 5], "more than three can be"
    assert unions.from_ring(np.array([], np.uint32), 3).size == 0


def test_a_block_has_1_to_1024_indices_and_a_client_can_choose_a_whole_one() -> None:
    unions.check_block(16, 16)

    for block in (0, -1, 1025):
        with pytest.raises(ConfigurationError, match=f"block is {block}; .* from 1 to 1024"):
            unions.check_block(block, 10_000)
    with pytest.raises(ConfigurationError, match="keeps 15 indices, less than one block of 16: take a larger rho"):
        unions.check_block(16, 15)
    assert unions.count_blocks(61_706, 1) == 61_706
    assert unions.count_blocks(61_706, 16) == math.ceil(Fraction(61_706, 16)) == 3_857
