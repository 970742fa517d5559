"""Sums of marks give the union; what SecUnion loses is exactly where marks cancel."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from hubbub.crypto.stream import AesCtrStream
from hubbub.errors import ConfigurationError
from hubbub.protocol import unions
from hubbub.protocol.dense import Digits
from hubbub.protocol.ring import Residues
from hubbub.protocol.sharing import accumulate, recombine, split
from support.statistics import against_uniform, bound

Signs = NDArray[np.int8]


def choices(clients: int, n: int) -> st.SearchStrategy[list[Signs]]:
    signs = st.lists(st.sampled_from([-1, 0, 1]), min_size=n, max_size=n)
    return st.lists(signs.map(lambda values: np.array(values, dtype=np.int8)), min_size=clients, max_size=clients)


cohorts = st.tuples(st.integers(2, 7), st.integers(0, 40)).flatmap(lambda size: choices(*size))


def secure_sum(marks: list[Digits], m: int, key: bytes) -> Residues:
    """Through real shares, two servers."""
    stream = AesCtrStream(key)
    sums = [np.zeros(marks[0].size, dtype=np.uint32) for _ in range(2)]
    for x in marks:
        for total, share in zip(sums, split(x, m, 2, stream), strict=True):
            accumulate(total, share, m)
    return recombine(sums, m)


def counts_of(cohort: list[Signs]) -> list[int]:
    """The number of clients that chose each index, one at a time."""
    return [sum(1 for signs in cohort if signs[index] != 0) for index in range(cohort[0].size)]


@given(cohort=cohorts, key=st.binary(min_size=32, max_size=32))
def test_partial_sec_union_sums_to_the_counts_and_so_to_the_union(cohort: list[Signs], key: bytes) -> None:
    total = secure_sum([unions.mark(signs) for signs in cohort], len(cohort) + 1, key)

    counts = counts_of(cohort)
    assert total.tolist() == counts
    assert unions.indices_of(total).tolist() == [index for index, count in enumerate(counts) if count]


@given(cohort=cohorts, q=st.integers(1, 32), key=st.binary(min_size=32, max_size=32))
def test_sec_union_is_the_union_less_the_cancellations(cohort: list[Signs], q: int, key: bytes) -> None:
    stream = AesCtrStream(key[::-1])
    marks = [unions.mark_at_random(signs, q, stream) for signs in cohort]

    found = set(unions.indices_of(secure_sum(marks, 2**q, key)).tolist())

    chosen = {index for index, count in enumerate(counts_of(cohort)) if count}
    cancelled = {index for index in chosen if sum(int(each[index]) for each in marks) % 2**q == 0}
    assert found == chosen - cancelled
    assert all(counts_of(cohort)[index] >= 2 for index in cancelled)


@given(cohort=cohorts, key=st.binary(min_size=32, max_size=32))
def test_with_one_bit_marks_are_ones_and_even_counts_vanish(cohort: list[Signs], key: bytes) -> None:
    marks = [unions.mark_at_random(signs, 1, AesCtrStream(key)) for signs in cohort]

    assert all(np.array_equal(each, unions.mark(signs)) for each, signs in zip(marks, cohort, strict=True))
    found = unions.indices_of(secure_sum(marks, 2, key)).tolist()
    assert found == [index for index, count in enumerate(counts_of(cohort)) if count % 2 == 1]


class NoRandomness:
    def fill(self, out: NDArray[np.uint8]) -> None:
        pytest.fail(f"{out.size} random bytes were taken")


@pytest.mark.parametrize("q", [2, 5])
def test_marks_are_uniform_over_the_non_zero_residues_and_independent_of_their_neighbours(q: int) -> None:
    values = 2**q - 1
    marks = unions.mark_at_random(np.ones(2**18, dtype=np.int8), q, AesCtrStream(bytes([q]) * 32))

    counts = np.bincount(marks, minlength=2**q)
    assert counts.size == 2**q
    assert counts[0] == 0
    assert against_uniform(counts[1:]) < bound(values)
    pairs = (marks[::2].astype(np.int64) - 1) * values + (marks[1::2] - 1)
    assert against_uniform(np.bincount(pairs, minlength=values**2)) < bound(values**2)


def test_marks_of_32_bits_are_never_zero_and_use_every_bit() -> None:
    marks = unions.mark_at_random(np.ones(2**16, dtype=np.int8), 32, AesCtrStream(b"\x20" * 32))

    assert marks.dtype == np.uint32
    assert int(marks.min()) >= 1
    octets = marks.astype("<u4").view(np.uint8).reshape(-1, 4)
    for position in range(4):
        assert against_uniform(np.bincount(octets[:, position], minlength=256)) < bound(256)


def test_marks_stand_where_the_client_chose_whatever_the_sign_and_with_one_bit_take_no_randomness() -> None:
    signs = np.array([0, 1, 0, -1, 1, 0], dtype=np.int8)

    for q in (2, 8, 32):
        marks = unions.mark_at_random(signs, q, AesCtrStream(b"\x21" * 32))
        assert np.flatnonzero(marks).tolist() == [1, 3, 4]
        assert signs.tolist() == [0, 1, 0, -1, 1, 0]
    assert unions.mark_at_random(signs, 1, NoRandomness()).tolist() == [0, 1, 0, 1, 1, 0]


@pytest.mark.parametrize("clients", [3, 4])
def test_with_everything_or_nothing_chosen_by_everybody(clients: int) -> None:
    """One bit keeps all or nothing; counts are the cohort's size."""
    everything, nothing = np.ones(100, dtype=np.int8), np.zeros(100, dtype=np.int8)
    marks = [unions.mark_at_random(everything, 1, NoRandomness()) for _ in range(clients)]

    assert unions.indices_of(secure_sum(marks, 2, bytes(32))).size == (100 if clients % 2 else 0)
    total = secure_sum([unions.mark(everything)] * clients, clients + 1, bytes(32))
    assert set(total.tolist()) == {clients}
    found = unions.indices_of(secure_sum([unions.mark(nothing)] * clients, clients + 1, bytes(32)))
    assert found.size == 0
    assert found.dtype == np.int64


def test_q_is_from_1_to_32_and_sums_of_marks_no_larger_than_the_members_choices() -> None:
    for q in (0, 33, -1):
        with pytest.raises(ConfigurationError, match=f"q is {q}; .* from 1 to 32"):
            unions.mark_at_random(np.ones(3, dtype=np.int8), q, AesCtrStream(bytes(32)))
    assert unions.is_union_possible(30, 3, 10)
    assert not unions.is_union_possible(31, 3, 10)
    assert unions.are_counts_possible(np.array([0, 3], dtype=np.uint32), 3)
    assert unions.are_counts_possible(np.array([], dtype=np.uint32), 3)
    assert not unions.are_counts_possible(np.array([0, 4, 1], dtype=np.uint32), 3)
