"""Residues as bytes, in whole bits and in words: both encodings against plain integers."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from hubbub.crypto.stream import AesCtrStream
from hubbub.errors import ConfigurationError, LocalError, RejectReason
from hubbub.protocol import dense
from hubbub.protocol.layout import DENSE, WHOLE_BITS, Encoding
from hubbub.protocol.packing import (
    SLACK,
    UNSIGNED,
    Radix,
    block_elements,
    container_bits,
    join_fields,
    merge_lanes,
    part_fields,
    split_lanes,
)
from hubbub.protocol.ring import Residues, residue_type, sample
from support import plain_dense, plain_ring
from support.refusals import refusing

POWERS = [2**bits for bits in range(1, 33)] + [2**64]
# In words of 1 to 40 digits, of 40 to 64 bits, digits of 8, 16 and 32 bits; most take more than one lane.
OTHERS = [3, 5, 6, 7, 11, 13, 17, 19, 20, 21, 23, 34, 100, 201, 257, 300, 1000, 2**13 - 1, 65535, 2**31 + 1]
MODULI = [*POWERS, *OTHERS, 2**32 - 1]
COUNT = 100

moduli = st.sampled_from(MODULI) | st.integers(2, 2**32) | st.integers(2, 300)


def draw(n: int, m: int) -> Residues:
    return sample(AesCtrStream(n.to_bytes(32, "big")), n, m)


@dataclass(frozen=True)
class Case:
    """An encoding, the plain twin that packs integers, and its unit: so many residues in so many bits."""

    encoding: Encoding
    plain_pack: Callable[[list[int], int], bytes]
    unit: Callable[[int], tuple[int, int]]
    block: Callable[[int], int]


CASES = {
    "whole bits": Case(
        WHOLE_BITS,
        plain_ring.pack,
        lambda m: (1, plain_ring.bits_for(m)),
        lambda m: block_elements(plain_ring.bits_for(m)),
    ),
    "dense": Case(DENSE, plain_dense.pack, plain_dense.word, lambda m: dense.word_of(m).digits * 2**15),
}
both = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


@both
def test_every_width_is_packed_as_plain_integers_and_comes_back(case: Case) -> None:
    for m, n in product(MODULI, [0, 1, 7, 63, 64, 65, 200]):
        x = draw(n, m)
        packed = case.encoding.pack(x, m)
        assert packed == case.plain_pack(x.tolist(), m), (m, n)
        assert len(packed) == case.encoding.size(n, m), (m, n)
        assert case.encoding.unpack(packed, n, m).tolist() == x.tolist(), (m, n)


@both
@given(m=moduli, data=st.data())
def test_any_vector_comes_back(case: Case, m: int, data: st.DataObject) -> None:
    values = data.draw(st.lists(st.sampled_from([0, m - 1]) | st.integers(0, m - 1), max_size=150))

    packed = case.encoding.pack(np.array(values, dtype=residue_type(m)), m)

    assert packed == case.plain_pack(values, m)
    assert case.encoding.unpack(packed, len(values), m).tolist() == values


@both
def test_vector_longer_than_a_block_comes_back(case: Case) -> None:
    for m in (2, 3, 7, 8, 11, 17, 21, 300, 2**32 - 1, 2**32, 2**64):
        block = case.block(m)
        x = draw(2 * block + 129, m)
        packed = case.encoding.pack(x, m)
        assert np.array_equal(case.encoding.unpack(packed, x.size, m), x), m
        # And not by the same slip twice: the second half is where a vector on its own puts it.
        assert packed.endswith(case.encoding.pack(x[block:], m)), m


@both
@given(m=moduli, first=st.integers(0, 2), second=st.integers(2, 5))
def test_slices_of_64_units_join_to_the_whole(case: Case, m: int, first: int, second: int) -> None:
    step = 64 * case.unit(m)[0]
    x = draw(5 * step + 3, m)

    parts = np.split(x, [step * first, step * second])

    assert b"".join(case.encoding.pack(part, m) for part in parts) == case.encoding.pack(x, m)


@both
def test_bytes_at_any_address_can_be_unpacked_and_the_result_written_to(case: Case) -> None:
    x = draw(1000, 21)
    for offset in range(8):
        buffer = bytearray(b"\xff" * offset + case.encoding.pack(x, 21))
        found = case.encoding.unpack(memoryview(buffer)[offset:], 1000, 21)
        assert np.array_equal(found, x), offset
        found[0] = 5


@both
@given(m=moduli, n=st.integers(0, 100), change=st.sampled_from([-1, 1]) | st.integers(-800, 800))
def test_any_other_number_of_bytes_is_refused(case: Case, m: int, n: int, change: int) -> None:
    size = len(case.plain_pack([0] * n, m))
    assume(change and size + change >= 0)

    for read in (case.encoding.unpack, case.encoding.check):
        with refusing(RejectReason.WRONG_LENGTH, "take"):
            read(bytes(size + change), n, m)


@both
@given(m=st.sampled_from(OTHERS), at=st.integers(0, 99), data=st.data())
def test_what_is_no_residue_is_refused_wherever_it_is(case: Case, m: int, at: int, data: st.DataObject) -> None:
    digits, bits = case.unit(m)
    assume(m**digits < 2**bits)
    numbers = [0] * 100
    numbers[at] = data.draw(st.just(m**digits) | st.integers(m**digits, 2**bits - 1))

    with refusing(RejectReason.RESIDUE_OUT_OF_RANGE, r"no residue|make these words"):
        case.encoding.unpack(plain_ring.pack(numbers, 2**bits), 100 * digits, m)


@both
def test_any_padding_bit_that_is_set_is_refused(case: Case) -> None:
    for m in MODULI:
        bits = case.unit(m)[1]
        for bit in range(bits, -(-bits // 8) * 8):
            with refusing(RejectReason.NONZERO_PADDING, "zero"):
                case.encoding.unpack((1 << bit).to_bytes(bit // 8 + 1, "little"), 1, m)


@both
def test_packing_refuses_what_is_no_vector_over_the_ring(case: Case) -> None:
    wrongs: dict[str, NDArray[Any]] = {
        "11 or more": np.array([11], dtype=np.uint32),
        "2-dimensional": np.zeros((2, 2), dtype=np.uint32),
        "int8": np.zeros(2, dtype=np.int8),
    }
    for complaint, wrong in wrongs.items():
        with pytest.raises(LocalError, match=complaint):
            case.encoding.pack(wrong, 11)
    with pytest.raises(ConfigurationError, match="-1 elements"):
        case.encoding.size(-1, 11)
    with pytest.raises(ConfigurationError, match="modulus"):
        case.encoding.unpack(b"", 0, 2**32 + 1)


# Fields end to end ----------------------------------------------------------------------------------------

FIELDS = 64


def draw_fields(
    width: int, kind: type[np.uint64] | type[np.uint32]
) -> np.ndarray[tuple[int], np.dtype[np.uint64 | np.uint32]]:
    """Fields of so many bits, one to a word; the first has all of them set."""
    drawn = np.random.default_rng(width).integers(0, 2**width, FIELDS, dtype=np.uint64)
    drawn[0] = 2**width - 1
    return drawn.astype(kind)


def test_fields_of_every_width_lie_end_to_end_and_come_back(subtests: pytest.Subtests) -> None:
    for kind, widths in ((np.uint64, range(8, 65)), (np.uint32, range(8, 33, 8))):
        for width in widths:
            with subtests.test(kind=kind, width=width):
                fields = draw_fields(width, kind)
                out = np.full(FIELDS * width // 8 + SLACK, 0xAA, dtype=np.uint8)
                read = np.empty(FIELDS, dtype=np.dtype(kind).newbyteorder("<"))

                join_fields(fields.copy(), out, width)
                part_fields(out, read, width)

                assert out[:-SLACK].tobytes() == plain_ring.pack(fields.tolist(), 2**width)
                assert read.tolist() == fields.tolist()


@pytest.mark.parametrize("width", [24, 40, 48, 56])
def test_words_that_overlap_are_written_with_the_same_bits(width: int) -> None:
    """Nobody promises the order in which numpy writes them."""
    fields = draw_fields(width, np.uint64)
    out = np.zeros(FIELDS * width // 8 + SLACK, dtype=np.uint8)

    join_fields(fields, out, width)

    # The fields were overwritten by the words that were written.
    at = range(0, FIELDS * width // 8, width // 8)
    assert [int.from_bytes(out[each : each + 8].tobytes(), "little") for each in at] == fields.tolist()


# Digits in lanes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("bits", "container"), [(1, 8), (8, 8), (9, 16), (17, 32), (32, 32), (33, 64)])
def test_container_is_the_smallest_that_holds_the_bits(bits: int, container: int) -> None:
    assert container_bits(bits) == container


def test_digits_in_a_lane_become_one_number_and_come_back(subtests: pytest.Subtests) -> None:
    for lane_bits, base in product([16, 32, 64], [2, 11, 128, 251, 256]):
        with subtests.test(base=base, lane_bits=lane_bits):
            digits = np.random.default_rng(base).integers(
                0, base, (COUNT, lane_bits // 8), dtype=np.uint8, endpoint=False
            )
            digits[0] = base - 1
            lanes = digits.copy().view(UNSIGNED[lane_bits]).reshape(-1)

            merge_lanes(lanes, base, 8)

            assert lanes.tolist() == [sum(int(digit) * base**i for i, digit in enumerate(row)) for row in digits]
            split_lanes(lanes, base, 8)
            assert lanes.tobytes() == digits.tobytes()


@pytest.mark.parametrize(
    ("base", "digits", "digit_bits"),
    [
        *((11, 1, 8), (11, 2, 8), (6, 3, 8), (6, 5, 8), (15, 8, 8), (7, 11, 8), (3, 17, 8)),
        *((300, 2, 16), (1000, 3, 16)),
    ],
)
def test_numbers_of_any_length_are_merged_and_split(base: int, digits: int, digit_bits: int) -> None:
    radix = Radix(base, digits, digit_bits)
    rows = np.random.default_rng(digits).integers(0, base, (COUNT, digits), dtype=np.uint32)
    rows[0] = base - 1
    raw = np.full(COUNT * radix.number_bytes + SLACK, 0xAA, dtype=np.uint8)
    radix.view(raw, COUNT)[:] = rows.reshape(-1)
    numbers, back = np.empty(COUNT, dtype="<u4"), np.full_like(raw, 0xAA)

    radix.merge(raw, numbers)
    radix.split(numbers, back)

    assert numbers.tolist() == [sum(int(digit) * base**i for i, digit in enumerate(row)) for row in rows]
    assert radix.view(back, COUNT).tolist() == rows.reshape(-1).tolist()
