import os

import numpy as np
import pytest

from hubbub.crypto.stream import KEY_BYTES, AesCtrRows, AesCtrStream
from hubbub.errors import ConfigurationError, LocalError
from support.plain_aes import counter_stream, encrypt_block

KEY = bytes(range(32))


def draw(stream: AesCtrStream, size: int) -> bytes:
    out = np.empty(size, dtype=np.uint8)
    stream.fill(out)
    return out.tobytes()


def test_stream_is_aes_256_in_counter_mode_from_zero() -> None:
    """The plain twin is that of FIPS 197, appendix C.3."""
    block = bytes.fromhex("00112233445566778899aabbccddeeff")

    assert encrypt_block(KEY, block).hex() == "8ea2b7ca516745bfeafc49904b496089"
    assert draw(AesCtrStream(KEY), 1000) == counter_stream(KEY, 1000)


def test_pieces_of_any_size_join_to_one_stream_that_does_not_repeat_itself() -> None:
    sizes = [1, 15, 16, 17, 0, 2**18 - 1, 2**18, 2**18 + 1, 2**19 + 5]
    stream, whole = AesCtrStream(KEY), draw(AesCtrStream(KEY), 2**21)
    blocks = np.frombuffer(whole[: 2**20], dtype="V16")

    pieces = [draw(stream, size) for size in sizes]

    assert b"".join(pieces) == whole[: sum(sizes)]
    assert len(set(blocks.tolist())) == len(blocks)


def test_exactly_the_slice_is_overwritten_whatever_it_held() -> None:
    out = np.full(100, 255, dtype=np.uint8)
    AesCtrStream(KEY).fill(out[10:20])

    assert out.tobytes() == b"\xff" * 10 + counter_stream(KEY, 10) + b"\xff" * 80
    assert draw(AesCtrStream.from_os(), 32) != draw(AesCtrStream.from_os(), 32)


def test_a_key_of_another_length_and_an_array_with_gaps_are_refused() -> None:
    for size in (0, 16, 31, 33):
        for kind in (AesCtrStream, AesCtrRows):
            with pytest.raises(ConfigurationError, match=f"{KEY_BYTES} bytes, not {size}"):
                kind(bytes(size))
    with pytest.raises(LocalError, match="contiguous"):
        AesCtrStream(KEY).fill(np.zeros(100, dtype=np.uint8)[::2])


def test_a_forked_process_would_repeat_the_stream_and_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = AesCtrStream(KEY)
    monkeypatch.setattr(os, "getpid", lambda: 1)

    with pytest.raises(LocalError, match="another process"):
        draw(stream, 16)


# Rows in any order ---------------------------------------------------------------------------------------


def read_rows(rows: np.ndarray[tuple[int, ...], np.dtype[np.uint64]]) -> bytes:
    return rows.astype("<u8").tobytes()


@pytest.mark.parametrize("words", [2, 4, 6])
def test_rows_are_pieces_of_the_stream_wherever_they_are_read(words: int) -> None:
    size, chosen = 8 * words, np.array([70, 0, 3, 4, 3])
    whole = counter_stream(KEY, 71 * size)
    table = AesCtrRows(KEY)

    assert read_rows(table.at(chosen, words)) == b"".join(whole[size * j : size * (j + 1)] for j in chosen)
    assert read_rows(table.run(3, 60, words)) == whole[3 * size : 63 * size]


def test_rows_far_apart_and_in_long_runs_are_those_of_the_stream() -> None:
    stream, table = draw(AesCtrStream(KEY), 40_000 * 32), AesCtrRows(KEY)
    expected = np.frombuffer(stream, dtype="<u8").reshape(-1, 4)

    assert np.array_equal(table.run(0, 40_000, 4), expected)
    assert np.array_equal(table.at(np.arange(39_999, 0, -7), 4), expected[39_999:0:-7])


def test_one_table_reads_rows_of_any_number_and_width() -> None:
    table = AesCtrRows(KEY)
    for count, words in ((5, 4), (3, 2), (0, 2), (9, 4), (2, 4)):
        assert read_rows(table.at(np.arange(count), words)) == read_rows(table.run(0, count, words))


def test_tables_of_different_contexts_differ_and_rows_end_with_a_block() -> None:
    first, second = (AesCtrRows.derived(KEY, context).run(0, 1, 2) for context in ("a", "b"))

    assert not np.array_equal(first, second)
    with pytest.raises(LocalError, match="row of 3 words"):
        AesCtrRows(KEY).run(0, 1, 3)
