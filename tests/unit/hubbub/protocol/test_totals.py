"""Compact mode's arithmetic: masked and seeded shares add up to the sum, in whatever form they come."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hubbub.crypto.stream import AesCtrStream
from hubbub.errors import LocalError, PeerError, RejectReason
from hubbub.protocol import dense, ring
from hubbub.protocol.sharing import begin_total
from support import plain_dense, plain_ring

MODULI = [
    2,
    3,
    4,
    11,
    21,
    100,
    127,
    128,
    129,
    255,
    256,
    257,
    2**15 + 1,
    2**16,
    2**31 - 1,
    2**31 + 1,
    2**32 - 1,
    2**32,
    2**64,
]

moduli = st.sampled_from(MODULI) | st.integers(2, 2**32)


def mask_of(client: int) -> AesCtrStream:
    return AesCtrStream(bytes([1, client]) * 16)


def seeded_share(client: int, server: int) -> AesCtrStream:
    return AesCtrStream(bytes([2, client, 3, server]) * 8)


def deal(x: list[int], m: int, client: int, servers: int) -> bytes:
    """The client's full share, for server client mod S; all others' are expanded from seeds."""
    total = begin_total(len(x), m)
    total.add(np.array(x, dtype=ring.residue_type(m)))
    total.add_expanded(mask_of(client))
    for server in set(range(servers)) - {client % servers}:
        total.subtract_expanded(seeded_share(client, server))
    return total.pack()


def add_shares(full: list[bytes], n: int, m: int, server: int, servers: int) -> bytes:
    total = begin_total(n, m)
    for client, share in enumerate(full):
        if client % servers == server:
            total.add_packed(share)
        else:
            total.add_expanded(seeded_share(client, server))
    return total.pack()


def add_packed(parts: list[bytes], n: int, m: int) -> bytes:
    total = begin_total(n, m)
    for part in parts:
        total.add_packed(part)
    return total.pack()


def unmask(masked: bytes, n: int, m: int, clients: int) -> list[int]:
    total = begin_total(n, m)
    total.add_packed(masked)
    for client in range(clients):
        total.subtract_expanded(mask_of(client))
    values: list[int] = total.values()[0].tolist()
    return values


def most_each(m: int, clients: int) -> int:
    """The largest value that each may have: sums wrap only where m is a power of two."""
    return m - 1 if m & (m - 1) == 0 else (m - 1) // clients


@given(m=moduli, clients=st.integers(1, 8), servers=st.integers(2, 4), n=st.integers(0, 50), data=st.data())
def test_the_unmasked_sum_is_the_plain_sum(
    m: int, clients: int, servers: int, n: int, data: st.DataObject
) -> None:
    most = most_each(m, clients)
    value = st.sampled_from([0, most]) | st.integers(0, most)
    inputs = [data.draw(st.lists(value, min_size=n, max_size=n)) for _ in range(clients)]

    full = [deal(x, m, client, servers) for client, x in enumerate(inputs)]
    partial = [add_shares(full, n, m, server, servers) for server in range(servers)]
    masked = add_packed(partial, n, m)

    assert unmask(masked, n, m, clients) == plain_ring.add(inputs, m)


def expand(stream: AesCtrStream, n: int, m: int) -> list[int]:
    data = np.empty(16 * n, dtype=np.uint8)
    stream.fill(data)
    return plain_dense.expand(data.tobytes(), n, m)[0]


@pytest.mark.parametrize("m", [2, 4, 11, 300])
def test_a_full_share_is_the_value_plus_the_mask_minus_the_seeded_shares(m: int) -> None:
    x = [value % m for value in range(100)]

    share = plain_dense.unpack_words(deal(x, m, 0, 3), 100, m)

    seeded = [expand(seeded_share(0, server), 100, m) for server in (1, 2)]
    masked = plain_dense.add([plain_dense.to_words(x, m), expand(mask_of(0), 100, m)], m)
    assert plain_dense.add([share, *seeded], m) == masked


def test_a_sum_that_reaches_the_largest_residue_everywhere_is_read(subtests: pytest.Subtests) -> None:
    for m in MODULI:
        with subtests.test(m=m):
            total = begin_total(70, m)

            for addend in (m - 1 - (m - 1) // 2, (m - 1) // 2):
                total.add(np.full(70, addend, dtype=ring.residue_type(m)))

            assert set(total.values()[0].tolist()) == {m - 1}


def test_sums_wrap_where_the_ring_is_a_power_of_two(subtests: pytest.Subtests) -> None:
    for m in (m for m in MODULI if m & (m - 1) == 0):
        with subtests.test(m=m):
            total = begin_total(70, m)

            for _ in range(300):
                total.add(np.full(70, m - 1, dtype=ring.residue_type(m)))

            assert set(total.values()[0].tolist()) == {300 * (m - 1) % m}


def test_a_sum_that_would_wrap_elsewhere_is_told_apart(subtests: pytest.Subtests) -> None:
    """In the last of its digits it shows; further down it is a carry, which nobody can tell from a sum."""
    for m in (m for m in MODULI if m & (m - 1)):
        with subtests.test(m=m):
            digits = dense.word_of(m).digits
            x = np.zeros(digits, dtype=np.uint32)
            x[-1] = m - 1
            total = begin_total(digits, m)
            total.add(x)
            x[-1] = 1
            total.add(x)

            values, possible = total.values()

            assert not possible
            assert values.size == digits
            assert int(values.max()) < m


def test_what_is_subtracted_as_often_as_it_was_added_is_gone(subtests: pytest.Subtests) -> None:
    for m in MODULI:
        with subtests.test(m=m):
            total = begin_total(70, m)
            total.add(np.full(70, m // 2, dtype=ring.residue_type(m)))
            for _ in range(300):
                total.subtract_expanded(AesCtrStream(bytes(32)))
            for _ in range(300):
                total.add_expanded(AesCtrStream(bytes(32)))

            assert set(total.values()[0].tolist()) == {m // 2}


@pytest.mark.parametrize("m", [2, 4, 11])
def test_a_long_vector_is_added_to_its_end(m: int) -> None:
    x = ring.sample(AesCtrStream(bytes(32)), 700_001, min(m, 4)).astype(np.uint8)
    total = begin_total(x.size, m)

    for _ in range(3):
        total.add(x)

    assert np.array_equal(total.values()[0], x.astype(np.int64) * 3 % m)
    assert total.pack() == dense.pack_dense((x.astype(np.int64) * 3 % m).astype(np.uint32), m)


@pytest.mark.parametrize("m", [2, 11, 300])
def test_packing_and_reading_leave_the_total_as_it_is_and_it_does_not_print(m: int) -> None:
    total = begin_total(100, m)
    total.add(np.ones(100, dtype=np.uint8))

    packed = total.pack()
    total.values()[0][:] = 0
    total.add_packed(packed)

    assert set(total.values()[0].tolist()) == {2 % m}
    assert "secret" in repr(total)
    assert "1, 1" not in repr(total)


@pytest.mark.parametrize(
    ("m", "n", "data", "reason"),
    [
        (2, 13, b"\x01\x20", RejectReason.NONZERO_PADDING),
        (2, 13, b"\x01", RejectReason.WRONG_LENGTH),
        (11, 2, b"\x01" * 8, RejectReason.WRONG_LENGTH),
        (11, 2, b"\x01" * 6, RejectReason.WRONG_LENGTH),
        (17, 2, b"\0" * 7 + b"\x40", RejectReason.NONZERO_PADDING),
        (4, 3, b"\x40", RejectReason.NONZERO_PADDING),
    ],
)
def test_what_is_refused_is_not_added(m: int, n: int, data: bytes, reason: RejectReason) -> None:
    total = begin_total(n, m)

    with pytest.raises(PeerError) as caught:
        total.add_packed(data)

    assert caught.value.reason is reason
    assert not total.values()[0].any()


def test_a_share_that_is_bad_at_its_end_is_not_added_at_its_beginning() -> None:
    n = 700_001
    share = bytearray(dense.pack_dense(np.ones(n, dtype=np.uint8), 17))
    share[-1] = 0xFF
    total = begin_total(n, 17)

    with pytest.raises(PeerError):
        total.add_packed(share)

    assert not total.values()[0].any()


@pytest.mark.parametrize("m", [2, 11])
def test_vectors_of_another_length_or_ring_are_not_added(m: int) -> None:
    total = begin_total(3, m)

    with pytest.raises(LocalError, match="1 elements"):
        total.add(np.ones(1, dtype=np.uint8))
    with pytest.raises(LocalError, match="or more"):
        total.add(np.array([0, m, 0], dtype=np.uint8))

    assert not total.values()[0].any()
