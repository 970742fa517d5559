"""Additive secret sharing: SecureSum's local steps (Beguier et al., Alg. 1), in the paper's and the compact form.

The paper's form:

    client i    R_{i,j} ∈_R Z_m^n for j < S, and R_{i,S} = X_i - Σ_{j<S} R_{i,j} mod m       split
    server j    R_j = Σ_i R_{i,j} mod m                                                     accumulate
    client      Z = Σ_j R_j = Σ_i X_i mod m                                                 recombine

Any S - 1 of a client's shares are independent and uniform, whatever X_i is (lemma 1 of the paper's appendix):
they reveal nothing. Each step treats every element alone, so a vector may be split, accumulated and recombined
chunk by chunk.

The compact form saves traffic by seeds and masks:

    client i    M_i = PRG(group secret; i), R_{i,j} = PRG(seed_{i,j}) for all servers j but one,
                and that one's R_{i,f} = X_i + M_i - Σ_j R_{i,j}                                share_masked
    server j    R_j = Σ_i R_{i,j}, over what it was sent or expands itself                      accumulate_chunk
    combiner    Y = Σ_j R_j = Σ_i (X_i + M_i)                                                   accumulate_chunk
    client      Z = Y - Σ_i M_i = Σ_i X_i                                                       unmask

R_{i,f} is the full share, R_j a partial sum, Y the masked sum. X_i and all that follows are vectors of words mod
2^w, each of which holds g residues mod m (`dense`). The residues of a sum are the sums of the residues if these
stay below m; where m is a power of two they may wrap.

Any S - 1 of a client's shares are, to whoever cannot tell AES from random, independent and uniform, and so is Y to
whoever lacks the group secret. Every piece of every vector has a stream of its own, so chunks come in any order.

Several parties expand the same stream and must get the same vector, so the expansion is part of the protocol:

    m = 2     the next ⌈n / 8⌉ bytes, of which bit i mod 8 of byte ⌊i / 8⌋ is element i
    other m   ⌈n/g⌉ little-endian numbers of 8, 16, 32 or 64 bits, the smallest that hold the w bits of a word
              (`dense`); each is a word mod 2^w

Bits that no word or element takes are ignored. Every word is uniform if the stream is, and no byte is rejected.

`Total` is all the arithmetic of the compact form, for any length and in any order of the additions. It holds words
mod 2^w, which overflow as they should, so that adding is one pass over few numbers. Over Z_2 it holds packed bits:
addition and subtraction are XOR.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from hubbub.errors import ConfigurationError, LocalError
from hubbub.protocol.dense import (
    Digits,
    Words,
    check_digits,
    count_words,
    dense_bytes,
    from_words,
    pack_words,
    read_frame,
    read_words,
    to_words,
    words_type,
)
from hubbub.protocol.layout import DENSE, Chunk, Payload, Piece, Vector, split_payload
from hubbub.protocol.packing import BYTE_BITS, Bytes, block_elements
from hubbub.protocol.ring import RandomStream, Residues, add_into, residue_type, sample, subtract_into

MIN_SERVERS = 2


def split(x: Digits, m: int, servers: int, stream: RandomStream) -> list[Residues]:
    """Make one share of `x` for each server (Alg. 1, first block); `x` is not changed.

    The stream must be secret and fresh: whoever knows its bytes reads `x` from the last share. For a long
    vector, slices of some 2^16 elements are fastest: getting fresh memory costs more than the arithmetic.
    """
    check_servers(servers)
    check_digits(x, m)
    shares = [sample(stream, x.size, m) for _ in range(servers - 1)]
    last = x.astype(residue_type(m))
    for share in shares:
        subtract_into(last, share, m)
    return [*shares, last]


def accumulate(total: Residues, share: Residues, m: int) -> None:
    """Add one client's share to a server's running sum R_j, in place (Alg. 1, second block)."""
    add_into(total, share, m)


def recombine(sums: Sequence[Residues], m: int) -> Residues:
    """Add the servers' sums: Z = Σ_j R_j mod m (Alg. 1, third block)."""
    check_servers(len(sums))
    total = sums[0].copy()
    for other in sums[1:]:
        add_into(total, other, m)
    return total


def check_servers(servers: int) -> None:
    """Raise `ConfigurationError` for S < 2: a single server would be given the secret itself."""
    if servers < MIN_SERVERS:
        raise ConfigurationError(f"secret sharing needs at least {MIN_SERVERS} servers, not {servers}")


def expand_words(stream: RandomStream, n: int, m: int) -> Iterator[tuple[slice, Words]]:
    """Expand the stream's next bytes to the words of n elements, block by block; the next one overwrites it."""
    kind, total = words_type(m), count_words(n, m)
    size = block_elements(BYTE_BITS * kind.itemsize)
    buffer = np.empty(min(total, size), dtype=kind)
    for start in range(0, total, size):
        block = buffer[: min(size, total - start)]
        stream.fill(block.view(np.uint8))
        yield slice(start, start + block.size), block


def expand_bits(stream: RandomStream, n: int) -> Bytes:
    """Expand the stream's next bytes to n elements of Z_2, packed; the padding is zero."""
    packed = np.empty(-(-n // BYTE_BITS), dtype=np.uint8)
    stream.fill(packed)
    last_bits = n % BYTE_BITS
    if last_bits:
        packed[-1] &= np.uint8((1 << last_bits) - 1)
    return packed


class Total(ABC):
    """Running sum of vectors of n elements mod m; zero at first. It does not print."""

    def __init__(self, n: int, m: int) -> None:
        self._n, self._m = n, m

    def __repr__(self) -> str:
        return f"{type(self).__name__}(<secret>, n={self._n}, m={self._m})"

    def add(self, x: Digits) -> None:
        """Add a vector of any unsigned type."""
        if x.size != self._n:
            raise LocalError(f"a vector of {x.size} elements cannot be added to {self._n}")
        self._add(x)

    @abstractmethod
    def _add(self, x: Digits) -> None: ...

    @abstractmethod
    def add_packed(self, data: bytes | bytearray | memoryview) -> None:
        """Add what `pack` wrote elsewhere; raise `PeerError`, and add nothing, for anything else."""

    @abstractmethod
    def add_expanded(self, stream: RandomStream) -> None:
        """Add the vector that the stream's next bytes expand to."""

    @abstractmethod
    def subtract_expanded(self, stream: RandomStream) -> None:
        """Subtract the vector that the stream's next bytes expand to."""

    @abstractmethod
    def pack(self) -> bytes:
        """Write the sum as words."""

    @abstractmethod
    def values(self) -> tuple[Digits, bool]:
        """Return a copy of the sum, in the narrowest type for residues mod m, and whether residues can have it."""


def begin_total(n: int, m: int) -> Total:
    """Return a total of zeros."""
    return _Bits(n, m) if m == 2 else _Words(n, m)  # noqa: PLR2004 - the ring of bits.


class _Words(Total):
    def __init__(self, n: int, m: int) -> None:
        super().__init__(n, m)
        self._words = np.zeros(count_words(n, m), dtype=words_type(m))

    def _add(self, x: Digits) -> None:
        self._words += to_words(x, self._m)

    def add_packed(self, data: bytes | bytearray | memoryview) -> None:
        for place, words in read_words(data, self._n, self._m):
            self._words[place] += words

    def add_expanded(self, stream: RandomStream) -> None:
        for place, words in expand_words(stream, self._n, self._m):
            self._words[place] += words

    def subtract_expanded(self, stream: RandomStream) -> None:
        for place, words in expand_words(stream, self._n, self._m):
            self._words[place] -= words

    def pack(self) -> bytes:
        return pack_words(self._words, self._m)

    def values(self) -> tuple[Digits, bool]:
        return from_words(self._words, self._n, self._m)


class _Bits(Total):
    def __init__(self, n: int, m: int) -> None:
        super().__init__(n, m)
        self._packed = np.zeros(dense_bytes(n, m), dtype=np.uint8)

    def _add(self, x: Digits) -> None:
        check_digits(x, self._m)
        # numpy packs bytes fifty times as fast as wider types.
        self._packed ^= np.packbits(x.astype(np.uint8, copy=False), bitorder="little")

    def add_packed(self, data: bytes | bytearray | memoryview) -> None:
        self._packed ^= read_frame(data, self._n, self._m)

    def add_expanded(self, stream: RandomStream) -> None:
        self._packed ^= expand_bits(stream, self._n)

    def subtract_expanded(self, stream: RandomStream) -> None:
        self.add_expanded(stream)

    def pack(self) -> bytes:
        return self._packed.tobytes()

    def values(self) -> tuple[Digits, bool]:
        return np.unpackbits(self._packed, count=self._n, bitorder="little"), True


Streams = Callable[[Vector], RandomStream]
"""Function that begins the stream of one vector's piece in a chunk, anew on each call."""


def share_masked(
    chunk: Chunk,
    vectors: Sequence[Vector],
    values: Sequence[Digits],
    *,
    mask: Streams,
    seeded: Sequence[Streams],
) -> bytes:
    """Compute the one share of a chunk that is sent in full, packed; `seeded` are the others."""
    totals = _begin(chunk, vectors)
    for piece, total in zip(chunk, totals, strict=True):
        vector = vectors[piece.vector]
        total.add(values[piece.vector][piece.elements])
        total.add_expanded(mask(vector))
        for streams in seeded:
            total.subtract_expanded(streams(vector))
    return _pack(totals)


def accumulate_chunk(
    chunk: Chunk, vectors: Sequence[Vector], *, full: Sequence[Callable[[], Payload]], seeded: Sequence[Streams]
) -> bytes:
    """Add one chunk of shares or sums, sent in full or expanded from seeds, and pack the sum."""
    totals = _begin(chunk, vectors)
    for read in full:
        for total, (_, part) in zip(totals, split_payload(chunk, vectors, read(), DENSE), strict=True):
            total.add_packed(part)
    for streams in seeded:
        for total, piece in zip(totals, chunk, strict=True):
            total.add_expanded(streams(vectors[piece.vector]))
    return _pack(totals)


def unmask(
    chunk: Chunk, vectors: Sequence[Vector], payload: bytes, masks: Sequence[Streams]
) -> Iterator[tuple[Piece, Digits, bool]]:
    """Subtract the members' masks from a chunk of the sum; residues come in the narrowest type.

    Each piece comes with whether residues can have such a sum (`dense`).
    """
    parts = split_payload(chunk, vectors, payload, DENSE)
    for total, (piece, part) in zip(_begin(chunk, vectors), parts, strict=True):
        total.add_packed(part)
        for streams in masks:
            total.subtract_expanded(streams(vectors[piece.vector]))
        yield piece, *total.values()


def _begin(chunk: Chunk, vectors: Sequence[Vector]) -> list[Total]:
    return [begin_total(piece.stop - piece.start, vectors[piece.vector].modulus) for piece in chunk]


def _pack(totals: Sequence[Total]) -> bytes:
    return b"".join(total.pack() for total in totals)
