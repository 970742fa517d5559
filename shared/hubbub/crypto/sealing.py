"""Seals: public-key encryption to one recipient, and the symmetric encryption of chunks.

A party makes a `SealingKey` for each run; others seal to its public half with HPKE (RFC 9180, base mode). `info`
says what the sealed bytes are and who sent them to whom; with any other `info` the seal does not open. Data in
chunks is encrypted under a `ChunkKey`, and only that key is sealed: a share set's to its aggregator, a sum's to
each client.
"""

from collections.abc import Callable
from enum import StrEnum
from typing import NoReturn

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey, MLKEM768PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hpke import (
    AEAD,
    KDF,
    KEM,
    MLKEM768X25519PrivateKey,
    MLKEM768X25519PublicKey,
    Suite,
)

from hubbub.errors import LocalError, PeerError, RejectReason

CHUNK_KEY_BYTES = 32
CHUNK_OVERHEAD = 16
"""Bytes that encryption adds to a chunk."""

Decrypted = bytearray | memoryview
Room = Callable[[int], Decrypted]

_TAG_BYTES = 16
_NONCE_BYTES = 12
_MLKEM_SEED_BYTES = 64
_MLKEM_PUBLIC_BYTES = 1184


class Kem(StrEnum):
    """Key encapsulation mechanism of a seal; the hybrid is secure as long as one of its two parts is."""

    X25519 = "x25519"
    HYBRID = "mlkem768-x25519"


_KEMS = {Kem.X25519: KEM.X25519, Kem.HYBRID: KEM.MLKEM768_X25519}
_SUITES = {kem: Suite(key, KDF.HKDF_SHA256, AEAD.AES_256_GCM) for kem, key in _KEMS.items()}
_PRIVATE_BYTES = {Kem.X25519: 32, Kem.HYBRID: _MLKEM_SEED_BYTES + 32}


class SealingKey:
    """A party's private key for one run, which opens what was sealed to its public half."""

    __slots__ = ("_kem", "_mlkem", "_x25519")

    def __init__(self, x25519: X25519PrivateKey, mlkem: MLKEM768PrivateKey | None) -> None:
        self._kem = Kem.X25519 if mlkem is None else Kem.HYBRID
        self._mlkem = mlkem
        self._x25519 = x25519

    @classmethod
    def generate(cls, kem: Kem) -> "SealingKey":
        """Draw a key from the operating system."""
        mlkem = MLKEM768PrivateKey.generate() if kem is Kem.HYBRID else None
        return cls(X25519PrivateKey.generate(), mlkem)

    @classmethod
    def from_bytes(cls, kem: Kem, raw: bytes) -> "SealingKey":
        """Restore a run's key after a restart."""
        if len(raw) != _PRIVATE_BYTES[kem]:
            raise LocalError(
                f"a run's {kem} key has {_PRIVATE_BYTES[kem]} bytes, not {len(raw)}: its file is damaged"
            )
        seed, x25519 = raw[:-32], raw[-32:]
        mlkem = MLKEM768PrivateKey.from_seed_bytes(seed) if kem is Kem.HYBRID else None
        return cls(X25519PrivateKey.from_private_bytes(x25519), mlkem)

    def to_bytes(self) -> bytes:
        """Return the private key itself, for its owner's disk alone."""
        seed = b"" if self._mlkem is None else self._mlkem.private_bytes_raw()
        return seed + self._x25519.private_bytes_raw()

    @property
    def kem(self) -> Kem:
        """The key's mechanism."""
        return self._kem

    @property
    def public(self) -> bytes:
        """The public key that others seal to."""
        mlkem = b"" if self._mlkem is None else self._mlkem.public_key().public_bytes_raw()
        return mlkem + self._x25519.public_key().public_bytes_raw()

    def open(self, sealed: bytes, info: bytes) -> bytes:
        """Decrypt what was sealed to this key under this `info`."""
        try:
            return _SUITES[self._kem].decrypt(sealed, self._private(), info)
        except InvalidTag:
            raise PeerError(RejectReason.BROKEN_SEAL, "a seal does not open with this run's key") from None

    def _private(self) -> X25519PrivateKey | MLKEM768X25519PrivateKey:
        return self._x25519 if self._mlkem is None else MLKEM768X25519PrivateKey(self._mlkem, self._x25519)

    def __repr__(self) -> str:
        return "<SealingKey>"

    def __reduce__(self) -> NoReturn:
        raise LocalError("a run's key cannot be copied or pickled: the copy would outlive the run")


def seal(kem: Kem, public: bytes, plaintext: bytes, info: bytes) -> bytes:
    """Seal to the owner of a public key; sealing the same twice gives different bytes."""
    try:
        return _SUITES[kem].encrypt(plaintext, _load(kem, public), info)
    except ValueError:
        # Wrong length, out of range, or of low order: then the agreed key would be the same for everybody.
        raise PeerError(RejectReason.MALFORMED, f"a public key cannot be used for {kem}") from None


def check_public_key(kem: Kem, public: bytes) -> None:
    """Raise `PeerError` if nothing can be sealed to this key, by trying."""
    seal(kem, public, b"", b"")


def seal_overhead(kem: Kem) -> int:
    """Return the bytes that a seal adds to its content."""
    return _KEMS[kem].enc_length() + _TAG_BYTES


def share_overhead(kem: Kem) -> int:
    """Return the bytes that a chunk of a share grows by: its sealed key, and its own encryption."""
    return seal_overhead(kem) + CHUNK_KEY_BYTES + CHUNK_OVERHEAD


def _load(kem: Kem, public: bytes) -> X25519PublicKey | MLKEM768X25519PublicKey:
    if kem is Kem.X25519:
        return X25519PublicKey.from_public_bytes(public)
    return MLKEM768X25519PublicKey(
        MLKEM768PublicKey.from_public_bytes(public[:_MLKEM_PUBLIC_BYTES]),
        X25519PublicKey.from_public_bytes(public[_MLKEM_PUBLIC_BYTES:]),
    )


class ChunkKey:
    """The AES-256-GCM key of one share set or one sum, which is encrypted chunk by chunk.

    A chunk's number is its nonce, and two plaintexts under one nonce reveal each other, so no number is used
    twice. A key that was restored after a crash does not know its past: it may only encrypt the same again.
    """

    __slots__ = ("_aead", "_raw", "_used")

    def __init__(self, raw: bytes) -> None:
        self._raw = raw
        self._aead = AESGCM(raw)
        self._used: set[int] = set()

    @classmethod
    def fresh(cls) -> "ChunkKey":
        """Draw a key from the operating system."""
        return cls(AESGCM.generate_key(8 * CHUNK_KEY_BYTES))

    @classmethod
    def from_bytes(cls, raw: bytes) -> "ChunkKey":
        """Restore a key that was unsealed."""
        if len(raw) != CHUNK_KEY_BYTES:
            raise PeerError(RejectReason.MALFORMED, f"a key of chunks has {CHUNK_KEY_BYTES} bytes, not {len(raw)}")
        return cls(raw)

    def to_bytes(self) -> bytes:
        """Return the key itself, to be sealed."""
        return self._raw

    def encrypt(self, chunk: int, plaintext: bytes, info: bytes, *, head: bytes = b"") -> bytes:
        """Encrypt one chunk, once; `head` is put before it in the clear."""
        if chunk in self._used:
            raise LocalError(f"chunk {chunk} was encrypted already; its nonce cannot serve again")
        self._used.add(chunk)
        out = bytearray(len(head) + len(plaintext) + CHUNK_OVERHEAD)
        out[: len(head)] = head
        # This releases the GIL, unlike `encrypt`, which allocates.
        self._aead.encrypt_into(_nonce(chunk), plaintext, info, memoryview(out)[len(head) :])
        return bytes(out)

    def decrypt(self, chunk: int, sealed: bytes | memoryview, info: bytes, room: Room = bytearray) -> Decrypted:
        """Decrypt the chunk that was encrypted under this number and `info`; this releases the GIL.

        `room` returns the memory to write into.
        """
        out = room(max(0, len(sealed) - CHUNK_OVERHEAD))
        try:
            self._aead.decrypt_into(_nonce(chunk), sealed, info, out)
        except InvalidTag:
            raise PeerError(RejectReason.BROKEN_SEAL, f"chunk {chunk} does not open with its key") from None
        return out

    def __repr__(self) -> str:
        return "<ChunkKey>"

    def __reduce__(self) -> NoReturn:
        raise LocalError("a key of chunks cannot be copied or pickled: the copy would use its nonces again")


def _nonce(chunk: int) -> bytes:
    return chunk.to_bytes(_NONCE_BYTES, "big")
