"""Random bytes at the speed of AES: the key stream of AES-256 in counter mode.

The bytes are as secret as the key. `AesCtrStream.from_os` draws a key from the operating system; a key given
by the caller makes the stream repeatable, for tests and for whoever must expand the same seed twice.
"""

import os
import secrets
from typing import NoReturn

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand
from numpy.typing import NDArray

from hubbub.crypto.framing import Part, bind
from hubbub.errors import ConfigurationError, LocalError

KEY_BYTES = 32

# The counter starts at zero, which is safe because a key serves one stream only.
_FIRST_BLOCK = bytes(16)

# Encrypting zeros gives the key stream. One buffer serves all streams: it is only ever read.
_ZEROS = memoryview(bytes(2**18))


def derive_key(secret: bytes, *context: Part) -> bytes:
    """A key that follows from a uniformly random secret, for one purpose alone (HKDF-Expand, SHA-256)."""
    if len(secret) != KEY_BYTES:
        raise ConfigurationError(f"a secret that keys follow from has {KEY_BYTES} bytes, not {len(secret)}")
    return HKDFExpand(SHA256(), KEY_BYTES, bind(*context)).derive(secret)


class AesCtrStream:
    """A stream of random bytes that never gives the same bytes twice; for one thread at a time.

    A copy, or the same stream in a forked process, would repeat it, and a repeated mask gives away the
    difference of what it hides: both are refused.
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
        """Begin the one stream that a secret has for a context: who has both begins the same."""
        return cls(derive_key(secret, *context))

    def fill(self, out: NDArray[np.uint8]) -> None:
        """Overwrite all of `out` (contiguous) with the next bytes, without allocating."""
        if os.getpid() != self._process:
            raise LocalError("this random stream was begun in another process; begin a new one after a fork")
        if out.dtype != np.uint8 or not out.flags.c_contiguous:
            raise LocalError("a random stream fills contiguous arrays of uint8")
        target = out.reshape(-1).data
        for start in range(0, len(target), len(_ZEROS)):
            part = target[start : start + len(_ZEROS)]
            self._encryptor.update_into(_ZEROS[: len(part)], part)

    def __repr__(self) -> str:
        return "AesCtrStream(<secret>)"

    def __reduce__(self) -> NoReturn:
        raise LocalError("a random stream cannot be copied or pickled: the copy would give the same bytes again")
