import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hubbub.errors import ConfigurationError, LocalError
from hubbub.protocol import signs
from hubbub.protocol.ring import word_type

LARGEST_COHORT = 2**31 - 1


@pytest.mark.parametrize(
    ("clients", "narrowest"), [(2, "u1"), (5, "u1"), (127, "u1"), (128, "u2"), (32_767, "u2"), (32_768, "u4")]
)
def test_every_value_of_a_cohort_goes_there_and_back_in_the_narrowest_type(clients: int, narrowest: str) -> None:
    values = list(range(-clients, clients + 1))

    residues = signs.to_ring(np.array(values, dtype=np.int32), clients)

    assert residues.tolist() == [value % (2 * clients + 1) for value in values]
    assert residues.dtype == narrowest
    assert signs.from_ring(residues, clients).tolist() == values
    assert signs.from_ring(residues.astype(np.uint32), clients).tolist() == values


@given(clients=st.integers(2, LARGEST_COHORT), data=st.data())
def test_any_value_of_any_cohort_goes_there_and_back(clients: int, data: st.DataObject) -> None:
    value = st.sampled_from([-clients, -1, 0, 1, clients]) | st.integers(-clients, clients)
    values = data.draw(st.lists(value, max_size=20))

    residues = signs.to_ring(np.array(values, dtype=np.int32), clients)

    assert signs.from_ring(residues, clients).tolist() == values
    assert residues.tolist() == [value % (2 * clients + 1) for value in values], "left as they were"


def test_what_is_outside_of_cohort_or_ring_is_refused() -> None:
    for value in (-3, 3):
        with pytest.raises(LocalError, match=r"outside \[-2, 2\]"):
            signs.to_ring(np.array([0, value], dtype=np.int8), 2)
    with pytest.raises(LocalError, match="outside"):
        signs.to_ring(np.array([-128], dtype=np.int8), 127)  # Its magnitude is no int8.
    with pytest.raises(LocalError, match="11 or more"):
        signs.from_ring(np.array([11], dtype=np.uint32), 5)
    assert signs.modulus(LARGEST_COHORT) == 2**32 - 1
    with pytest.raises(ConfigurationError, match="modulus"):
        signs.modulus(LARGEST_COHORT + 1)


# Without wrapping -------------------------------------------------------------------------------------------


@given(
    clients=st.integers(2, 127) | st.sampled_from([128, 32_767, 32_768]),
    columns=st.lists(st.lists(st.integers(-1, 1), min_size=2, max_size=8), max_size=20),
)
def test_digits_of_members_add_up_without_wrapping(clients: int, columns: list[list[int]]) -> None:
    members = min([clients, *map(len, columns)])
    inputs = np.array([column[:members] for column in columns], dtype=np.int8).reshape(-1, members).T

    digits = [signs.to_digits(x, clients) for x in inputs]
    total = np.zeros(inputs.shape[1], dtype=np.uint32)
    for each in digits:
        total += each

    assert all(each < signs.modulus(clients) for each in total.tolist())
    assert {each.dtype for each in digits} == {np.dtype(word_type(signs.modulus(clients)))}
    found = signs.from_digits(total, members)
    assert found.tolist() == inputs.sum(axis=0, dtype=np.int64).tolist()


@pytest.mark.parametrize(("clients", "members"), [(5, 3), (127, 2), (127, 126)])
def test_sum_of_digits_lies_within_the_members_exactly_if_they_can_have_it(clients: int, members: int) -> None:
    """Also where the narrow type wraps: so sums of signs are checked alike on both wires."""
    for total in range(signs.modulus(clients)):
        digits = np.array([total], dtype=word_type(signs.modulus(clients)))
        within = abs(int(signs.from_digits(digits, members)[0])) <= members

        assert within is (total <= 2 * members)


@pytest.mark.parametrize("value", [-128, -2, 2, 127])
def test_what_is_no_sign_makes_no_digit(value: int) -> None:
    with pytest.raises(LocalError, match="-1, 0 or 1"):
        signs.to_digits(np.array([0, value], dtype=np.int8), 127)
