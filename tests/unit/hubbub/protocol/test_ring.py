import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hubbub.crypto.stream import AesCtrStream
from hubbub.errors import ConfigurationError, LocalError
from hubbub.protocol import ring
from support import plain_ring
from support.plain_ring import ByteStream
from support.statistics import against_uniform, bound, joint_counts

MODULI = [
    *(2, 3, 5, 6, 11, 17, 21, 32, 255, 256, 257, 1000),
    *(2**16, 2**16 + 1, 2**31, 2**31 + 1, 2**32 - 1, 2**32, 2**64),
]
moduli = st.sampled_from(MODULI) | st.integers(2, 2**32)


def test_modulus_outside_the_range_and_negative_length_are_refused() -> None:
    for m in (-1, 0, 1, 2**32 + 1, 2**40, 2**64 - 1, 2**64 + 1):
        with pytest.raises(ConfigurationError, match="choose one from 2 to 4294967296, or 18446744073709551616"):
            ring.check_modulus(m)
    with pytest.raises(ConfigurationError, match="-1 elements"):
        ring.sample(ByteStream(b""), -1, 11)


def test_element_takes_the_binary_logarithm_rounded_up() -> None:
    bits = {2: 1, 3: 2, 4: 2, 5: 3, 11: 4, 16: 4, 17: 5, 2**31 + 1: 32, 2**32: 32, 2**64: 64}

    assert {m: ring.element_bits(m) for m in bits} == bits


@given(n=st.integers(0, 10**9), m=moduli)
def test_packed_length_is_the_bits_rounded_up_to_bytes(n: int, m: int) -> None:
    assert 0 <= 8 * ring.packed_bytes(n, m) - n * plain_ring.bits_for(m) < 8


@given(m=moduli, n=st.integers(0, 200), seed=st.integers(0, 2**32))
def test_sample_is_the_first_accepted_words_and_takes_no_byte_more(m: int, n: int, seed: int) -> None:
    data = np.random.default_rng(seed).bytes(40 * n + 1000)
    stream = ByteStream(data)

    drawn = ring.sample(stream, n, m)

    assert (drawn.tolist(), stream.taken) == plain_ring.sample(data, n, m)
    assert drawn.dtype == (np.uint64 if m == 2**64 else np.uint32)


@pytest.mark.parametrize("m", [2, 11, 257, 2**31 + 1, 2**32, 2**64])
def test_sampling_slices_gives_the_same_as_sampling_the_whole(m: int) -> None:
    n = 2 * ring.BLOCK + 77
    whole = ring.sample(AesCtrStream(bytes(32)), n, m)
    stream = AesCtrStream(bytes(32))

    slices = [ring.sample(stream, part, m) for part in (1, 0, ring.BLOCK + 3, ring.BLOCK + 73)]

    assert np.array_equal(np.concatenate(slices), whole)


@pytest.mark.parametrize("m", [3, 11, 129, 257, 40000, 2**32 - 5])
def test_words_from_the_largest_multiple_of_m_on_are_passed_over(m: int) -> None:
    """Were they reduced, they would make the small residues too frequent."""
    size = 1 if m <= 2**8 else 2 if m <= 2**16 else 4
    limit = 256**size // m * m
    words = [limit, 256**size - 1, limit - 1, 0, limit, m - 1]
    stream = ByteStream(b"".join(word.to_bytes(size, "little") for word in words))

    assert ring.sample(stream, 3, m).tolist() == [m - 1, 0, m - 1]


def test_samples_are_uniform_and_modulo_bias_would_be_noticed() -> None:
    for m in (2, 3, 6, 11, 129, 255, 256, 300):
        counts = joint_counts([ring.sample(AesCtrStream(b"\x07" * 32), 2**20, m)], m)
        assert against_uniform(counts) < bound(m), m
    words = np.empty(2**20, dtype=np.uint8)
    AesCtrStream(b"\x07" * 32).fill(words)
    biased = joint_counts([(words % 11).astype(np.uint32)], 11)
    assert against_uniform(biased) > bound(11)


@given(m=moduli, data=st.data())
def test_addition_and_subtraction_agree_with_plain_integers(m: int, data: st.DataObject) -> None:
    edges = st.sampled_from([0, 1, m // 2, m - 1]) | st.integers(0, m - 1)
    pairs = data.draw(st.lists(st.tuples(edges, edges), max_size=40))
    a = np.array([pair[0] for pair in pairs], dtype=ring.residue_type(m))
    b = np.array([pair[1] for pair in pairs], dtype=ring.residue_type(m))

    total, difference = a.copy(), a.copy()
    ring.add_into(total, b, m)
    ring.subtract_into(difference, b, m)

    assert total.tolist() == [(x + y) % m for x, y in pairs]
    assert difference.tolist() == [(x - y) % m for x, y in pairs]
    assert b.tolist() == [pair[1] for pair in pairs]


@pytest.mark.parametrize("m", [11, 2**31, 2**31 + 1, 2**32, 2**64])
def test_addition_covers_every_block_of_a_long_vector(m: int) -> None:
    stream = AesCtrStream(bytes(32))
    a, b = (ring.sample(stream, 2 * ring.BLOCK + 5, m) for _ in range(2))
    expected = [(x + y) % m for x, y in zip(a.tolist(), b.tolist(), strict=True)]

    ring.add_into(a, b, m)

    assert a.tolist() == expected


def test_addition_changes_its_slice_only_and_takes_no_vector_of_another_length_or_type() -> None:
    total = np.array([1, 2, 3, 4], dtype=np.uint32)

    ring.add_into(total[1:3], np.array([9, 9], dtype=np.uint32), 11)

    assert total.tolist() == [1, 0, 1, 4]
    with pytest.raises(LocalError, match="shapes"):
        ring.add_into(np.zeros(5, dtype=np.uint32), np.ones(1, dtype=np.uint32), 11)
    with pytest.raises(LocalError, match="uint32"):
        ring.subtract_into(np.zeros(5, dtype=np.uint32), np.ones(5, dtype=np.uint64), 11)
    with pytest.raises(LocalError, match="uint64"):
        ring.add_into(np.zeros(5, dtype=np.uint32), np.ones(5, dtype=np.uint32), 2**64)
