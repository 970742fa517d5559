"""Conversion of a Flower model, a list of arrays, to one flat vector and back.

Float32 and float64 arrays are shared; integers and booleans stay with their client, and so do arrays that the task
names. θ holds the shared ones as float32, one after the other in the order in which the client gives them, each in
C order. Local arrays are carried from round to round as the optimiser's memory, with the number of the round and
the seed of the evaluation: so a void round rolls them back, and they survive a restart.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hubbub.errors import BadUpdate, ConfigurationError, LocalError
from hubbub_trainer.learning.task import Theta

Arrays = Mapping[str, NDArray[np.generic]]
"""A model as a client knows it: by name, in order. Arrays without names are called "0", "1" and so on."""

_SHARED = (np.dtype(np.float32), np.dtype(np.float64))
_LOCAL_KINDS = "iub"
_COUNT = np.dtype("<i8")
_SEED_BYTES = 16
_HEAD_BYTES = _COUNT.itemsize + _SEED_BYTES
_WORD_BYTES = np.dtype(np.float32).itemsize


@dataclass(frozen=True, slots=True)
class Piece:
    """One array of the model."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]
    shared: bool

    @property
    def size(self) -> int:
        """The number of its elements."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True, eq=False)
class Kept:
    """State that stays with a client between two rounds. It tells of its data, so it does not print."""

    round: int
    """Number of the last round that this client trained in and that counted; 0 before the first."""
    seed: int
    """Seed of the evaluation; 128 bits, derived from the secret seed of the last training that counted."""
    arrays: Arrays

    def __repr__(self) -> str:
        return f"<Kept: {len(self.arrays)} arrays>"


@dataclass(frozen=True, slots=True)
class Layout:
    """The arrays of a model, in order."""

    pieces: tuple[Piece, ...]

    @classmethod
    def of(cls, arrays: Arrays, *, local: Collection[str] = ()) -> Layout:
        """Read the layout off a model; arrays that are named in `local` stay with their client."""
        strangers = sorted(set(local) - set(arrays))
        if strangers:
            raise ConfigurationError(
                f"keep_local: there is no array {', '.join(strangers)}; there are {', '.join(arrays)}"
            )
        pieces = tuple(
            Piece(name, array.shape, array.dtype, _is_shared(name, array.dtype, local))
            for name, array in arrays.items()
        )
        if not any(piece.size for piece in pieces if piece.shared):
            raise ConfigurationError("the client has no float32 or float64 arrays, so there is nothing to share")
        return cls(pieces)

    @property
    def parameters(self) -> int:
        """N, the length of θ."""
        return sum(piece.size for piece in self.pieces if piece.shared)

    def match(self, arrays: Arrays) -> Arrays:
        """Find the model's arrays in what a client gave: by their names or, if it has others, by their order."""
        if len(arrays) != len(self.pieces):
            raise BadUpdate(f"the client gave {len(arrays)} arrays for a model of {len(self.pieces)}")
        names = [piece.name for piece in self.pieces]
        ordered = arrays if arrays.keys() == set(names) else dict(zip(names, arrays.values(), strict=True))
        return {piece.name: _check(piece, ordered[piece.name]) for piece in self.pieces}

    def flatten(self, arrays: Arrays) -> Theta:
        """Put the shared arrays of a model into one vector."""
        shared = [arrays[piece.name].reshape(-1) for piece in self.pieces if piece.shared]
        with np.errstate(over="ignore"):  # A value beyond float32 becomes infinite, and is refused below.
            theta: Theta = np.concatenate(shared, dtype=np.float32, casting="same_kind")
        if not np.isfinite(theta).all():
            raise BadUpdate("the client gave NaN or infinity for a parameter")
        return theta

    def keep(self, arrays: Arrays, *, number: int, seed: int) -> Kept:
        """Return the state of a model that stays with its client."""
        return Kept(number, seed, {piece.name: arrays[piece.name] for piece in self.pieces if not piece.shared})

    def join(self, theta: Theta, kept: Kept) -> Arrays:
        """Join shared and local arrays into a model for the client; all are copies."""
        arrays: dict[str, NDArray[np.generic]] = {}
        start = 0
        for piece in self.pieces:
            if piece.shared:
                flat = theta[start : start + piece.size]
                arrays[piece.name] = flat.astype(piece.dtype).reshape(piece.shape)
                start += piece.size
            else:
                arrays[piece.name] = kept.arrays[piece.name].copy()
        return arrays

    # As the optimiser's memory --------------------------------------------------------------------------

    def pack(self, kept: Kept) -> Theta:
        """Pack the local state into a vector of words: its bits, not numbers to compute with."""
        parts = [np.array(kept.round, dtype=_COUNT).tobytes(), kept.seed.to_bytes(_SEED_BYTES, "little")]
        for piece in self._local:
            array = kept.arrays[piece.name].astype(piece.dtype)
            parts.append(np.ascontiguousarray(array).tobytes())
        content = b"".join(parts)
        padding = bytes(-len(content) % _WORD_BYTES)
        return np.frombuffer(content + padding, dtype=np.float32).copy()

    def unpack(self, memory: Theta) -> Kept:
        """Read what `pack` has written, or refuse the memory of another model."""
        size = _HEAD_BYTES + sum(piece.size * piece.dtype.itemsize for piece in self._local)
        if memory.dtype != np.float32 or memory.nbytes != size + -size % _WORD_BYTES:
            raise LocalError("the memory is not one that this task has written: it may be of another model")
        content = memory.tobytes()
        start = _HEAD_BYTES
        arrays: dict[str, NDArray[np.generic]] = {}
        for piece in self._local:
            flat = np.frombuffer(content, dtype=piece.dtype, count=piece.size, offset=start)
            arrays[piece.name] = flat.reshape(piece.shape)
            start += flat.nbytes
        number = int(np.frombuffer(content, dtype=_COUNT, count=1)[0])
        seed = int.from_bytes(content[_COUNT.itemsize : _HEAD_BYTES], "little")
        return Kept(number, seed, arrays)

    @property
    def _local(self) -> tuple[Piece, ...]:
        return tuple(piece for piece in self.pieces if not piece.shared)


def _check(piece: Piece, array: NDArray[np.generic]) -> NDArray[np.generic]:
    if array.shape != piece.shape:
        raise BadUpdate(
            f"the client gave array {piece.name} with shape {array.shape}, the model has {piece.shape}"
        )
    # numpy often turns float32 into float64; it is rounded when it is shared.
    fits = array.dtype in _SHARED if piece.dtype in _SHARED else array.dtype == piece.dtype
    if not fits:
        raise BadUpdate(f"the client gave array {piece.name} as {array.dtype}, the model has {piece.dtype}")
    return array


def _is_shared(name: str, dtype: np.dtype[np.generic], local: Collection[str]) -> bool:
    if dtype in _SHARED:
        return name not in local
    if dtype.kind in _LOCAL_KINDS:
        return False
    raise ConfigurationError(
        f"array {name} is of {dtype}: a client shares float32 and float64, and keeps integers and booleans to "
        "itself; convert it where the client gives its parameters"
    )
