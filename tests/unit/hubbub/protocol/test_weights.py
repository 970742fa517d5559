"""hubbub.protocol.weights: the secure sum of the clients' numbers of samples."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hubbub.crypto.stream import AesCtrStream
from hubbub.protocol import weights

NUMBERS = st.lists(st.integers(-5, 2**41), min_size=2, max_size=9)


def sums_of(numbers: list[int], seed: int) -> list[int]:
    """Each client deals its number, and adds what it was dealt."""
    stream = AesCtrStream(seed.to_bytes(32, "big"))
    dealt = [weights.deal(number, len(numbers), stream) for number in numbers]
    return [weights.add(shares) for shares in zip(*dealt, strict=True)]


@given(numbers=NUMBERS, most=st.integers(1, 2**40), seed=st.integers(0, 2**64))
def test_the_clients_sums_add_up_to_the_numbers_they_count_as(numbers: list[int], most: int, seed: int) -> None:
    counted = [weights.cap(number, most) for number in numbers]
    total = weights.total(sums_of(counted, seed), clients=len(numbers), max_samples=most)
    assert total == sum(counted)
    assert sum(weights.weight_of(each, total) for each in counted) == pytest.approx(1)


@given(numbers=NUMBERS, false=st.integers(0, 2**64 - 1), seed=st.integers(0, 2**64))
def test_a_false_sum_is_no_more_than_a_lie_about_a_number(numbers: list[int], false: int, seed: int) -> None:
    most, clients = 1_000, len(numbers)
    sums = sums_of([weights.cap(number, most) for number in numbers], seed)
    total = weights.total([*sums[:-1], false], clients=clients, max_samples=most)
    assert clients <= total <= clients * most
    assert all(0 < weights.weight_of(weights.cap(number, most), total) <= 1 for number in numbers)


def test_a_share_alone_is_the_streams_whatever_the_number() -> None:
    """All but the last are drawn before the number is looked at."""
    first, second = (weights.deal(number, 3, AesCtrStream(bytes(32))) for number in (1, 40))
    assert first[:2] == second[:2]
    assert first[2] != second[2]
