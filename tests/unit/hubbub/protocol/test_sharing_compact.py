"""Seeded and masked sharing: the sum is the members', and nobody who lacks a seed or the masks reads anything."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hubbub.crypto.stream import AesCtrStream
from hubbub.errors import LocalError, PeerError, RejectReason
from hubbub.protocol import dense
from hubbub.protocol.layout import DENSE, Vector, plan_chunks
from hubbub.protocol.ring import Residues, residue_type, sample
from hubbub.protocol.sharing import Streams, Total, accumulate_chunk, begin_total, share_masked, unmask
from support import plain_dense, plain_ring
from support.refusals import refusing
from support.statistics import against_uniform, bound, joint_counts

MODULI = [
    *(2, 3, 4, 6, 8, 11, 17, 21, 100, 101, 127, 128, 129, 255, 256, 257, 2**15 + 1, 2**16, 2**16 + 1),
    *(2**31 - 1, 2**31 + 1, 2**31 + 5, 2**32 - 1, 2**32, 2**64),
]
moduli = st.sampled_from(MODULI) | st.integers(2, 2**32)
VECTORS = (Vector("signs", 1_003, 11), Vector("factors", 1, 2**32))
PLAN = plan_chunks(VECTORS, 256, DENSE)


def streams_of(number: int, index: int) -> Streams:
    """The streams of one secret, for each vector of a chunk."""

    def stream(vector: Vector) -> AesCtrStream:
        place = f"{number} {index} {vector.name}".encode()
        return AesCtrStream(place.ljust(32, b"."))

    return stream


def draw(vectors: Sequence[Vector], number: int, clients: int = 1) -> tuple[Residues, ...]:
    """Values of one of so many clients, many of them the largest; sums wrap only if m is a power of two."""
    random, drawn = np.random.default_rng(number), []
    for vector in vectors:
        m, kind = vector.modulus, residue_type(vector.modulus)
        most = m - 1 if m & (m - 1) == 0 else (m - 1) // clients
        values = random.integers(0, most, vector.length, dtype=kind, endpoint=True)
        drawn.append(np.where(random.random(vector.length) < 0.3, np.array(most, dtype=kind), values))
    return tuple(drawn)


def given_back(payload: bytes) -> Callable[[], bytes]:
    return lambda: payload


def sum_up(vectors: Sequence[Vector], inputs: Sequence[tuple[Residues, ...]], servers: int) -> list[Residues]:
    """The whole protocol over all chunks; the full share goes round."""
    plan = plan_chunks(vectors, 256, DENSE)
    sums = [np.empty(vector.length, dtype=residue_type(vector.modulus)) for vector in vectors]
    for index, chunk in enumerate(plan):
        masks = [streams_of(1_000 + client, index) for client in range(len(inputs))]
        seeds = [[streams_of(10 * client + s, index) for s in range(servers - 1)] for client in range(len(inputs))]
        full = [
            share_masked(chunk, vectors, values, mask=masks[client], seeded=seeds[client])
            for client, values in enumerate(inputs)
        ]
        totals = []
        for server in range(servers):
            holds = [client for client in range(len(inputs)) if client % servers == server]
            expands = [
                seeds[client][(server - client - 1) % servers]
                for client in range(len(inputs))
                if client not in holds
            ]
            reads = [given_back(full[client]) for client in holds]
            totals.append(accumulate_chunk(chunk, vectors, full=reads, seeded=expands))
        combined = accumulate_chunk(chunk, vectors, full=[given_back(each) for each in totals], seeded=[])
        for piece, total, possible in unmask(chunk, vectors, combined, masks):
            assert possible
            sums[piece.vector][piece.elements] = total
    return sums


@settings(max_examples=50)
@given(
    length=st.integers(0, 700),
    modulus=moduli,
    clients=st.integers(1, 8),
    servers=st.integers(2, 4),
    seed=st.integers(0, 2**16),
)
def test_clients_decode_the_sum(length: int, modulus: int, clients: int, servers: int, seed: int) -> None:
    vectors = (Vector("values", length, modulus), Vector("factors", 1, 2**32))
    inputs = [draw(vectors, 100 * seed + client, clients) for client in range(clients)]

    sums = sum_up(vectors, inputs, servers)

    for position, vector in enumerate(vectors):
        assert sums[position].tolist() == plain_ring.add(
            [each[position].tolist() for each in inputs], vector.modulus
        )


def expand(streams: Streams, vector: Vector) -> list[int]:
    data = np.empty(16 * vector.length, dtype=np.uint8)
    streams(vector).fill(data)
    return plain_dense.expand(data.tobytes(), vector.length, vector.modulus)[0]


@pytest.mark.parametrize("m", [2, 4, 11, 300])
def test_a_full_share_is_the_value_plus_the_mask_minus_the_seeded_shares(m: int) -> None:
    vector, x = Vector("values", 100, m), [value % m for value in range(100)]
    (chunk,) = plan_chunks([vector], 1_000, DENSE)
    values, mask, seeded = (
        np.array(x, dtype=np.uint32),
        streams_of(0, 0),
        [streams_of(server, 0) for server in (1, 2)],
    )

    packed = share_masked(chunk, [vector], [values], mask=mask, seeded=seeded)

    share = plain_dense.unpack_words(packed, 100, m)
    masked = plain_dense.add([plain_dense.to_words(x, m), expand(mask, vector)], m)
    assert plain_dense.add([share, *(expand(each, vector) for each in seeded)], m) == masked
    assert values.tolist() == x, "the input is left as it is"


@pytest.mark.parametrize("hidden", ["mask", "seed"])
def test_without_one_of_the_streams_the_share_says_nothing(hidden: str) -> None:
    """Whatever the input, a stream that is not known makes the first word any value with the same probability."""
    zeros = tuple(np.zeros(vector.length, dtype=np.uint32) for vector in VECTORS)
    ends = []

    for number in range(2_000):
        mask = streams_of(number if hidden == "mask" else 0, 0)
        seeded = [streams_of(number if hidden == "seed" else 0, 1)]
        share = share_masked(PLAN[0], VECTORS, zeros, mask=mask, seeded=seeded)
        ends.append([share[0] & 15, share[6] >> 4])

    for low_or_high in np.array(ends, dtype=np.uint32).T:
        assert against_uniform(joint_counts([low_or_high], 16)) < bound(16)


def test_a_value_outside_its_ring_is_not_shared_and_a_share_of_another_length_is_refused() -> None:
    values = (np.full(VECTORS[0].length, 11, dtype=np.uint32), np.zeros(1, dtype=np.uint32))

    with pytest.raises(LocalError, match="11 or more"):
        share_masked(PLAN[0], VECTORS, values, mask=streams_of(1, 0), seeded=[])
    with refusing(RejectReason.WRONG_LENGTH):
        accumulate_chunk(PLAN[0], VECTORS, full=[given_back(b"\0" * 3)], seeded=[])


# One running sum --------------------------------------------------------------------------------------------


def total_of(m: int, *addends: int) -> Total:
    """Of vectors with the same number everywhere."""
    total = begin_total(70, m)
    for addend in addends:
        total.add(np.full(70, addend, dtype=residue_type(m)))
    return total


def test_sums_up_to_the_largest_residue_are_read_and_powers_of_two_wrap(subtests: pytest.Subtests) -> None:
    for m in MODULI:
        with subtests.test(m=m):
            largest = total_of(m, m - 1 - (m - 1) // 2, (m - 1) // 2)
            assert set(largest.values()[0].tolist()) == {m - 1}
            if m & (m - 1) == 0:
                assert set(total_of(m, *[m - 1] * 300).values()[0].tolist()) == {300 * (m - 1) % m}


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
            total = total_of(m, m // 2)
            for _ in range(300):
                total.subtract_expanded(AesCtrStream(bytes(32)))
            for _ in range(300):
                total.add_expanded(AesCtrStream(bytes(32)))

            assert set(total.values()[0].tolist()) == {m // 2}


@pytest.mark.parametrize("m", [2, 4, 11])
def test_a_long_vector_is_added_to_its_end(m: int) -> None:
    x = sample(AesCtrStream(bytes(32)), 700_001, min(m, 4)).astype(np.uint8)
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

    with refusing(reason):
        total.add_packed(data)

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
