from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hubbub.crypto.stream import AesCtrStream
from hubbub.errors import ConfigurationError, LocalError
from hubbub.protocol import packing
from hubbub.protocol.expansion import expand, expand_digits, expand_packed
from hubbub.protocol.ring import BLOCK
from support import plain_dense
from support.plain_ring import ByteStream
from support.statistics import against_uniform, bound, joint_counts

edges = [2, 3, 8, 11, 63, 64, 65, 128, 201, 255, 256, 257, 2**31 + 1, 2**32]
moduli = st.sampled_from(edges) | st.integers(2, 300) | st.integers(2, 2**32)


@given(m=moduli, n=st.integers(0, 200), seed=st.integers(0, 2**32))
def test_expansion_agrees_with_plain_integers_and_takes_no_byte_more(m: int, n: int, seed: int) -> None:
    data = np.random.default_rng(seed).bytes(40 * n + 1000)
    stream = ByteStream(data)

    expanded = expand(stream, n, m)

    assert (expanded.tolist(), stream.taken) == plain_dense.expand(data, n, m)
    assert expanded.dtype == np.uint32


@pytest.mark.parametrize("m", [11, 62, 201, 300])
def test_vector_longer_than_a_block_agrees_with_plain_integers(m: int) -> None:
    """Of words mod 62⁴ and 201 some in every block are rejected, so that blocks are not full."""
    n = 4 * BLOCK + 77 if m < 64 else BLOCK + 77
    data = np.random.default_rng(m).bytes(4 * n + 1000)

    assert expand(ByteStream(data), n, m).tolist() == plain_dense.expand(data, n, m)[0]


@pytest.mark.parametrize(
    ("m", "size", "digits"), [(3, 4, 4), (11, 4, 4), (63, 4, 4), (65, 2, 1), (201, 2, 1), (255, 2, 1)]
)
def test_words_from_the_largest_multiple_on_are_passed_over(m: int, size: int, digits: int) -> None:
    """Were they reduced, they would make the small residues too frequent."""
    limit = 256**size // m**digits * m**digits
    words = [limit, 256**size - 1, limit - 1, 0, limit]
    stream = ByteStream(b"".join(word.to_bytes(size, "little") for word in words))

    assert expand(stream, 2 * digits, m).tolist() == [m - 1] * digits + [0] * digits


@pytest.mark.parametrize("m", [3, 11, 62, 63, 65, 129, 201, 217, 255])
def test_hardly_any_word_of_a_small_ring_is_rejected(m: int) -> None:
    n = 4 * 2**10
    stream = ByteStream(np.random.default_rng(m).bytes(3 * n))

    expand(stream, n, m)

    assert stream.taken < (1 if m < 64 else 2) * n * 1.02


@pytest.mark.parametrize("m", [3, 5, 6, 11])
def test_over_all_words_every_four_elements_occur_equally_often(m: int) -> None:
    """Exact, with the tests above: the accepted words are so many times 0 to m⁴ - 1."""
    words = np.arange(m**4, dtype="<u4")

    fours = expand(ByteStream(words.tobytes()), 4 * words.size, m).reshape(-1, 4)

    assert {tuple(four) for four in fours.tolist()} == set(product(range(m), repeat=4))


@pytest.mark.parametrize("m", [2, 3, 6, 8, 11, 62, 129, 201, 256, 300])
def test_elements_are_uniform(m: int) -> None:
    counts = joint_counts([expand(AesCtrStream(b"\x07" * 32), 2**20, m)], m)

    assert against_uniform(counts) < bound(m)


@pytest.mark.parametrize("m", [2, 11, 21])
def test_neighbours_are_independent(m: int) -> None:
    x = expand(AesCtrStream(b"\x08" * 32), 2**20, m)

    for distance in (1, 2, 3, 4):
        assert against_uniform(joint_counts([x[:-distance], x[distance:]], m)) < bound(m**2)


def test_the_independence_test_would_notice_a_digit_used_twice() -> None:
    x = np.repeat(expand(AesCtrStream(b"\x08" * 32), 2**19, 11), 2)

    assert against_uniform(joint_counts([x[:-1], x[1:]], 11)) > bound(11**2)


@pytest.mark.parametrize(("m", "n"), [(2, 13), (2, 16), (8, 5), (2**17, 3)])
def test_bits_after_the_last_element_are_ignored(m: int, n: int) -> None:
    data = b"\xff" * 100

    packed = expand_packed(ByteStream(data), n, m)

    # Unpacking would refuse them.
    assert packing.unpack(packed.tobytes(), n, m).tolist() == [m - 1] * n
    assert expand(ByteStream(data), n, m).tolist() == [m - 1] * n


def test_vectors_follow_one_another_in_a_stream() -> None:
    data = np.random.default_rng(0).bytes(1000)
    stream = ByteStream(data)

    first, second = expand(stream, 13, 2), expand(stream, 6, 11)

    assert first.tolist() == plain_dense.expand(data, 13, 2)[0]
    assert second.tolist() == plain_dense.expand(data[2:], 6, 11)[0]


@pytest.mark.parametrize(("m", "kind"), [(2, np.uint8), (11, np.uint8), (257, np.uint16), (2**32 - 1, np.uint32)])
def test_digits_are_the_same_elements_in_the_narrowest_type(m: int, kind: type[np.uint8]) -> None:
    narrow, wide = (each(AesCtrStream(bytes(32)), 1001, m) for each in (expand_digits, expand))

    assert narrow.dtype == kind
    assert np.array_equal(narrow, wide)


def test_bytes_are_not_taken_for_residues_of_another_ring() -> None:
    with pytest.raises(LocalError, match="not a power of two"):
        expand_packed(ByteStream(bytes(10)), 3, 11)


@pytest.mark.parametrize("m", [2, 11, 257])
def test_negative_length_is_refused(m: int) -> None:
    with pytest.raises(ConfigurationError, match="-1 elements"):
        expand(ByteStream(b""), -1, m)


def test_modulus_outside_the_range_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="modulus"):
        expand(ByteStream(b""), 3, 1)
