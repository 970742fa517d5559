from itertools import product

import numpy as np
import pytest

from hubbub.protocol.packing import SLACK, UNSIGNED, Radix, container_bits, merge_lanes, split_lanes

COUNT = 100


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
        (11, 1, 8),
        (11, 2, 8),
        (6, 3, 8),
        (6, 5, 8),
        (15, 8, 8),
        (7, 11, 8),
        (3, 17, 8),
        (300, 2, 16),
        (1000, 3, 16),
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
