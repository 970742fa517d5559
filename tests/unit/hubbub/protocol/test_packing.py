import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hubbub.crypto.stream import AesCtrStream
from hubbub.errors import ConfigurationError, LocalError, PeerError, RejectReason
from hubbub.protocol.packing import block_elements, pack, unpack
from hubbub.protocol.ring import residue_type, sample
from support import plain_ring

EVERY_WIDTH = [2**bits for bits in range(1, 33)]
ODD_MODULI = [3, 5, 6, 11, 17, 21, 100, 2**13 - 1, 2**31 + 1, 2**32 - 1]
MODULI = EVERY_WIDTH + ODD_MODULI + [2**64]


@pytest.mark.parametrize("m", MODULI)
@pytest.mark.parametrize("n", [0, 1, 7, 63, 64, 65, 200])
def test_packing_agrees_with_one_long_integer(m: int, n: int) -> None:
    x = sample(AesCtrStream(n.to_bytes(32, "big")), n, m)

    packed = pack(x, m)

    assert packed == plain_ring.pack(x.tolist(), m)
    assert unpack(packed, n, m).tolist() == x.tolist()


@given(m=st.integers(2, 2**32) | st.just(2**64), data=st.data())
def test_any_vector_comes_back(m: int, data: st.DataObject) -> None:
    values = data.draw(st.lists(st.sampled_from([0, m - 1]) | st.integers(0, m - 1), max_size=150))

    packed = pack(np.array(values, dtype=residue_type(m)), m)

    assert packed == plain_ring.pack(values, m)
    assert unpack(packed, len(values), m).tolist() == values


@pytest.mark.parametrize("m", MODULI)
def test_vector_longer_than_a_block_comes_back(m: int) -> None:
    x = sample(AesCtrStream(bytes(32)), block_elements(plain_ring.bits_for(m)) + 129, m)

    assert np.array_equal(unpack(pack(x, m), x.size, m), x)


@pytest.mark.parametrize("m", [2, 11, 21, 1000, 2**17, 2**32, 2**64])
def test_slices_of_64_elements_join_to_the_whole(m: int) -> None:
    x = sample(AesCtrStream(bytes(32)), 1000, m)

    assert pack(x[:192], m) + pack(x[192:832], m) + pack(x[832:], m) == pack(x, m)


@pytest.mark.parametrize("offset", [0, 1, 3])
def test_bytes_at_any_address_can_be_unpacked(offset: int) -> None:
    x = sample(AesCtrStream(bytes(32)), 1000, 21)
    buffer = bytearray(b"\xff" * offset + pack(x, 21))

    assert np.array_equal(unpack(memoryview(buffer)[offset:], 1000, 21), x)


def test_result_can_be_written_to() -> None:
    unpack(b"\x21", 2, 11)[0] = 5


@pytest.mark.parametrize("m", [11, 32, 2**32 - 1])
@pytest.mark.parametrize("change", [-1, 1])
def test_one_byte_too_few_or_too_many_is_refused(m: int, change: int) -> None:
    packed = pack(np.zeros(100, dtype=np.uint32), m) + b"\x00"

    with pytest.raises(PeerError, match="take") as caught:
        unpack(packed[: len(packed) - 1 + change], 100, m)

    assert caught.value.reason is RejectReason.WRONG_LENGTH


def test_bytes_for_an_empty_vector_are_refused() -> None:
    with pytest.raises(PeerError) as caught:
        unpack(b"\x00", 0, 11)

    assert caught.value.reason is RejectReason.WRONG_LENGTH


@pytest.mark.parametrize("m", ODD_MODULI)
@pytest.mark.parametrize("at", [0, 57, 99])
def test_value_of_m_or_more_is_refused_wherever_it_is(m: int, at: int) -> None:
    values = [0] * 100
    values[at] = m
    packed = plain_ring.pack(values, m)

    with pytest.raises(PeerError, match="no residue") as caught:
        unpack(packed, 100, m)

    assert caught.value.reason is RejectReason.RESIDUE_OUT_OF_RANGE


@pytest.mark.parametrize("m", [2, 3, 11, 2**31])
def test_any_padding_bit_that_is_set_is_refused(m: int) -> None:
    packed = bytearray(pack(np.zeros(1, dtype=np.uint32), m))
    for bit in range(plain_ring.bits_for(m), 8 * len(packed)):
        marked = packed.copy()
        marked[bit // 8] |= 1 << bit % 8

        with pytest.raises(PeerError, match="zero") as caught:
            unpack(marked, 1, m)

        assert caught.value.reason is RejectReason.NONZERO_PADDING


def test_packing_refuses_a_value_that_would_run_into_its_neighbour() -> None:
    with pytest.raises(LocalError, match="11 or more"):
        pack(np.array([11], dtype=np.uint32), 11)


def test_modulus_above_the_largest_is_refused() -> None:
    with pytest.raises(ConfigurationError):
        unpack(b"", 0, 2**32 + 1)
