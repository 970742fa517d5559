"""The library call: exact sums, refusals of what would be added as something else, and nothing that prints."""

import doctest
import re
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

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


# Ranges, words of 64 bits and errors ------------------------------------------------------------------------


@st.composite
def agreements(draw: st.DrawFn) -> tuple[SecureSum, list[list[float]]]:
    """A sum of up to five clients, of two entries with ranges of their own, in any word; and its inputs."""
    clients, bits = draw(st.integers(2, 5)), draw(st.sampled_from([8, 24, 32, 64]))
    ranges = draw(st.lists(st.floats(1e-9, 1e18), min_size=2, max_size=2))
    # A tolerance that nothing exceeds: any precision is accepted.
    ask = SecureSum(clients=clients, servers=2, length=2, largest=ranges, modulus_bits=bits, tolerance=1e300)
    columns = [st.sampled_from([-each, each]) | st.floats(-each, each) for each in ranges]
    return ask, draw(st.lists(st.tuples(*columns).map(list), min_size=clients, max_size=clients))


@given(agreements())
def test_no_entry_of_a_sum_is_further_off_than_its_error(agreement: tuple[SecureSum, list[list[float]]]) -> None:
    ask, inputs = agreement

    for found, error, *said in zip(run(ask, inputs), ask.error, *inputs, strict=True):
        assert abs(Fraction(float(found)) - sum(map(Fraction, said))) <= Fraction(float(error))


@given(agreements(), st.integers(0, 1))
def test_an_entry_is_added_as_if_it_were_alone(agreement: tuple[SecureSum, list[list[float]]], entry: int) -> None:
    """Whatever the ranges of the others are, and whichever entries are shared."""
    ask, inputs = agreement
    assert isinstance(ask.largest, tuple)
    alone = replace(ask, length=1, largest=ask.largest[entry])
    only = [[value if place == entry else 0.0 for place, value in enumerate(said)] for said in inputs]

    assert (ask.unit[entry], ask.error[entry]) == (alone.unit[0], alone.error[0])
    assert run(ask, inputs)[entry] == run(alone, [[said[entry]] for said in inputs])[0]
    assert run(ask.restricted_to([entry]), only)[entry] == run(ask, inputs)[entry]


YEARS = [np.random.default_rng(clinic).integers(1930, 2020, 300 + clinic) for clinic in range(3)]
"""Years of birth: their mean is large, and their variance small beside it."""
POWERS = [[float(years.size), float(years.sum()), float((years**2).sum())] for years in YEARS]
RANGES = (1e4, 1e7, 1e10)


def find_variance(sums: NDArray[np.float64]) -> float:
    patients, total, squares = sums
    return float(squares / patients - (total / patients) ** 2)


@pytest.mark.parametrize("options", [{"largest": RANGES, "tolerance": [0.1, 1, 24]}, {"modulus_bits": 64}])
def test_a_variance_beside_a_large_mean_comes_out_right(options: dict[str, Any]) -> None:
    """One range for all, in 32 bits, rounds the number of patients, and the variance is below zero."""
    usual: dict[str, Any] = {"clients": 3, "servers": 2, "length": 3, "largest": 1e11}
    coarse, fine = SecureSum(**usual, tolerance=1e11), SecureSum(**{**usual, **options})
    variance = float(np.concatenate(YEARS).var())

    assert find_variance(run(coarse, POWERS)) < 0
    assert find_variance(run(fine, POWERS)) == pytest.approx(variance, rel=1e-4)
    with pytest.raises(ConfigurationError, match="3 of 3 entries lose precision"):
        SecureSum(**usual)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({}, r"3 of 3 .* 1e\+12 .* multiples of 2048.* entry 0 .* 3072 where whole numbers .*, a range for each"),
        ({"largest": RANGES}, r"1 of 3 .* multiples of 16.* entry 2 .* 24 where whole .* there, modulus_bits=64"),
        ({"largest": RANGES, "tolerance": [1e-9, 1, 24]}, r"1 of 3 .* entry 0 .* where 1e-09 is wanted"),
        ({"largest": 1e18, "modulus_bits": 64}, r"3 of 3 .* a range for each entry, or a tolerance of 256.75$"),
    ],
)
def test_precision_that_would_be_lost_is_an_error_that_says_what_would_do(
    changes: dict[str, Any], complaint: str
) -> None:
    fields = {"clients": 3, "servers": 2, "length": 3, "largest": 1e12, **changes}

    with pytest.raises(ConfigurationError, match=complaint) as caught:
        SecureSum(**fields)

    limit, tolerance = (
        float(re.findall(f"{word} of (?:at most )?(\\S+)", str(caught.value))[-1].rstrip(","))
        for word in ("largest", "tolerance")
    )
    wanted = np.broadcast_to(fields.get("tolerance", 0.0), 3)
    assert SecureSum(**{**fields, "largest": np.minimum(fields["largest"], limit)})
    assert SecureSum(**{**fields, "tolerance": np.maximum(wanted, tolerance)})


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


@pytest.mark.parametrize("clients", [1, 2, 3, 5])
@pytest.mark.parametrize("shift", [2**63, 2**63 - 1])
def test_a_total_that_was_shifted_by_half_of_a_long_ring_is_refused(clients: int, shift: int) -> None:
    """The smallest integer of 64 bits has no magnitude that a comparison could find too large."""
    ask = replace(ASK, clients=clients, modulus_bits=64, largest=0.75)
    one, two, three = (ask.add(shares) for shares in deal(ask, [[0.0] * 4]))
    three.residues[1:2] += np.uint64(shift % 2**64)

    with refusing(RejectReason.FALSE_SUM):
        ask.open([one, two, three])


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"servers": 1}, "at least 2 servers"),
        ({"clients": 0}, "at least one client"),
        ({"length": 0}, "at least one entry"),
        ({"largest": 0.0}, "finite number above 0"),
        *(({"modulus_bits": bits}, "from 2 to 32, or 64") for bits in (33, 63, 65)),
        *(({"tolerance": each}, "a number above 0") for each in (0.0, np.nan)),
        ({"largest": [1.0] * 3}, "for all entries or 4"),
        ({"largest": [1.0, 1.0, 0.0, 1.0]}, "of entry 2 is 0.0; choose a finite number above 0"),
        ({"largest": 1e308}, "for all clients together"),
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
