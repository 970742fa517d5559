"""Shared masks: which coordinates are drawn, and changes in a few bits."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hubbub.crypto.stream import AesCtrStream
from hubbub.errors import ConfigurationError, LocalError
from hubbub.protocol import masks
from hubbub_trainer.learning.networks import ALEXNET, LENET
from support import plain_federation

KEY = bytes(range(32))
SIZES = st.lists(st.integers(0, 400), min_size=1, max_size=8).filter(any)


def stream() -> AesCtrStream:
    return AesCtrStream(KEY)


@given(sizes=SIZES, share=st.fractions(0, 1))
def test_a_mask_is_the_one_that_is_drawn_in_the_open(sizes: list[int], share: float) -> None:
    n = math.floor(sum(sizes) * share)

    mask = masks.draw_mask(sizes, n, stream())

    assert mask.tolist() == plain_federation.draw_mask(sizes, n, KEY).tolist()
    assert mask.size == np.unique(mask).size == n
    assert mask.dtype == np.int64


def test_small_tensors_are_dense_and_large_ones_get_by_the_root_of_their_size() -> None:
    sizes = [math.prod(shape) for shape in LENET.values()]
    shares = masks.share_out(sizes, 3_085)

    assert sum(shares) == 3_085
    assert [share for share, size in zip(shares, sizes, strict=True) if size < 50] == [6, 16, 10]
    largest, second = sorted(zip(sizes, shares, strict=True), reverse=True)[:2]
    assert largest[1] / second[1] == pytest.approx(math.sqrt(largest[0] / second[0]), rel=0.01)


def test_every_coordinate_of_a_tensor_is_as_likely() -> None:
    """3,000 masks of 20 of 100; the bound fails by chance once in ten million."""
    source, counts = stream(), np.zeros(100)
    for _ in range(3_000):
        counts[masks.draw_mask([100], 20, source)] += 1

    assert abs(counts - 600).max() < 6 * math.sqrt(3_000 * 0.2 * 0.8)


def test_masks_of_one_stream_differ() -> None:
    source, sizes = stream(), [math.prod(shape) for shape in ALEXNET.values()]
    first, second = (masks.draw_mask(sizes, 5_000, source) for _ in range(2))

    assert not np.array_equal(first, second)


def test_more_coordinates_than_there_are_cannot_be_drawn() -> None:
    with pytest.raises(LocalError, match="11 coordinates cannot be chosen of 10"):
        masks.draw_mask([4, 6], 11, stream())


@pytest.mark.parametrize("bits", masks.SPREAD)
def test_levels_are_those_that_are_chosen_in_the_open(bits: int) -> None:
    change = np.random.default_rng(bits).normal(0, 0.01, 500).astype(np.float32)
    change[::7] = 0
    alpha = masks.scale(change, bits)

    levels = masks.quantise(change, alpha, bits, stream())

    assert levels.tolist() == plain_federation.choose_levels(change, alpha, bits, KEY).tolist()
    assert (levels.min(), levels.max()) == (0, 2**bits - 1)


@pytest.mark.parametrize("bits", [2, 3, 4])
def test_levels_are_the_change_on_average(bits: int) -> None:
    alpha, change = 0.5, np.linspace(-0.5, 0.5, 11, dtype=np.float32)
    top, source = masks.top_level(bits), stream()

    drawn = [masks.quantise(change, alpha, bits, source).astype(float) for _ in range(4_000)]

    mean = (2 * np.mean(drawn, axis=0) / top - 1) * alpha
    # Half a level is the largest standard deviation of one draw.
    assert abs(mean - change).max() < 6 * alpha / top / math.sqrt(4_000)


@pytest.mark.parametrize("bits", masks.SPREAD)
def test_no_change_at_all_gives_middle_levels_alone(bits: int) -> None:
    levels = masks.quantise(np.zeros(1_000, np.float32), 0.0, bits, stream())

    middle = 2 ** (bits - 1)
    assert set(levels.tolist()) == {middle - 1, middle}


def test_directions_are_levels_around_zero() -> None:
    assert masks.to_directions(np.array([0, 6, 7, 15], np.uint8), 5, 2).tolist() == [-15, -3, -1, 15]


@pytest.mark.parametrize(("clients", "bits", "modulus"), [(5, 1, 6), (5, 2, 16), (5, 3, 36), (100, 4, 1_501)])
def test_the_ring_holds_the_sum_of_all_clients_highest_levels(clients: int, bits: int, modulus: int) -> None:
    assert masks.modulus(clients, bits) == modulus


@pytest.mark.parametrize("bits", [0, 5, -1])
def test_levels_have_one_to_four_bits(bits: int) -> None:
    with pytest.raises(ConfigurationError, match="from 1 to 4 bits"):
        masks.check_bits(bits)
