from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hubbub.errors import ConfigurationError, LocalError, RejectReason
from hubbub.protocol.layout import (
    MIN_CHUNK_BYTES,
    WHOLE_BITS,
    Piece,
    Vector,
    check_payload,
    chunk_payload_bytes,
    pack_chunk,
    plan_chunks,
    unpack_chunk,
)
from hubbub.protocol.ring import Residues, element_bits, packed_bytes, residue_type
from support.refusals import refusing

MODULI = st.sampled_from([2, 3, 11, 32, 257, 2**16, 2**31 + 1, 2**32, 2**64])
CHUNK_BYTES = st.integers(MIN_CHUNK_BYTES, 2_000)
VECTORS = st.lists(
    st.builds(Vector, name=st.uuids().map(str), length=st.integers(0, 5_000), modulus=MODULI),
    min_size=1,
    max_size=4,
)


def random_values(vectors: Sequence[Vector], seed: int = 0) -> list[Residues]:
    random = np.random.default_rng(seed)
    return [
        random.integers(0, v.modulus - 1, v.length, dtype=residue_type(v.modulus), endpoint=True) for v in vectors
    ]


def cut(values: Sequence[Residues], chunk: Sequence[Piece]) -> list[Residues]:
    return [values[piece.vector][piece.elements] for piece in chunk]


@given(vectors=VECTORS, chunk_bytes=CHUNK_BYTES)
def test_plan_covers_every_element_once_and_in_order(vectors: list[Vector], chunk_bytes: int) -> None:
    pieces = [piece for chunk in plan_chunks(vectors, chunk_bytes) for piece in chunk]

    covered = [(piece.vector, element) for piece in pieces for element in range(piece.start, piece.stop)]
    assert covered == [(v, element) for v, vector in enumerate(vectors) for element in range(vector.length)]
    assert all(piece.start < piece.stop for piece in pieces)


@given(vectors=VECTORS, chunk_bytes=CHUNK_BYTES)
def test_chunks_fit_and_pieces_are_aligned(vectors: list[Vector], chunk_bytes: int) -> None:
    plan = plan_chunks(vectors, chunk_bytes)
    sizes = [chunk_payload_bytes(chunk, vectors) for chunk in plan]

    assert all(sum(size.values()) <= chunk_bytes for size in sizes)
    for piece in (piece for chunk in plan for piece in chunk):
        vector = vectors[piece.vector]
        assert piece.start * element_bits(vector.modulus) % 64 == 0
        assert piece.stop * element_bits(vector.modulus) % 64 == 0 or piece.stop == vector.length
    for vector in vectors:
        assert 0 <= 8 * sum(size[vector.name] for size in sizes) - vector.payload_bits < 8
    assert len(plan) == 1 or all(plan), "only a plan for nothing at all has an empty chunk"


@given(vectors=VECTORS, chunk_bytes=CHUNK_BYTES, seed=st.integers(0, 2**32))
@settings(max_examples=50)
def test_what_is_packed_is_unpacked(vectors: list[Vector], chunk_bytes: int, seed: int) -> None:
    values = random_values(vectors, seed)
    back: list[Residues] = [np.zeros_like(each) for each in values]

    for chunk in plan_chunks(vectors, chunk_bytes):
        payload = pack_chunk(chunk, vectors, cut(values, chunk))
        assert len(payload) == sum(chunk_payload_bytes(chunk, vectors).values())
        for piece, residues in unpack_chunk(chunk, vectors, payload):
            back[piece.vector][piece.elements] = residues

    for sent, received in zip(values, back, strict=True):
        np.testing.assert_array_equal(received, sent)


def test_lenet_is_one_chunk_of_signs_with_the_factor_in_it() -> None:
    vectors = (Vector("signs", 61_706, 11), Vector("factors", 1, 2**32))

    plan = plan_chunks(vectors, 1 << 20)

    assert plan == ((Piece(0, 0, 61_706), Piece(1, 0, 1)),)
    assert chunk_payload_bytes(plan[0], vectors) == {"signs": 30_853, "factors": 4}
    assert [vector.payload_bits for vector in vectors] == [61_706 * 4, 32]


def test_a_vector_that_does_not_fit_is_cut_at_a_multiple_of_64() -> None:
    vectors = (Vector("signs", 1_000, 11), Vector("factors", 1, 2**32))

    # 300 bytes hold 600 elements of 4 bits; 576 is the largest multiple of 64.
    assert plan_chunks(vectors, 300) == ((Piece(0, 0, 576),), (Piece(0, 576, 1_000), Piece(1, 0, 1)))
    # A full chunk is not followed by an empty one.
    assert plan_chunks([Vector("x", 128, 2**32)], 256) == ((Piece(0, 0, 64),), (Piece(0, 64, 128),))
    for too_few in (-1, 0, MIN_CHUNK_BYTES - 1):
        with pytest.raises(ConfigurationError, match="take 256 or more"):
            plan_chunks(vectors, too_few)


@pytest.mark.parametrize("vectors", [[], [Vector("empty", 0, 11)], [Vector("a", 0, 2), Vector("b", 0, 2**32)]])
def test_nothing_to_send_is_still_one_chunk(vectors: list[Vector]) -> None:
    plan = plan_chunks(vectors, MIN_CHUNK_BYTES)

    assert plan == ((),)
    assert pack_chunk(plan[0], vectors, []) == b""
    assert list(unpack_chunk(plan[0], vectors, b"")) == []


VECTORS_MOD_11 = (Vector("signs", 64, 11), Vector("factors", 1, 2**32))
CHUNK = plan_chunks(VECTORS_MOD_11, 1_000)[0]
PAYLOAD = pack_chunk(CHUNK, VECTORS_MOD_11, random_values(VECTORS_MOD_11))


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"", RejectReason.WRONG_LENGTH),
        (PAYLOAD[:-1], RejectReason.WRONG_LENGTH),
        (PAYLOAD + b"\0", RejectReason.WRONG_LENGTH),
        (b"\xff" + PAYLOAD[1:], RejectReason.RESIDUE_OUT_OF_RANGE),
    ],
    ids=["empty", "short", "long", "no residue"],
)
def test_payload_that_cannot_be_of_a_chunk_is_refused(payload: bytes, reason: RejectReason) -> None:
    with refusing(reason):
        list(unpack_chunk(CHUNK, VECTORS_MOD_11, payload))


def test_a_chunk_of_the_plan_and_of_its_size_is_taken_apart_by_what_it_counts_as() -> None:
    """The size is enough: what is sealed cannot be looked at."""
    assert check_payload([CHUNK], VECTORS_MOD_11, 0, len(PAYLOAD)) == {"signs": 32, "factors": 4}
    for index, size in ((0, 35), (0, 37), (0, 0), (1, 36), (2**31, 36)):
        with refusing(RejectReason.WRONG_LENGTH):
            check_payload([CHUNK], VECTORS_MOD_11, index, size)
    # What we pack ourselves is our own mistake.
    with pytest.raises(ValueError, match="zip"):
        pack_chunk(CHUNK, VECTORS_MOD_11, random_values(VECTORS_MOD_11)[:1])
    with pytest.raises(LocalError):
        pack_chunk(CHUNK, VECTORS_MOD_11, [np.full(64, 11, np.uint32), np.zeros(1, np.uint32)])


@given(modulus=MODULI)
def test_smallest_chunk_holds_something_of_any_ring_that_ends_on_a_whole_word(modulus: int) -> None:
    elements = WHOLE_BITS.fitting(MIN_CHUNK_BYTES, modulus)

    assert elements > 0
    assert elements * element_bits(modulus) % 64 == 0
    assert packed_bytes(elements, modulus) <= MIN_CHUNK_BYTES
