"""Identity keys (Ed25519), and the unambiguous encoding of what is signed, sealed or hashed together.

A party is its key, for as long as the roster says so. A signature is bound to this protocol and to a domain, so
that one given for one purpose is invalid for another.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NoReturn

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from hubbub.errors import ConfigurationError, LocalError

Part = bytes | str | int


def bind(*parts: Part) -> bytes:
    """Join parts, each prefixed with its length in 8 bytes, so that no two lists of parts give the same bytes."""
    pieces: list[bytes] = []
    for part in parts:
        encoded = _encode(part)
        pieces += (len(encoded).to_bytes(8, "big"), encoded)
    return b"".join(pieces)


def _encode(part: Part) -> bytes:
    """Encode one part; an integer takes 8 bytes, and the context says which parts are integers."""
    if isinstance(part, bytes):
        return part
    return part.encode() if isinstance(part, str) else part.to_bytes(8, "big")


KEY_BYTES = 32
SIGNATURE_BYTES = 64

_PROTOCOL = "hubbub/1"

# The curve is -x² + y² = 1 + d·x²·y² over the integers mod p.
_P = 2**255 - 19
_D = -121665 * pow(121666, -1, _P) % _P


class SigningKey:
    """A party's Ed25519 identity key; it exists once, in one process."""

    __slots__ = ("_key",)

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key

    @classmethod
    def generate(cls) -> SigningKey:
        """Draw a key from the operating system."""
        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def from_bytes(cls, raw: bytes) -> SigningKey:
        """Restore a stored key."""
        if len(raw) != KEY_BYTES:
            raise ConfigurationError(
                f"an identity key has {KEY_BYTES} bytes, not {len(raw)}; restore the key's file, or make a new key"
            )
        return cls(Ed25519PrivateKey.from_private_bytes(raw))

    def to_bytes(self) -> bytes:
        """Return the private key itself, for its owner's disk alone."""
        return self._key.private_bytes_raw()

    @property
    def public(self) -> bytes:
        """The public key, by which the roster knows this party."""
        return self._key.public_key().public_bytes_raw()

    def sign(self, domain: str, message: bytes) -> bytes:
        """Sign a message for one purpose, its domain."""
        return self._key.sign(bind(_PROTOCOL, domain, message))

    def __repr__(self) -> str:
        return "<SigningKey>"

    def __reduce__(self) -> NoReturn:
        raise LocalError("an identity key cannot be copied or pickled: it would leave the place that guards it")


def verify(public: bytes, signature: bytes, domain: str, message: bytes) -> bool:
    """Say whether the owner of `public` signed this message for this purpose; a bad key signs nothing."""
    key = _load(public)
    if key is None:
        return False
    try:
        key.verify(signature, bind(_PROTOCOL, domain, message))
    except InvalidSignature:
        return False
    return True


@lru_cache(maxsize=1024)
def _load(public: bytes) -> Ed25519PublicKey | None:
    """Return the key, or None if it is a bad one; cached, because a roster's keys are used again and again."""
    return Ed25519PublicKey.from_public_bytes(public) if _weakness(public) is None else None


def check_public_key(public: bytes) -> None:
    """Raise `ConfigurationError` for a key that is no point of the curve, or under which anybody can sign."""
    weakness = _weakness(public)
    if weakness is None and not _is_on_curve(_y_of(public)):
        weakness = "is no point of the curve"
    if weakness is not None:
        raise ConfigurationError(f"an identity key {weakness}; ask its owner for the public key again")


def _weakness(public: bytes) -> str | None:
    """Say what is wrong with a key that the library would still load (it checks the length only), or None."""
    if len(public) != KEY_BYTES:
        return f"has {len(public)} bytes instead of {KEY_BYTES}"
    y = _y_of(public)
    if y >= _P:
        return "is not in its one canonical form"
    if _is_small(y):
        return "is of small order, so that one signature fits many messages"
    return None


def _y_of(public: bytes) -> int:
    """Return the point's y; the top bit is the sign of x."""
    return int.from_bytes(public, "little") % 2**255


def _is_small(y: int) -> bool:
    """Say whether the points at this y have an order that divides 8.

    Those of order 1, 2 and 4 have y = 1, -1 and 0. One of order 8 doubles to y = 0, hence x² = -y², which turns
    the curve into d·y⁴ + 2y² = 1.
    """
    return y in {0, 1, _P - 1} or (_D * y**4 + 2 * y**2 - 1) % _P == 0


def _is_on_curve(y: int) -> bool:
    """Say whether an x exists for this y: x² = (y² - 1)/(d·y² + 1) must be a square (Euler's criterion)."""
    return pow((y**2 - 1) * (_D * y**2 + 1), (_P - 1) // 2, _P) == 1
