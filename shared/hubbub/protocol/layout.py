"""Layout of a phase's vectors in bytes: the two encodings of residues, and the cut into chunks.

Residues take whole bits each, as the paper counts them, or are packed densely. The encoding alone decides what a
chunk holds and what a formula counts.

A phase moves a few vectors over different rings side by side: the signs over Z_{2C+1} and, in the same
messages, the factor over Z_{2^32}. Both ends cut them alike from their lengths, rings and encoding, so a chunk
carries nothing but its number. A piece ends on a whole byte, except the last of its vector, and is packed to
whole bytes; several short pieces share a chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from hubbub.errors import ConfigurationError, PeerError, RejectReason
from hubbub.protocol import dense, packing
from hubbub.protocol.packing import BYTE_BITS, Residues

ALIGNMENT = 64
"""Number of residues, of any width, that end on a whole 64-bit word."""


@dataclass(frozen=True, slots=True)
class Encoding:
    """A way to write residues."""

    bits: Callable[[int, int], int]
    """Counts the payload bits of n residues mod m."""
    size: Callable[[int, int], int]
    """Counts the bytes that n residues mod m take, the last one padded."""
    fitting: Callable[[int, int], int]
    """Counts the residues mod m that fit into so many bytes and end on a whole byte."""
    pack: Callable[[Residues, int], bytes]
    """Writes residues mod m."""
    unpack: Callable[[bytes | memoryview, int, int], Residues]
    """Reads n residues mod m; raises `PeerError` for bytes that `pack` cannot have written."""
    check: Callable[[bytes | memoryview, int, int], object]
    """Raises `PeerError` for bytes that cannot be a share of n residues mod m."""


def _fit_whole_bits(room: int, m: int) -> int:
    """Count a multiple of 64, or any number for residues of 64 bits, which end on a whole word."""
    aligned = 1 if m == packing.WORD_MODULUS else ALIGNMENT
    return room * 8 // packing.element_bits(m) // aligned * aligned


def _fit_words(room: int, m: int) -> int:
    """Count a multiple of 8·g: eight words end on a whole byte."""
    word = dense.word_of(m)
    return room // word.bits * BYTE_BITS * word.digits


WHOLE_BITS = Encoding(
    bits=lambda n, m: n * packing.element_bits(m),
    size=packing.packed_bytes,
    fitting=_fit_whole_bits,
    pack=packing.pack,
    unpack=packing.unpack,
    check=packing.unpack,
)
"""⌈log2 m⌉ bits for each residue (Beguier et al., section 2.3.2)."""
DENSE = Encoding(
    bits=dense.dense_bits,
    size=dense.dense_bytes,
    fitting=_fit_words,
    pack=dense.pack_dense,
    unpack=dense.unpack_dense,
    check=dense.read_frame,  # Any word may be a share.
)
"""Words, ⌈n/g⌉·w bits in all: within a few percent of log2 m for each residue."""


MIN_CHUNK_BYTES = ALIGNMENT * 4
"""Room for `ALIGNMENT` elements of 32 bits."""


@dataclass(frozen=True, slots=True)
class Vector:
    """Description of a vector over Z_modulus: its name and shape, not its values."""

    name: str
    length: int
    modulus: int
    signed: bool = field(default=False, compare=False)
    """True if residues in the upper half of the ring stand for negative integers. Only the owner of the values
    sets it; it is not sent, so vectors that a peer declared never have it."""

    @property
    def counts_as(self) -> str:
        """The category that its bits are counted under: the name, up to a dot."""
        return self.name.partition(".")[0]

    @property
    def payload_bits(self) -> int:
        """Elements times bits per element, the number that the paper's formulas count."""
        return self.length * packing.element_bits(self.modulus)


@dataclass(frozen=True, slots=True)
class Piece:
    """Elements [start, stop) of the vector at position `vector`."""

    vector: int
    start: int
    stop: int

    @property
    def elements(self) -> slice:
        """The piece's place in its vector."""
        return slice(self.start, self.stop)


Chunk = tuple[Piece, ...]
Payload = bytes | bytearray | memoryview
"""A chunk's pieces, packed."""


def plan_chunks(vectors: Sequence[Vector], chunk_bytes: int, encoding: Encoding = WHOLE_BITS) -> tuple[Chunk, ...]:
    """Cut vectors into chunks of at most `chunk_bytes`; there is always at least one."""
    if chunk_bytes < MIN_CHUNK_BYTES:
        raise ConfigurationError(f"chunks of {chunk_bytes} bytes are too small; take {MIN_CHUNK_BYTES} or more")
    chunks: list[Chunk] = []
    pieces: list[Piece] = []
    room = chunk_bytes
    for position, vector in enumerate(vectors):
        start = 0
        while start < vector.length:
            stop = _cut(vector, start, room, encoding)
            if stop == start:
                chunks.append(tuple(pieces))
                pieces, room = [], chunk_bytes
                continue
            pieces.append(Piece(position, start, stop))
            room -= encoding.size(stop - start, vector.modulus)
            start = stop
    return (*chunks, tuple(pieces))


def _cut(vector: Vector, start: int, room: int, encoding: Encoding) -> int:
    """Return the end of a piece that begins at `start` and has `room` bytes."""
    rest = vector.length - start
    if encoding.size(rest, vector.modulus) <= room:
        return vector.length
    return start + encoding.fitting(room, vector.modulus)


def pack_chunk(
    chunk: Chunk, vectors: Sequence[Vector], values: Sequence[Residues], encoding: Encoding = WHOLE_BITS
) -> bytes:
    """Pack a chunk's pieces, given in the chunk's order, one after the other."""
    return b"".join(
        encoding.pack(value, vectors[piece.vector].modulus) for piece, value in zip(chunk, values, strict=True)
    )


def chunk_payload_bytes(
    chunk: Chunk, vectors: Sequence[Vector], encoding: Encoding = WHOLE_BITS
) -> dict[str, int]:
    """Count the bytes of a chunk by what they count as."""
    sizes = dict.fromkeys((vector.counts_as for vector in vectors), 0)
    for piece in chunk:
        vector = vectors[piece.vector]
        sizes[vector.counts_as] += encoding.size(piece.stop - piece.start, vector.modulus)
    return sizes


def check_payload(
    plan: Sequence[Chunk],
    vectors: Sequence[Vector],
    index: int,
    size: int,
    encoding: Encoding = WHOLE_BITS,
    *,
    overhead: int = 0,
) -> dict[str, int]:
    """Count a chunk's bytes by what they count as; raise `PeerError` if it is not in the plan or of this size.

    `size` includes `overhead`, the bytes that encryption adds, which count as nothing.
    """
    if index >= len(plan):
        raise PeerError(RejectReason.WRONG_LENGTH, f"there is no chunk {index} among {len(plan)}")
    sizes = chunk_payload_bytes(plan[index], vectors, encoding)
    needed = sum(sizes.values()) + overhead
    if size != needed:
        raise PeerError(
            RejectReason.WRONG_LENGTH, f"chunk {index} holds {size} bytes where its vectors need {needed}"
        )
    return sizes


def split_payload(
    chunk: Chunk, vectors: Sequence[Vector], payload: Payload, encoding: Encoding = WHOLE_BITS
) -> Iterator[tuple[Piece, memoryview]]:
    """Yield the bytes of each piece; raise `PeerError` for a payload of another length."""
    check_payload([chunk], vectors, 0, len(payload), encoding)
    view = memoryview(payload)
    for piece in chunk:
        size = encoding.size(piece.stop - piece.start, vectors[piece.vector].modulus)
        yield piece, view[:size]
        view = view[size:]


def unpack_chunk(
    chunk: Chunk, vectors: Sequence[Vector], payload: Payload, encoding: Encoding = WHOLE_BITS
) -> Iterator[tuple[Piece, Residues]]:
    """Undo `pack_chunk`; raise `PeerError` for a wrong length or a value outside its ring."""
    for piece, part in split_payload(chunk, vectors, payload, encoding):
        yield piece, encoding.unpack(part, piece.stop - piece.start, vectors[piece.vector].modulus)
