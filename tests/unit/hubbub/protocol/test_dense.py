import math
from itertools import product

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from hubbub.crypto.stream import AesCtrStream
from hubbub.errors import PeerError, RejectReason
from hubbub.protocol import dense, packing, ring
from hubbub.protocol.dense import Word, pack_dense, unpack_dense
from support import plain_dense
from support.refusals import refusing

# Words of 1 to 40 digits, of 40 to 64 bits, digits of 8, 16 and 32 bits; most take more than one lane.
MODULI = [3, 5, 6, 7, 11, 13, 17, 19, 20, 21, 23, 34, 100, 201, 257, 300, 1000, 65535, 2**31 + 1, 2**32 - 1]
POWERS = [2, 4, 2**7, 2**8, 2**17, 2**32, 2**64]

moduli = st.sampled_from(MODULI + POWERS) | st.integers(2, 2**32) | st.integers(2, 300)


def draw(n: int, m: int) -> ring.Residues:
    return ring.sample(AesCtrStream(n.to_bytes(32, "big")), n, m)


def test_word_takes_few_bits_per_digit_and_ends_on_a_byte_if_it_can() -> None:
    # The columns: m, digits, bits.
    expected = [
        *[(6, 17, 44), (11, 16, 56), (17, 15, 62), (21, 9, 40), (3, 40, 64), (7, 17, 48)],
        *[(15, 16, 64), (201, 6, 46), (257, 7, 57), (2, 1, 1), (32, 1, 5), (2**32, 1, 32), (2**64, 1, 64)],
    ]
    words = {m: Word(digits, bits) for m, digits, bits in expected}

    assert {m: dense.word_of(m) for m in words} == words


@given(m=moduli)
def test_word_is_the_best_of_all_that_fit_and_loses_at_most_3_percent(m: int) -> None:
    word = dense.word_of(m)

    assert (word.digits, word.bits) == plain_dense.word(m)
    assert m**word.digits <= 2**word.bits
    assert word.bits <= 1.03 * word.digits * math.log2(m)


def test_elements_take_at_most_3_percent_more_than_log2_m() -> None:
    for m, n in product([6, 11, 17, 21], [61_706, 1_756_426]):
        assert 1 <= dense.dense_bits(n, m) / (n * math.log2(m)) <= 1.03, (m, n)
        assert 8 * len(pack_dense(np.zeros(n, dtype=np.uint8), m)) <= 1.03 * n * math.log2(m), (m, n)


@given(m=moduli, n=st.integers(0, 10**6))
def test_vector_takes_hardly_more_bits_than_plain_packing_but_for_its_last_word(m: int, n: int) -> None:
    assert dense.dense_bits(n, m) <= 1.03 * n * ring.element_bits(m) + dense.word_of(m).bits
    assert 0 <= 8 * dense.dense_bytes(n, m) - dense.dense_bits(n, m) < 8


def test_powers_of_two_are_packed_as_ever_and_the_type_of_the_elements_does_not_matter() -> None:
    packed = {m: packing.pack(draw(1000, m), m) for m in POWERS}
    kinds = (np.uint8, np.uint16, np.uint32, np.uint64)

    assert {m: pack_dense(draw(1000, m), m) for m in POWERS} == packed
    assert {pack_dense(draw(1000, 11).astype(kind), 11) for kind in kinds} == {pack_dense(draw(1000, 11), 11)}


def test_residues_are_read_into_a_type_that_holds_them_and_can_be_written_to() -> None:
    packed = pack_dense(draw(10, 11), 11)

    wide, (narrow, _) = unpack_dense(packed, 10, 11), dense.from_words(dense.to_words(draw(10, 11), 11), 10, 11)
    wide[0] = narrow[0] = 5

    assert wide.dtype == np.uint32
    assert narrow.dtype == np.uint8


@given(m=moduli, n=st.integers(0, 100), data=st.data())
def test_any_words_may_be_a_share(m: int, n: int, data: st.DataObject) -> None:
    count = dense.count_words(n, m)
    words = data.draw(st.lists(st.integers(0, 2 ** dense.word_of(m).bits - 1), min_size=count, max_size=count))
    packed = plain_dense.pack_words(words, m)

    assert dense.pack_words(np.array(words, dtype=dense.words_type(m)), m) == packed
    assert [each for _, part in dense.read_words(packed, n, m) for each in part.tolist()] == words


@given(m=moduli)
def test_bits_that_are_not_of_the_word_are_not_packed(m: int) -> None:
    kind = dense.words_type(m)
    words = np.full(100, np.iinfo(kind).max, dtype=kind)

    assert dense.pack_words(words, m) == plain_dense.pack_words([2 ** dense.word_of(m).bits - 1] * 100, m)


@given(m=st.integers(2, 300), n=st.integers(0, 60), parts=st.integers(2, 5), data=st.data())
def test_words_add_up_to_words_of_sums_that_do_not_wrap(m: int, n: int, parts: int, data: st.DataObject) -> None:
    most = max(1, (m - 1) // parts) if m > parts else 0
    vectors = [data.draw(st.lists(st.integers(0, most), min_size=n, max_size=n)) for _ in range(parts)]
    words = [dense.to_words(np.array(each, dtype=np.uint32), m) for each in vectors]
    total = words[0]
    for more in words[1:]:
        total = total + more

    found, possible = dense.from_words(total, n, m)
    assert possible
    assert found.tolist() == [sum(column) for column in zip(*vectors, strict=True)]


@given(m=moduli, n=st.integers(1, 100), data=st.data())
def test_any_words_are_read_and_those_of_no_residues_told_apart(m: int, n: int, data: st.DataObject) -> None:
    """Nothing is raised: when it is, and so how much of the sum was read before, would tell of the sum."""
    count, word = dense.count_words(n, m), dense.word_of(m)
    edges = st.sampled_from([0, m**word.digits - 1, min(m**word.digits, 2**word.bits - 1), 2**word.bits - 1])
    words = data.draw(st.lists(edges | st.integers(0, 2**word.bits - 1), min_size=count, max_size=count))

    found, possible = dense.from_words(np.array(words, dtype=dense.words_type(m)), n, m)

    assert found.tolist() == plain_dense.from_words([each % m**word.digits for each in words], n, m)
    assert possible is (plain_dense.to_words(found.tolist(), m) == words)


@pytest.mark.parametrize(("m", "n"), [(2, 5), (4, 3), (32, 1), (128, 1)])
def test_of_all_strings_exactly_one_for_each_vector_is_accepted(m: int, n: int) -> None:
    accepted = set()
    for value in range(256):
        try:
            residues = unpack_dense(bytes([value]), n, m)
        except PeerError:
            continue
        assert pack_dense(residues, m) == bytes([value])
        accepted.add(tuple(residues.tolist()))

    assert len(accepted) == m**n


@given(m=moduli, n=st.integers(0, 40), data=st.data())
def test_any_string_is_refused_unless_packing_gives_it_back(m: int, n: int, data: st.DataObject) -> None:
    size = dense.dense_bytes(n, m)
    string = data.draw(st.binary(min_size=size, max_size=size))

    allowed = plain_dense.pack(plain_dense.unpack(string, n, m), m) == string

    try:
        assert pack_dense(unpack_dense(string, n, m), m) == string
    except PeerError:
        assert not allowed
    else:
        assert allowed


@given(m=st.sampled_from(MODULI), n=st.integers(1, 100))
def test_digit_after_the_last_that_is_not_zero_is_refused(m: int, n: int) -> None:
    # Only where a word goes on after the last digit.
    assume(n % dense.word_of(m).digits)

    with refusing(RejectReason.RESIDUE_OUT_OF_RANGE, "make these words"):
        unpack_dense(plain_dense.pack([0] * n + [1], m), n, m)
