"""Tags: linear, equal wherever sums are equal, and moved by every shift of a sum."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hubbub.crypto.stream import AesCtrRows
from hubbub.errors import ConfigurationError
from hubbub.protocol import tags
from hubbub.protocol.dense import Digits
from hubbub.protocol.layout import Vector
from hubbub.protocol.packing import residue_type
from support import plain_tags
from support.plain_tags import Table

SIGNS = Vector("signs", 40, 11, signed=True)
FACTOR = Vector("factors", 1, 2**32)
REALS = Vector("values", 40, 2**32, signed=True)
INTEGERS = (SIGNS, FACTOR, REALS)
WIDE = Vector("values", 12, 2**64, signed=True)


def coefficients_of(number: int) -> tags.CoefficientsOf:
    return lambda name: AesCtrRows(_key(number, name))


def _key(number: int, name: str) -> bytes:
    return f"{number} {name}".encode().ljust(32, b".")


def tables_of(number: int, vectors: Sequence[Vector]) -> dict[str, Table]:
    return {vector.name: Table(_key(number, vector.name)) for vector in vectors}


def residues(values: Sequence[int], vector: Vector) -> Digits:
    return np.array([value % vector.modulus for value in values], dtype=residue_type(vector.modulus))


def tag(values: Sequence[Sequence[int]], vectors: Sequence[Vector], key: int = 0) -> list[int]:
    """Of integers, each vector's over its own ring."""
    encoded = [residues(each, vector) for each, vector in zip(values, vectors, strict=True)]
    return [int(each) for each in tags.compute("integers", vectors, encoded, coefficients_of(key))]


def add(first: Sequence[int], second: Sequence[int], m: int) -> list[int]:
    return [(a + b) % m for a, b in zip(first, second, strict=True)]


def lists_of(values: st.SearchStrategy[int], n: int) -> st.SearchStrategy[list[int]]:
    return st.lists(st.just(0) | values, min_size=n, max_size=n)


@settings(max_examples=20, deadline=None)
@given(x=lists_of(st.integers(-5, 5), 12), factor=st.integers(0, 2**32 - 1), key=st.integers(0, 99))
def test_tags_of_integers_agree_with_plain_integers(x: list[int], factor: int, key: int) -> None:
    vectors = (Vector("signs", 12, 11, signed=True), FACTOR)

    expected = plain_tags.tag_integers({"signs": x, "factors": [factor]}, tables_of(key, vectors))

    assert tag([x, [factor]], vectors, key) == expected


@settings(max_examples=20, deadline=None)
@given(q=st.sampled_from([1, 2, 3, 8, 16, 31, 32]), key=st.integers(0, 99), data=st.data())
def test_tags_of_marks_agree_with_plain_integers(q: int, key: int, data: st.DataObject) -> None:
    x = data.draw(lists_of(st.sampled_from([1, 2**q - 1]) | st.integers(1, 2**q - 1), 12))
    union = Vector("union", 12, 2**q)

    found = tags.compute("marks", [union], [residues(x, union)], coefficients_of(key))

    assert found.tolist() == plain_tags.tag_marks(x, 2**q, tables_of(key, [union])["union"])


@given(key=st.integers(0, 2**16), data=st.data())
def test_tags_of_integers_add_up_to_the_tags_of_their_sum(key: int, data: st.DataObject) -> None:
    """Whatever the integers are, as long as their sums stay in the halves of their rings."""
    small, large = st.integers(-2, 2), st.integers(-(2**30), 2**30 - 1)
    clients = [
        [data.draw(lists_of(small, 40)), [data.draw(st.integers(0, 2**31 - 1))], data.draw(lists_of(large, 40))]
        for _ in range(2)
    ]
    total = [[a + b for a, b in zip(first, second, strict=True)] for first, second in zip(*clients, strict=True)]

    first, second = (tag(each, INTEGERS, key) for each in clients)

    assert add(first, second, 2**64) == tag(total, INTEGERS, key)


def tag_wide(x: Sequence[int], key: int = 0) -> list[int]:
    """Of integers mod 2^64."""
    return [int(each) for each in tags.compute("wide", [WIDE], [residues(x, WIDE)], coefficients_of(key))]


@settings(max_examples=20, deadline=None)
@given(key=st.integers(0, 2**16), data=st.data())
def test_wide_tags_agree_with_plain_integers_and_add_up_whatever_wraps(key: int, data: st.DataObject) -> None:
    first, second = (data.draw(lists_of(st.integers(0, 2**64 - 1), 12)) for _ in range(2))

    one, other = (tag_wide(each, key) for each in (first, second))

    assert one == plain_tags.tag_wide(first, tables_of(key, [WIDE])["values"])
    assert add(one, other, 2**64) == tag_wide(add(first, second, 2**64), key)


@given(q=st.integers(1, 32), key=st.integers(0, 2**16), data=st.data())
def test_tags_of_marks_add_up_to_the_tags_of_their_sum(q: int, key: int, data: st.DataObject) -> None:
    """Also where the sums wrap."""
    union = Vector("union", 40, 2**q)
    first, second = (data.draw(lists_of(st.integers(0, 2**q - 1), 40)) for _ in range(2))

    def tag_marks(x: list[int]) -> list[int]:
        return [int(each) for each in tags.compute("marks", [union], [residues(x, union)], coefficients_of(key))]

    assert add(tag_marks(first), tag_marks(second), 2**q) == tag_marks(add(first, second, 2**q))


@pytest.mark.parametrize("density", [0.01, 0.4, 0.6, 1.0])
def test_long_vectors_are_tagged_to_their_end_however_many_elements_are_zero(density: float) -> None:
    """Sparse vectors have their coefficients made one by one, dense ones in ranges."""
    rng, n = np.random.default_rng(1), 20_001
    x = np.where(rng.random(n) < density, rng.integers(1, 11, n), 0).astype(np.uint8)
    rows = AesCtrRows(_key(0, "signs")).run(0, n, 4).copy()
    integers = [plain_tags.signed(value, 11) for value in x.tolist()]
    expected = [
        sum(r * value for r, value in zip(rows[:, lane].tolist(), integers, strict=True)) for lane in range(3)
    ]

    found = tags.compute("integers", [Vector("signs", n, 11, signed=True)], [x], coefficients_of(0))

    assert found.tolist() == [each % 2**64 for each in expected]


@pytest.mark.parametrize("density", [0.4, 1.0])
def test_long_vectors_of_wide_integers_are_tagged_to_their_end(density: float) -> None:
    rng, n = np.random.default_rng(2), 20_001
    x = np.where(rng.random(n) < density, rng.integers(0, 2**64, n, dtype=np.uint64), 0).astype(np.uint64)
    rows = AesCtrRows(_key(0, "values")).run(0, n, 2)
    bits = np.unpackbits(rows.view(np.uint8), axis=1, bitorder="little")
    expected = [int(x[bits[:, lane] == 1].astype(object).sum()) % 2**64 for lane in range(84)]

    found = tags.compute("wide", [Vector("values", n, 2**64, signed=True)], [x], coefficients_of(0))

    assert found.tolist() == expected


@pytest.mark.parametrize("q", [1, 5, 32])
def test_long_vectors_of_marks_are_tagged_to_their_end(q: int) -> None:
    rng, n = np.random.default_rng(q), 20_001
    x = np.where(rng.random(n) < 0.5, rng.integers(1, 2**q, n, dtype=np.uint64), 0).astype(np.uint32)
    rows = AesCtrRows(_key(0, "union")).run(0, n, 2)
    bits = np.unpackbits(rows.view(np.uint8), axis=1, bitorder="little")
    expected = [int(x[bits[:, lane] == 1].astype(object).sum()) % 2**q for lane in range(128)]

    found = tags.compute("marks", [Vector("union", n, 2**q)], [x], coefficients_of(0))

    assert found.tolist() == expected


# What a server could do ---------------------------------------------------------------------------------


@pytest.mark.parametrize("shift", [1, -1, 2**15, 2**31, 2**32 - 1])
def test_every_shift_of_a_factor_moves_every_lane(shift: int) -> None:
    """A shift by 2^31 leaves 33 bits of a lane for r to decide, so that three lanes are guessed once in 2^99."""
    moved = {tuple(add(tag([[0]], [FACTOR], key), tag([[shift]], [FACTOR], key), 2**64)) for key in range(200)}

    assert len(moved) == 200
    assert all(all(lanes) for lanes in moved)


@pytest.mark.parametrize("q", [1, 2, 32])
def test_a_shift_by_half_of_the_ring_moves_about_half_of_the_lanes(q: int) -> None:
    """It meets only the lowest bit of a coefficient: hence coefficients of one bit, and 128 lanes of them."""
    union = Vector("union", 100, 2**q)
    x = np.zeros(100, dtype=np.uint32)
    x[57] = 2 ** (q - 1)

    moved = [np.count_nonzero(tags.compute("marks", [union], [x], coefficients_of(key))) for key in range(200)]

    assert 32 < min(moved) <= max(moved) < 96
    assert np.mean(moved) == pytest.approx(64, abs=3)


@pytest.mark.parametrize("shift", [1, 2**31, 2**32, 5 * 2**32, 2**62, 2**63, 2**64 - 1])
def test_a_shift_of_a_long_word_moves_about_half_of_the_lanes_by_itself_whatever_was_summed(shift: int) -> None:
    """So a server guesses 84 lanes once in 2^84, also if it shifts by half of the ring."""
    x = [0] * 11 + [shift]
    summed = [(2**63 - 1 + place * 2**61) % 2**64 for place in range(12)]

    moved = [tag_wide(x, key) for key in range(200)]

    assert {lane for lanes in moved for lane in lanes} == {0, shift}
    counts = [np.count_nonzero(lanes) for lanes in moved]
    assert 15 < min(counts) <= max(counts) < 69
    assert np.mean(counts) == pytest.approx(42, abs=3)
    assert tag_wide(add(summed, x, 2**64)) == add(tag_wide(summed), moved[0], 2**64)


def test_three_lanes_of_whole_words_would_miss_every_eighth_shift_by_half_of_a_long_ring() -> None:
    """Why there is a third kind: the shift meets one bit of a coefficient."""
    rows = [AesCtrRows(_key(key, "values")).run(0, 1, 4)[0, :3] for key in range(400)]

    missed = sum(not (row * np.uint64(2**63)).any() for row in rows)

    assert 25 < missed < 75


Inputs = tuple[int, int]
"""One number of each of two clients."""
P = 2**61 - 1


def total_in_a_prime_field(inputs: Inputs, key: int) -> list[int]:
    """Tags mod p that are added as integers, to be reduced afterwards."""
    r = Table(_key(key, "factors")).bits(0, 1) % P
    return [sum(r * x % P for x in inputs)]


def total_in_our_ring(inputs: Inputs, key: int) -> list[int]:
    first, second = (tag([[x]], [FACTOR], key) for x in inputs)
    return add(first, second, 2**64)


@pytest.mark.parametrize(("total", "tells"), [(total_in_a_prime_field, True), (total_in_our_ring, False)])
def test_tags_in_a_prime_field_tell_equal_sums_apart(
    total: Callable[[Inputs, int], list[int]], *, tells: bool
) -> None:
    """Clients who know r see the sum of the tags: of 2 + 0 it is below p, of 1 + 1 it often is not."""
    differ = sum(total((2, 0), key) != total((1, 1), key) for key in range(100))

    assert differ > 30 if tells else differ == 0


@settings(max_examples=50)
@given(key=st.integers(0, 2**16), data=st.data())
def test_sums_of_tags_are_equal_for_all_inputs_of_equal_sum(key: int, data: st.DataObject) -> None:
    """Move something from one client to another: nobody who knows r can tell, for any r."""
    x, y, moved = (data.draw(lists_of(st.integers(-1000, 1000), 40)) for _ in range(3))

    def total(clients: Sequence[Sequence[int]]) -> list[int]:
        first, second = (tag([each], [REALS], key) for each in clients)
        return add(first, second, 2**64)

    there = [a + b for a, b in zip(x, moved, strict=True)], [a - b for a, b in zip(y, moved, strict=True)]
    assert total((x, y)) == total(there)


# What is tagged -----------------------------------------------------------------------------------------


def test_integers_have_three_lanes_and_marks_as_many_bits_as_a_block() -> None:
    integers, marks = tags.describe("integers", INTEGERS), tags.describe("marks", [Vector("union", 100, 2**5)])

    wide = tags.describe("wide", [WIDE])
    assert (integers, marks) == (Vector("tags", 3, 2**64), Vector("tags", 128, 2**5))
    assert wide == Vector("tags", 84, 2**64)
    assert [each.payload_bits for each in (integers, wide, marks)] == [8 * 24, 8 * 672, 8 * 16 * 5]


def test_vectors_that_tags_cannot_verify_are_refused_and_tags_of_nothing_are_zero() -> None:
    """A shift by 2^63 would meet one bit of a coefficient."""
    with pytest.raises(ConfigurationError, match="rings up to 2\\^32"):
        tags.describe("integers", [Vector("scores", 3, 2**64)])
    for vectors in ([Vector("union", 3, 6)], [Vector("union", 3, 2), Vector("more", 3, 4)]):
        with pytest.raises(ConfigurationError, match="one ring Z_\\(2\\^q\\)"):
            tags.describe("marks", vectors)
    assert tag([[0] * 40, [0], [0] * 40], INTEGERS) == [0, 0, 0]
    assert not tags.compute("marks", [Vector("union", 0, 2)], [np.zeros(0, np.uint8)], coefficients_of(0)).any()
