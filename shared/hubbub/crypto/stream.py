"""Random bytes at the speed of AES: the key stream of AES-256 in counter mode.

The bytes are as secret as the key. `AesCtrStream.from_os` draws a key from the operating system; a key given
by the caller makes the stream repeatable, for tests and for parties that must expand the same seed twice.
`AesCtrRows` reads a key stream at any position.
"""

import os
import secrets
from typing import NoReturn

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand
from numpy.typing import NDArray

from hubbub.crypto.signing import Part, bind
from hubbub.errors import ConfigurationError, LocalError

KEY_BYTES = 32

# The counter starts at zero, which is safe because a key serves one stream only.
_BLOCK_BYTES = 16
_FIRST_BLOCK = bytes(_BLOCK_BYTES)

# Encrypting zeros gives the key stream. One buffer serves all streams: it is only ever read.
_ZEROS = memoryview(bytes(2**18))


def derive_key(secret: bytes, *context: Part) -> bytes:
    """Derive a key for one purpose from a uniformly random secret (HKDF-Expand, SHA-256)."""
    if len(secret) != KEY_BYTES:
        raise ConfigurationError(f"a secret that keys follow from has {KEY_BYTES} bytes, not {len(secret)}")
    return HKDFExpand(SHA256(), KEY_BYTES, bind(*context)).derive(secret)


class AesCtrStream:
    """Stream of random bytes that never gives the same bytes twice. Not thread-safe.

    A copy, or the same stream in a forked process, would repeat it, and a repeated mask reveals the difference of
    what it hides. Both raise `LocalError`.
    """

    __slots__ = ("_encryptor", "_process")

    def __init__(self, key: bytes) -> None:
        if len(key) != KEY_BYTES:
            raise ConfigurationError(f"the key of a stream has {KEY_BYTES} bytes, not {len(key)}")
        self._encryptor = Cipher(algorithms.AES(key), modes.CTR(_FIRST_BLOCK)).encryptor()
        self._process = os.getpid()

    @classmethod
    def from_os(cls) -> "AesCtrStream":
        """Begin a stream that nobody can repeat."""
        return cls(secrets.token_bytes(KEY_BYTES))

    @classmethod
    def derived(cls, secret: bytes, *context: Part) -> "AesCtrStream":
        """Begin the one stream of a secret and a context: whoever has both begins the same one."""
        return cls(derive_key(secret, *context))

    def fill(self, out: NDArray[np.uint8]) -> None:
        """Overwrite all of `out` (contiguous) with the next bytes, without allocating."""
        if os.getpid() != self._process:
            raise LocalError("this random stream was begun in another process; begin a new one after a fork")
        if out.dtype != np.uint8 or not out.flags.c_contiguous:
            raise LocalError("a random stream fills contiguous arrays of uint8")
        _encrypt_zeros(self._encryptor, out.reshape(-1).data)

    def __repr__(self) -> str:
        return "AesCtrStream(<secret>)"

    def __reduce__(self) -> NoReturn:
        raise LocalError("a random stream cannot be copied or pickled: the copy would give the same bytes again")


class AesCtrRows:
    """Key stream as a table of rows that can be read in any order. Not thread-safe.

    Row j of w 64-bit words, little-endian, begins w·j words into the stream that `AesCtrStream` gives with the
    same key. A row is whole blocks of AES, so w is even. The next call overwrites the rows that one returned.
    """

    __slots__ = ("_algorithm", "_counters", "_encryptor", "_rows")

    def __init__(self, key: bytes) -> None:
        if len(key) != KEY_BYTES:
            raise ConfigurationError(f"the key of a stream has {KEY_BYTES} bytes, not {len(key)}")
        self._algorithm = algorithms.AES(key)
        # A block of the key stream is its encrypted counter. Rows come in any order, so we set the counters.
        self._encryptor = Cipher(self._algorithm, modes.ECB()).encryptor()  # noqa: S305
        self._rows: NDArray[np.uint64] = np.empty((0, 0), dtype="<u8")
        self._counters: NDArray[np.uint64] = np.zeros((0, 0, 2), dtype=">u8")

    @classmethod
    def derived(cls, secret: bytes, *context: Part) -> "AesCtrRows":
        """Begin the one table of a secret and a context: whoever has both begins the same one."""
        return cls(derive_key(secret, *context))

    def at(self, indices: NDArray[np.int64], words: int) -> NDArray[np.uint64]:
        """Return the rows of these indices."""
        self._make_room(indices.size, words)
        counters, blocks = self._counters[: indices.size], words // 2
        for block in range(blocks):
            counters[:, block, 1] = indices * blocks + block
        # The encryptor asks for almost a block more than it writes.
        self._encryptor.update_into(_bytes_of(counters), _bytes_of(self._rows[: indices.size + 1]))
        return self._rows[: indices.size]

    def run(self, first: int, count: int, words: int) -> NDArray[np.uint64]:
        """Return the rows of `count` consecutive indices, starting at `first`."""
        self._make_room(count, words)
        counter = (first * words // 2).to_bytes(_BLOCK_BYTES, "big")
        _encrypt_zeros(Cipher(self._algorithm, modes.CTR(counter)).encryptor(), _bytes_of(self._rows[:count]))
        return self._rows[:count]

    def _make_room(self, count: int, words: int) -> None:
        if words % 2:
            raise LocalError(f"a row of {words} words does not end with a block of AES")
        if len(self._counters) < count or self._rows.shape[1] != words:
            self._rows = np.empty((count + 1, words), dtype="<u8")
            self._counters = np.zeros((count, words // 2, 2), dtype=">u8")

    def __repr__(self) -> str:
        return "AesCtrRows(<secret>)"


def _bytes_of(array: NDArray[np.uint64]) -> memoryview:
    return array.reshape(-1).view(np.uint8).data


def _encrypt_zeros(encryptor: CipherContext, target: memoryview) -> None:
    for start in range(0, len(target), len(_ZEROS)):
        part = target[start : start + len(_ZEROS)]
        encryptor.update_into(_ZEROS[: len(part)], part)
