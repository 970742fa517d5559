"""What shares, masks and sums are on the compact wire: vectors of words, here always in 64 bits and below 2^w."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from hubbub.protocol import dense
from hubbub.protocol.dense import Digits
from hubbub.protocol.layout import Chunk, Piece, Vector
from hubbub.protocol.ring import RandomStream
from hubbub.protocol.sharing import expand_bits, expand_words
from hubbub.trust.seals import SealContext

Words: TypeAlias = NDArray[np.uint64]
Parts = list[Words]
"""All vectors of a phase."""


def ring_of(m: int) -> int:
    """2^w - 1, which takes off what is not of a word."""
    return int(2 ** dense.word_of(m).bits) - 1


def to_words(values: Sequence[Digits], vectors: Sequence[Vector]) -> Parts:
    return [
        dense.to_words(each, vector.modulus).astype(np.uint64)
        for each, vector in zip(values, vectors, strict=True)
    ]


def add(vectors: Sequence[Vector], parts: Iterable[Sequence[Words]]) -> Parts:
    columns = zip(*parts, strict=True)
    return [
        np.asarray(np.stack(column).sum(axis=0, dtype=np.uint64)) & np.uint64(ring_of(vector.modulus))
        for column, vector in zip(columns, vectors, strict=True)
    ]


def subtract(vectors: Sequence[Vector], whole: Sequence[Words], part: Sequence[Words]) -> Parts:
    return [
        (one - other) & np.uint64(ring_of(vector.modulus))
        for one, other, vector in zip(whole, part, vectors, strict=True)
    ]


def place_of(piece: Piece, vectors: Sequence[Vector]) -> slice:
    """Where a piece's words are among its vector's."""
    digits = dense.word_of(vectors[piece.vector].modulus).digits
    assert piece.start % digits == 0
    return slice(piece.start // digits, -(-piece.stop // digits))


def empty(vectors: Sequence[Vector]) -> Parts:
    return [np.zeros(dense.count_words(each.length, each.modulus), dtype=np.uint64) for each in vectors]


def expand(
    plan: Sequence[Chunk], vectors: Sequence[Vector], stream: Callable[[SealContext], RandomStream]
) -> Parts:
    """Whole vectors from the streams of their pieces."""
    found = empty(vectors)
    for index, chunk in enumerate(plan):
        for piece in chunk:
            vector, n = vectors[piece.vector], piece.stop - piece.start
            drawn = stream(SealContext(vector.name, vector.modulus, index))
            found[piece.vector][place_of(piece, vectors)] = _expand(drawn, n, vector.modulus)
    return found


def _expand(stream: RandomStream, n: int, m: int) -> Words:
    if m == 2:
        return np.unpackbits(expand_bits(stream, n), count=n, bitorder="little").astype(np.uint64)
    blocks = [words.astype(np.uint64) for _, words in expand_words(stream, n, m)]
    return np.concatenate(blocks) & np.uint64(ring_of(m))


def pack(chunk: Chunk, vectors: Sequence[Vector], parts: Sequence[Words]) -> bytes:
    """A chunk as it travels."""
    return b"".join(
        dense.pack_words(
            parts[piece.vector][place_of(piece, vectors)].astype(dense.words_type(vectors[piece.vector].modulus)),
            vectors[piece.vector].modulus,
        )
        for piece in chunk
    )


def unpack(plan: Sequence[Chunk], vectors: Sequence[Vector], read: Callable[[int], bytes]) -> Parts:
    """Whole vectors from chunks that have travelled."""
    found = empty(vectors)
    for index, chunk in enumerate(plan):
        packed, at = read(index), 0
        for piece in chunk:
            n, m = piece.stop - piece.start, vectors[piece.vector].modulus
            size, into = dense.dense_bytes(n, m), found[piece.vector][place_of(piece, vectors)]
            for place, words in dense.read_words(packed[at : at + size], n, m):
                into[place] = words
            at += size
        assert at == len(packed)
    return found
