"""The library call: exact sums, refusals of what would be added as something else, and nothing that prints."""

import doctest
import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import ArrayLike, NDArray

from hubbub import secure_sum
from hubbub.crypto.stream import AesCtrStream
from hubbub.errors import ConfigurationError, DataError, RejectReason
from hubbub.secure_sum import SecureSum, Share
from support.refusals import refusing

ASK = SecureSum(clients=3, servers=3, length=4, largest=100.0)
INPUTS = ([1.0, -2.5, 0.0, 100.0], [0.0, 2.5, 0.0, 100.0], [-7.0, 0.125, 0.0, 100.0])


def deal(ask: SecureSum, inputs: Sequence[ArrayLike]) -> list[tuple[Share, ...]]:
    """All shares, by server."""
    return list(zip(*(ask.share(values) for values in inputs), strict=True))


def run(ask: SecureSum, inputs: Sequence[ArrayLike]) -> NDArray[np.float64]:
    return ask.open([ask.add(shares) for shares in deal(ask, inputs)])


def test_the_example_in_its_docstring_is_true() -> None:
    found = doctest.testmod(secure_sum)

    assert (found.failed, found.attempted > 0) == (0, True)


@given(
    st.integers(2, 8).flatmap(
        lambda clients: st.lists(
            st.lists(st.integers(-(2**20), 2**20), min_size=3, max_size=3), min_size=clients, max_size=clients
        )
    ),
    st.integers(2, 4),
)
def test_whole_numbers_are_added_exactly(inputs: list[list[int]], servers: int) -> None:
    ask = SecureSum(clients=len(inputs), servers=servers, length=3, largest=2.0**20)

    assert run(ask, inputs).tolist() == [float(sum(column)) for column in zip(*inputs, strict=True)]


@pytest.mark.parametrize("sign", [-1, 1])
@pytest.mark.parametrize("bits", [4, 16, 32])
def test_the_largest_numbers_of_all_clients_do_not_overflow(sign: int, bits: int) -> None:
    ask = SecureSum(clients=7, servers=2, length=2, largest=1.0, modulus_bits=bits)

    assert run(ask, [[sign, 0]] * 7).tolist() == [7.0 * sign, 0.0]


def test_other_numbers_are_rounded_to_a_unit_that_can_be_asked_for() -> None:
    ask = SecureSum(clients=4, servers=2, length=1, largest=1.0, modulus_bits=8)

    (total,) = run(ask, [[1 / 3]] * 4)

    assert ask.unit == 1 / 16
    assert total == 4 * round(16 / 3) / 16


def test_totals_are_of_those_who_were_added_in_any_order_and_can_be_added_again() -> None:
    first, rest = deal(ASK, INPUTS[:1]), deal(ASK, INPUTS[1:])
    totals = [ASK.add([ASK.add(one), ASK.add(two)]) for one, two in zip(first, rest, strict=True)]

    assert run(ASK, INPUTS).tolist() == [-6.0, 0.125, 0.0, 300.0]
    assert run(ASK, INPUTS[:2]).tolist() == [1.0, 0.0, 0.0, 200.0], "of fewer clients than were agreed on"
    assert ASK.open(totals).tolist() == ASK.open(totals[::-1]).tolist() == [-6.0, 0.125, 0.0, 300.0]


# What hides -----------------------------------------------------------------------------------------------


def residues(key: bytes | None, values: ArrayLike = INPUTS[0]) -> list[list[int]]:
    shares = ASK.share(values, None if key is None else AesCtrStream(key))
    return [share.residues.tolist() for share in shares]


def test_shares_follow_from_the_stream_and_all_but_one_are_the_same_whatever_is_shared() -> None:
    """The first S - 1 are the stream's, and tell nothing. Without a stream no share is repeated."""
    one, other = residues(bytes(32)), residues(bytes(32), INPUTS[1])

    assert one == residues(bytes(32)) != residues(bytes(31) + b"1")
    assert residues(None) != residues(None)
    assert one[:-1] == other[:-1]
    assert one[-1] != other[-1]


def test_a_share_does_not_print() -> None:
    (share, *_) = ASK.share(INPUTS[0])

    assert str(share) == repr(share) == "Share(<secret>, n=4, server 1, of 1 client)"
    assert not any(str(value) in f"{share}" for value in share.residues)


# What is refused -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [100.5, -101.0, np.inf, -np.inf, np.nan])
def test_a_number_beyond_the_range_and_a_vector_of_another_shape_are_refused(value: float) -> None:
    with pytest.raises(DataError, match=r"1 of 4 entries are not between -100\.0 and 100\.0") as caught:
        ASK.share([0.0, 0.0, value, 0.0])

    assert str(abs(value)) not in re.sub(r"100\.0", "", str(caught.value))
    for another_shape in ([value] * 3, [value] * 5, [[value] * 4], value):
        with pytest.raises(DataError, match="where 4 entries were agreed on"):
            ASK.share(another_shape)


def test_shares_that_make_no_sum_are_not_added_and_totals_that_make_none_are_not_opened() -> None:
    dealt = deal(ASK, INPUTS)
    one, two, three = (ASK.add(shares) for shares in dealt)
    longer = replace(ASK, length=5)
    strangers = [longer.add(shares) for shares in deal(longer, [[0.0] * 5])]

    for shares, complaint in (
        (ASK.share(INPUTS[0]), "for different servers"),
        # Their sum could overflow.
        ([*dealt[0], dealt[0][0]], "4 clients where 3 were agreed on"),
        ([], "no share to add"),
        (strangers[:1], "5 elements where 4 are shared"),
    ):
        with pytest.raises(DataError, match=complaint):
            ASK.add(shares)
    for totals, complaint in (
        ([one, two], "one total of each of the 3 servers"),
        ([one, two, two], "one total of each of the 3 servers"),
        ([one, two, three, three], "one total of each of the 3 servers"),
        ([one, two, ASK.add(dealt[2][:2])], "must agree on whom to add"),
        (strangers, "5 elements where 4 are shared"),
    ):
        with pytest.raises(DataError, match=complaint):
            ASK.open(totals)


def test_a_total_that_was_shifted_beyond_what_is_possible_is_refused() -> None:
    one, two, three = (ASK.add(shares) for shares in deal(ASK, [[0.0] * 4]))
    three.residues[1:2] += np.uint32(2**30)  # A slice wraps around, where a single number warns of it.

    with refusing(RejectReason.FALSE_SUM):
        ASK.open([one, two, three])


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"servers": 1}, "at least 2 servers"),
        ({"clients": 0}, "at least one client"),
        ({"length": 0}, "at least one entry"),
        ({"largest": 0.0}, "finite number above 0"),
        ({"modulus_bits": 33}, "from 2 to 32"),
        ({"clients": 100, "modulus_bits": 6}, "without overflow"),
        ({"indices": (1, 4)}, "lie between 0 and 3"),
        ({"indices": (-1,)}, "lie between 0 and 3"),
        ({"indices": (2, 1)}, "must ascend"),
        ({"indices": (1, 1)}, "must ascend"),
    ],
)
def test_an_agreement_that_cannot_be_is_refused(changes: dict[str, object], complaint: str) -> None:
    fields: dict[str, object] = {"clients": 3, "servers": 2, "length": 4, "largest": 1.0, **changes}

    with pytest.raises(ConfigurationError, match=complaint):
        SecureSum(**fields)  # type: ignore[arg-type]  # Wrong values, not wrong types.


# Sparse ------------------------------------------------------------------------------------------------------


def test_over_declared_indices_only_they_are_shared_and_the_rest_of_the_sum_is_zero() -> None:
    sparse = ASK.restricted_to([3, 0])

    assert sparse.share([5.0, 0.0, 0.0, 1.0])[0].residues.size == 2
    assert run(sparse, [[5.0, 0.0, 0.0, 1.0], [0.0, 0.0, 0.0, -4.0]]).tolist() == [5.0, 0.0, 0.0, -3.0]
    assert run(ASK.restricted_to([]), [[0.0] * 4] * 3).tolist() == [0.0] * 4
    with pytest.raises(DataError, match="outside of the declared indices"):
        sparse.share([5.0, 1.0, 0.0, 1.0])


@pytest.mark.parametrize("clients", [2, 3, 7])
def test_marks_in_few_bits_count_who_has_an_index_and_lose_none(clients: int) -> None:
    bits = clients.bit_length() + 1
    marks = SecureSum(clients=clients, servers=2, length=clients + 1, largest=1.0, modulus_bits=bits)
    # Index t is had by t clients.
    inputs = [[float(client < t) for t in range(clients + 1)] for client in range(clients)]

    assert run(marks, inputs).tolist() == [float(t) for t in range(clients + 1)]
