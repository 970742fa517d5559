"""Seeded and masked sharing: the sum is the members', and nobody who lacks a seed or the masks reads anything."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hubbub.crypto.stream import AesCtrStream
from hubbub.errors import LocalError, PeerError, RejectReason
from hubbub.protocol.layout import DENSE, Vector, plan_chunks
from hubbub.protocol.ring import Residues, residue_type, sample
from hubbub.protocol.sharing import Streams, accumulate_chunk, share_masked, unmask
from support import plain_ring
from support.statistics import against_uniform, bound, joint_counts

VECTORS = (Vector("signs", 1_003, 11), Vector("factors", 1, 2**32))
PLAN = plan_chunks(VECTORS, 256, DENSE)


def streams_of(number: int, index: int) -> Streams:
    """What follows from one secret, for each vector of a chunk."""

    def stream(vector: Vector) -> AesCtrStream:
        place = f"{number} {index} {vector.name}".encode()
        return AesCtrStream(place.ljust(32, b"."))

    return stream


def draw(vectors: Sequence[Vector], number: int, clients: int = 1) -> tuple[Residues, ...]:
    """Values of one of so many clients; their sums wrap only where the modulus is a power of two."""
    stream = AesCtrStream(number.to_bytes(32, "big"))
    return tuple(sample(stream, vector.length, _values_each(vector.modulus, clients)) for vector in vectors)


def _values_each(m: int, clients: int) -> int:
    return m if m & (m - 1) == 0 else max(2, (m - 1) // clients + 1)


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


@settings(max_examples=25)
@given(
    length=st.integers(0, 700),
    modulus=st.sampled_from([2, 4, 6, 8, 11, 17, 21, 101, 2**16 + 1, 2**31 + 5, 2**32, 2**64]),
    clients=st.integers(2, 5),
    servers=st.integers(2, 4),
    seed=st.integers(0, 2**16),
)
def test_what_clients_decode_is_the_sum_of_the_inputs(
    length: int, modulus: int, clients: int, servers: int, seed: int
) -> None:
    vectors = (Vector("values", length, modulus), Vector("factors", 1, 2**32))
    inputs = [draw(vectors, 100 * seed + client, clients) for client in range(clients)]

    sums = sum_up(vectors, inputs, servers)

    for position, vector in enumerate(vectors):
        assert sums[position].tolist() == plain_ring.add(
            [each[position].tolist() for each in inputs], vector.modulus
        )


def test_the_full_share_leaves_the_input_as_it_is() -> None:
    values = draw(VECTORS, 1)
    before = [each.copy() for each in values]

    share_masked(PLAN[0], VECTORS, values, mask=streams_of(1, 0), seeded=[streams_of(2, 0)])

    assert all((now == then).all() for now, then in zip(values, before, strict=True))


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


def test_a_value_outside_its_ring_is_not_shared() -> None:
    values = (np.full(VECTORS[0].length, 11, dtype=np.uint32), np.zeros(1, dtype=np.uint32))

    with pytest.raises(LocalError, match="11 or more"):
        share_masked(PLAN[0], VECTORS, values, mask=streams_of(1, 0), seeded=[])


def test_a_share_of_another_length_is_refused() -> None:
    with pytest.raises(PeerError) as refusal:
        accumulate_chunk(PLAN[0], VECTORS, full=[given_back(b"\0" * 3)], seeded=[])

    assert refusal.value.reason is RejectReason.WRONG_LENGTH
