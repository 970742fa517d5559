from collections import Counter
from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hubbub.crypto.stream import AesCtrStream
from hubbub.errors import ConfigurationError
from hubbub.protocol import shamir


def test_a_polynomial_worked_out_by_hand() -> None:
    """f(x) = 1234 + 166·x + 94·x² mod 1613, and what its values at 1, 3 and 5 come to at 0."""
    shares = [shamir.evaluate([1234, 166, 94], x, 1613) for x in range(1, 7)]

    assert shares == [1494, 329, 965, 176, 1188, 775]
    assert shamir.interpolate({1: 1494, 3: 965, 5: 1188}, 1613) == 1234


@pytest.mark.parametrize(("at_least", "prime"), [(0, 2), (3, 3), (11, 11), (8, 11), (202, 211), (8193, 8209)])
def test_the_smallest_prime_from_a_number_on(at_least: int, prime: int) -> None:
    assert shamir.find_prime(at_least) == prime


@given(
    values=st.lists(st.integers(0, 10), min_size=1, max_size=50),
    sizes=st.integers(2, 6).flatmap(lambda n: st.tuples(st.just(n), st.integers(1, n))),
    key=st.binary(min_size=32, max_size=32),
)
def test_any_t_shares_give_the_sum_of_what_was_dealt(
    values: list[int], sizes: tuple[int, int], key: bytes
) -> None:
    parties, threshold = sizes
    stream, secret = AesCtrStream(key), np.array(values, dtype=np.uint32)
    first, second = (shamir.deal(secret, 11, parties, threshold, stream) for _ in range(2))
    totals = [(one + other) % 11 for one, other in zip(first, second, strict=True)]

    for some in combinations(range(parties), threshold):
        found = shamir.recover({place + 1: totals[place] for place in some}, 11)
        assert found.tolist() == [2 * value % 11 for value in values]


def test_fewer_than_t_shares_are_uniform_whatever_was_dealt() -> None:
    """All coefficients mod 5 of a polynomial of degree 2: two of its values take every pair equally often."""
    for secret in range(5):
        seen = Counter(
            (shamir.evaluate([secret, a, b], 2, 5), shamir.evaluate([secret, a, b], 3, 5))
            for a, b in product(range(5), repeat=2)
        )
        assert set(seen.values()) == {1}
        assert len(seen) == 25


@pytest.mark.parametrize(("threshold", "parties", "prime"), [(0, 3, 11), (4, 3, 11), (2, 11, 11)])
def test_a_threshold_that_does_not_fit_is_refused(threshold: int, parties: int, prime: int) -> None:
    with pytest.raises(ConfigurationError, match="does not fit"):
        shamir.deal(np.zeros(1, np.uint32), prime, parties, threshold, AesCtrStream(bytes(32)))


@given(
    secrets=st.lists(st.integers(0, 2**255 - 1), max_size=4),
    sizes=st.integers(2, 6).flatmap(lambda n: st.tuples(st.just(n), st.integers(1, n))),
    key=st.binary(min_size=32, max_size=32),
)
def test_any_t_shares_give_numbers_of_255_bits(secrets: list[int], sizes: tuple[int, int], key: bytes) -> None:
    parties, threshold = sizes
    stream = AesCtrStream(key)
    dealt = [shamir.deal_number(secret, parties, threshold, stream) for secret in secrets]
    assert all(0 <= share < 2**256 for shares in dealt for share in shares)

    for some in combinations(range(parties), threshold):
        held = {place + 1: [shares[place] for shares in dealt] for place in some}
        assert shamir.recover_numbers(held) == secrets


def test_the_field_of_numbers_is_that_of_the_largest_prime_of_256_bits() -> None:
    gmpy2 = pytest.importorskip("gmpy2")

    assert gmpy2.is_prime(shamir.LONG_PRIME)
    assert not any(gmpy2.is_prime(larger) for larger in range(shamir.LONG_PRIME + 1, 2**256))
