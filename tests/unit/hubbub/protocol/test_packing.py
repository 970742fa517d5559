from itertools import product

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from hubbub.crypto.stream import AesCtrStream
from hubbub.errors import ConfigurationError, LocalError, PeerError, RejectReason
from hubbub.protocol.packing import block_elements, pack, unpack
from hubbub.protocol.ring import residue_type, sample
from support import plain_ring

EVERY_WIDTH = [2**bits for bits in range(1, 33)]
ODD_MODULI = [3, 5, 6, 11, 17, 21, 100, 2**13 - 1, 2**31 + 1, 2**32 - 1]
MODULI = EVERY_WIDTH + ODD_MODULI + [2**64]

moduli = st.sampled_from(MODULI) | st.integers(2, 2**32)


def test_every_width_is_packed_as_one_long_integer_and_comes_back() -> None:
    wrong = []
    for m, n in product(MODULI, [0, 1, 7, 63, 64, 65, 200]):
        x = sample(AesCtrStream(n.to_bytes(32, "big")), n, m)
        packed = pack(x, m)
        if packed != plain_ring.pack(x.tolist(), m) or unpack(packed, n, m).tolist() != x.tolist():
            wrong.append((m, n))

    assert wrong == []


@given(m=moduli, data=st.data())
def test_any_vector_comes_back(m: int, data: st.DataObject) -> None:
    values = data.draw(st.lists(st.sampled_from([0, m - 1]) | st.integers(0, m - 1), max_size=150))

    packed = pack(np.array(values, dtype=residue_type(m)), m)

    assert packed == plain_ring.pack(values, m)
    assert unpack(packed, len(values), m).tolist() == values


def test_vector_longer_than_a_block_comes_back() -> None:
    for m in MODULI:
        x = sample(AesCtrStream(bytes(32)), block_elements(plain_ring.bits_for(m)) + 129, m)

        assert np.array_equal(unpack(pack(x, m), x.size, m), x), m


@given(m=moduli, first=st.integers(0, 8), second=st.integers(8, 15))
def test_slices_of_64_elements_join_to_the_whole(m: int, first: int, second: int) -> None:
    x = sample(AesCtrStream(bytes(32)), 1000, m)

    parts = np.split(x, [64 * first, 64 * second])

    assert b"".join(pack(part, m) for part in parts) == pack(x, m)


def test_bytes_at_any_address_can_be_unpacked() -> None:
    x = sample(AesCtrStream(bytes(32)), 1000, 21)
    for offset in range(8):
        buffer = bytearray(b"\xff" * offset + pack(x, 21))

        assert np.array_equal(unpack(memoryview(buffer)[offset:], 1000, 21), x), offset


def test_result_can_be_written_to() -> None:
    unpack(b"\x21", 2, 11)[0] = 5


@given(m=moduli, n=st.integers(0, 100), change=st.sampled_from([-1, 1]) | st.integers(-800, 800))
def test_any_other_number_of_bytes_is_refused(m: int, n: int, change: int) -> None:
    size = -(-n * plain_ring.bits_for(m) // 8)
    assume(change and size + change >= 0)

    with pytest.raises(PeerError, match="take") as caught:
        unpack(bytes(size + change), n, m)

    assert caught.value.reason is RejectReason.WRONG_LENGTH


@given(m=st.sampled_from(ODD_MODULI), at=st.integers(0, 99), data=st.data())
def test_value_of_m_or_more_is_refused_wherever_it_is(m: int, at: int, data: st.DataObject) -> None:
    values = [0] * 100
    values[at] = data.draw(st.just(m) | st.integers(m, 2 ** plain_ring.bits_for(m) - 1))

    with pytest.raises(PeerError, match="no residue") as caught:
        unpack(plain_ring.pack(values, m), 100, m)

    assert caught.value.reason is RejectReason.RESIDUE_OUT_OF_RANGE


def test_any_padding_bit_that_is_set_is_refused() -> None:
    padding = [
        (m, bit) for m in MODULI for bit in range(plain_ring.bits_for(m), -(-plain_ring.bits_for(m) // 8) * 8)
    ]
    for m, bit in padding:
        with pytest.raises(PeerError, match="zero") as caught:
            unpack((1 << bit).to_bytes(bit // 8 + 1, "little"), 1, m)

        assert caught.value.reason is RejectReason.NONZERO_PADDING


def test_packing_refuses_a_value_that_would_run_into_its_neighbour() -> None:
    with pytest.raises(LocalError, match="11 or more"):
        pack(np.array([11], dtype=np.uint32), 11)


def test_modulus_above_the_largest_is_refused() -> None:
    with pytest.raises(ConfigurationError):
        unpack(b"", 0, 2**32 + 1)
