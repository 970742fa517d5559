import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hubbub.crypto.stream import AesCtrStream
from hubbub.errors import ConfigurationError
from hubbub.protocol import packing
from hubbub.protocol.dense import word_of
from hubbub.protocol.ring import RandomStream
from hubbub.protocol.sharing import expand_bits, expand_words
from support import plain_dense
from support.plain_ring import ByteStream
from support.statistics import against_uniform, bound, joint_counts

edges = [3, 4, 8, 11, 63, 64, 65, 128, 201, 255, 256, 257, 2**16, 2**17, 2**31 + 1, 2**32, 2**64]
moduli = st.sampled_from(edges) | st.integers(3, 300) | st.integers(3, 2**32)


def expand(stream: RandomStream, n: int, m: int) -> list[int]:
    """All words, without the bits that are not of them."""
    mask = 2 ** word_of(m).bits - 1
    return [each & mask for _, part in expand_words(stream, n, m) for each in part.tolist()]


@given(m=moduli, n=st.integers(0, 200), seed=st.integers(0, 2**32))
def test_expansion_agrees_with_plain_integers_and_takes_no_byte_more(m: int, n: int, seed: int) -> None:
    data = np.random.default_rng(seed).bytes(8 * n + 8)
    stream = ByteStream(data)

    assert (expand(stream, n, m), stream.taken) == plain_dense.expand(data, n, m)


@pytest.mark.parametrize("m", [8, 11, 201, 2**32, 2**64])
def test_vector_longer_than_a_block_agrees_with_plain_integers(m: int) -> None:
    n = word_of(m).digits * (2**18 + 77) + 1
    data = np.random.default_rng(m).bytes(8 * n + 1000)

    assert expand(ByteStream(data), n, m) == plain_dense.expand(data, n, m)[0]


def test_blocks_follow_one_another_without_a_gap() -> None:
    places = [place for place, _ in expand_words(AesCtrStream(bytes(32)), 16 * 100_001, 11)]

    assert len(places) > 1
    assert [place.start for place in places] == [0, *(place.stop for place in places[:-1])]
    assert places[-1].stop == 100_001


@pytest.mark.parametrize("m", [4, 11, 21, 201, 2**32, 2**64])
@pytest.mark.parametrize("end", ["low", "high"])
def test_words_are_uniform_at_either_end(m: int, end: str) -> None:
    """Whatever their ring: no word is rejected or reduced, so none can be more frequent than another."""
    bits = word_of(m).bits
    words = np.array(expand(AesCtrStream(b"\x07" * 32), word_of(m).digits * 2**18, m), dtype=np.uint64)
    looked_at = min(bits, 8)
    part = words & np.uint64(2**looked_at - 1) if end == "low" else words >> np.uint64(bits - looked_at)

    assert against_uniform(joint_counts([part.astype(np.uint32)], 2**looked_at)) < bound(2**looked_at)


def test_neighbours_are_independent_and_a_word_used_twice_would_be_noticed() -> None:
    words = np.array(expand(AesCtrStream(b"\x08" * 32), 16 * 2**18, 11), dtype=np.uint64)
    ends = (words & np.uint64(15)).astype(np.uint32)
    twice = np.repeat(ends[: 2**17], 2)

    for distance in (1, 2, 3, 4):
        assert against_uniform(joint_counts([ends[:-distance], ends[distance:]], 16)) < bound(16**2)
    assert against_uniform(joint_counts([twice[:-1], twice[1:]], 16)) > bound(16**2)


@pytest.mark.parametrize("n", [0, 1, 13, 16])
def test_bits_after_the_last_element_are_ignored(n: int) -> None:
    stream = ByteStream(b"\xff" * 100)

    packed = expand_bits(stream, n)

    # Unpacking would refuse them.
    assert packing.unpack(packed.tobytes(), n, 2).tolist() == [1] * n
    assert stream.taken == -(-n // 8)


def test_vectors_follow_one_another_in_a_stream() -> None:
    data = np.random.default_rng(0).bytes(1000)
    stream = ByteStream(data)

    first, second = expand_bits(stream, 13), expand(stream, 6, 11)

    assert packing.unpack(first.tobytes(), 13, 2).tolist() == plain_dense.expand(data, 13, 2)[0]
    assert second == plain_dense.expand(data[2:], 6, 11)[0]


def test_negative_length_and_modulus_outside_the_range_are_refused() -> None:
    for m in (4, 11, 257):
        with pytest.raises(ConfigurationError, match="-1 elements"):
            expand(ByteStream(b""), -1, m)
    with pytest.raises(ConfigurationError, match="modulus"):
        list(expand_words(ByteStream(b""), 3, 1))
