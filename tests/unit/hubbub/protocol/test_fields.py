import numpy as np
import pytest

from hubbub.protocol.packing import SLACK, join_fields, part_fields
from support import plain_ring

COUNT = 64


def draw(
    width: int, kind: type[np.uint64] | type[np.uint32]
) -> np.ndarray[tuple[int], np.dtype[np.uint64 | np.uint32]]:
    """Fields of so many bits, one to a word; the first has all of them set."""
    drawn = np.random.default_rng(width).integers(0, 2**width, COUNT, dtype=np.uint64)
    drawn[0] = 2**width - 1
    return drawn.astype(kind)


def test_fields_of_every_width_lie_end_to_end_and_come_back(subtests: pytest.Subtests) -> None:
    for width in range(8, 65):
        with subtests.test(width=width):
            fields = draw(width, np.uint64)
            out = np.full(COUNT * width // 8 + SLACK, 0xAA, dtype=np.uint8)
            read = np.empty(COUNT, dtype="<u8")

            join_fields(fields.copy(), out, width)
            part_fields(out, read, width)

            assert out[:-SLACK].tobytes() == plain_ring.pack(fields.tolist(), 2**width)
            assert read.tolist() == fields.tolist()


@pytest.mark.parametrize("width", [8, 16, 24, 32])
def test_fields_in_words_of_32_bits(width: int) -> None:
    fields = draw(width, np.uint32)
    out = np.empty(COUNT * width // 8 + SLACK, dtype=np.uint8)
    read = np.empty(COUNT, dtype="<u4")

    join_fields(fields.copy(), out, width)
    part_fields(out, read, width)

    assert out[:-SLACK].tobytes() == plain_ring.pack(fields.tolist(), 2**width)
    assert read.tolist() == fields.tolist()


@pytest.mark.parametrize("width", [24, 40, 48, 56])
def test_words_that_overlap_are_written_with_the_same_bits(width: int) -> None:
    """Nobody promises the order in which numpy writes them."""
    fields = draw(width, np.uint64)
    out = np.zeros(COUNT * width // 8 + SLACK, dtype=np.uint8)

    join_fields(fields, out, width)

    # The fields were overwritten by the words that were written.
    at = range(0, COUNT * width // 8, width // 8)
    assert [int.from_bytes(out[each : each + 8].tobytes(), "little") for each in at] == fields.tolist()
