import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hubbub.errors import BadUpdate, ConfigurationError
from hubbub.protocol.compression import accumulate_error, count_kept, top_binary, top_k
from hubbub.protocol.packing import BLOCK

# Few distinct values, so that ties and zeros are the rule.
coarse = st.sampled_from([0.0, -0.0, 1.0, -1.0, 2.0, -2.0])
fine = st.floats(-(2.0**60), 2.0**60, width=32)
vectors = st.lists(coarse, min_size=1, max_size=40) | st.lists(fine, min_size=1, max_size=40)


def as_update(values: list[float]) -> np.typing.NDArray[np.float32]:
    return np.array(values, dtype=np.float32)


def test_kept_is_exact_for_the_decimal_that_was_written_and_never_none() -> None:
    for n, rho, k in (
        *((100, 0.29, 29), (61_706, 0.1, 6170), (1_756_426, 0.1, 175_642)),
        *((10, 1.0, 10), (1, 1, 1), (10**8, 0.07, 7 * 10**6)),
    ):
        assert count_kept(n, rho) == k, (n, rho)
    assert count_kept(100, np.float64(0.29)) == 29, "the same decimal"
    with pytest.raises(ConfigurationError, match="larger rho"):
        count_kept(9, 0.1)
    for rho in (0.0, -0.1, 1.01, math.nan, math.inf):
        with pytest.raises(ConfigurationError, match="above 0 and at most 1"):
            count_kept(100, rho)


@given(values=vectors, data=st.data())
def test_top_k_is_the_head_of_a_stable_sort(values: list[float], data: st.DataObject) -> None:
    x = as_update(values)
    k = data.draw(st.integers(1, len(values)))

    expected = sorted(sorted(range(len(values)), key=lambda i: -abs(float(x[i])))[:k])

    assert top_k(x, k).tolist() == expected


def test_ties_go_to_the_lower_index_and_no_other_number_can_be_kept() -> None:
    assert top_k(as_update([1, -3, 3, 2, -3, 3]), 3).tolist() == [1, 2, 4]
    assert top_k(np.ones(10**6, dtype=np.float32), 1000).tolist() == list(range(1000))
    for k in (0, 4):
        with pytest.raises(ConfigurationError, match=f"keep {k} of 3"):
            top_k(as_update([1, 2, 3]), k)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("at", [0, BLOCK, BLOCK + 9])
def test_update_with_nan_or_infinity_is_refused_wherever_it_is(bad: float, at: int) -> None:
    x = np.zeros(BLOCK + 10, dtype=np.float32)
    x[at] = bad

    with pytest.raises(BadUpdate, match="NaN or infinity"):
        top_binary(x, 5)


@given(values=vectors, data=st.data())
def test_top_binary_keeps_the_signs_of_the_largest_and_the_norm(values: list[float], data: st.DataObject) -> None:
    x = as_update(values)
    k = data.draw(st.integers(1, len(values)))

    coded = top_binary(x, k)

    kept = set(top_k(x, k).tolist())
    exact = [float(value) for value in x]
    assert coded.signs.tolist() == [(v > 0) - (v < 0) if i in kept else 0 for i, v in enumerate(exact)]
    norm = coded.alpha * math.sqrt(np.count_nonzero(coded.signs))
    assert norm == pytest.approx(math.sqrt(math.fsum(v * v for v in exact)), rel=1e-12)


def test_factor_counts_only_the_signs_that_are_not_zero_and_does_not_overflow() -> None:
    coded = top_binary(as_update([3, 0, -4, 0]), 3)
    assert coded.signs.tolist() == [1, 0, -1, 0]
    assert coded.alpha == pytest.approx(5 / math.sqrt(2))
    nothing = top_binary(np.zeros(5, dtype=np.float32), 2)
    assert (nothing.alpha, nothing.signs.tolist()) == (0.0, [0] * 5)
    large = top_binary(np.full(BLOCK + 3, 3e38, dtype=np.float32), 1)
    assert large.alpha == pytest.approx(float(np.float32(3e38)) * math.sqrt(BLOCK + 3), rel=1e-12)


def test_error_is_what_was_not_sent_and_joins_from_slices() -> None:
    x = as_update([0.5, -2.0, 0.25, 1.0])

    error = accumulate_error(x, 1.5, np.array([0, -1, 0, 1], dtype=np.int8))

    assert error.tolist() == [0.5, -0.5, 0.25, -0.5]
    assert error.dtype == np.float32
    assert x.tolist() == [0.5, -2.0, 0.25, 1.0]
    x = np.random.default_rng(1).normal(size=1000).astype(np.float32)
    coded = top_binary(x, 100)

    slices = [accumulate_error(x[a : a + 300], coded.alpha, coded.signs[a : a + 300]) for a in range(0, 1000, 300)]

    assert np.array_equal(np.concatenate(slices), accumulate_error(x, coded.alpha, coded.signs))


def test_the_mean_rule_is_the_mean_magnitude_of_the_chosen_entries() -> None:
    x = np.array([4, -2, 1, 0.5, 0, 0], dtype=np.float32)

    assert top_binary(x, 2, rule="mean").alpha == 3.0
    assert top_binary(x, 2).alpha == pytest.approx(math.sqrt((16 + 4 + 1 + 0.25) / 2))
    assert top_binary(x, 6, rule="mean").alpha == 7.5 / 4, "zeros are not chosen"
    assert top_binary(np.zeros(6, np.float32), 2, rule="mean").alpha == 0.0
    np.testing.assert_array_equal(top_binary(x, 2, rule="mean").signs, top_binary(x, 2).signs)
