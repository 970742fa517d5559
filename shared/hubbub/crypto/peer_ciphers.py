"""Cryptography between two clients: X25519 key agreement, AES-256-CTR streams and AES-256-GCM.

It is handed to strategies whose clients send each other secrets through a server. All of it follows from the
arguments: a client that does the same again, for example after a restart, sends the same bytes.
"""

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from hubbub.crypto.signing import bind
from hubbub.crypto.stream import KEY_BYTES, AesCtrStream, derive_key
from hubbub.errors import PeerError, RejectReason

_NONCE = bytes(12)
"""Every key seals one plaintext only."""


class X25519Ciphers:
    """X25519, HKDF-SHA-256 and AES-256."""

    def public_key(self, private: bytes) -> bytes:
        """Return the public key of 32 random bytes."""
        return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()

    def agree(self, private: bytes, public: bytes, salt: bytes = b"") -> bytes:
        """Return the key that follows from one side's private and the other side's public key, and from a salt.

        Raises `PeerError` for a public key of low order, with which all agree on the same.
        """
        own = X25519PrivateKey.from_private_bytes(private)
        try:
            secret = own.exchange(X25519PublicKey.from_public_bytes(public))
        except ValueError:
            raise PeerError(RejectReason.MALFORMED, "a client's public key cannot be used") from None
        pair = sorted((own.public_key().public_bytes_raw(), public))
        return HKDF(SHA256(), KEY_BYTES, salt=salt, info=bind("hubbub/1 peer key", *pair)).derive(secret)

    def expand(self, key: bytes) -> AesCtrStream:
        """Begin the stream of a key."""
        return AesCtrStream.derived(key, "hubbub/1 peer stream")

    def seal(self, key: bytes, plaintext: bytes, *context: bytes | int) -> bytes:
        """Encrypt and authenticate. With the same key, a context is used for one plaintext only."""
        return _find_aead(key, context).encrypt(_NONCE, plaintext, None)

    def open(self, key: bytes, sealed: bytes, *context: bytes | int) -> bytes:
        """Decrypt; raise `PeerError` if it was sealed with another key or context."""
        try:
            return _find_aead(key, context).decrypt(_NONCE, sealed, None)
        except InvalidTag:
            raise PeerError(RejectReason.BROKEN_SEAL, "what a client sealed to another does not open") from None


def _find_aead(key: bytes, context: tuple[bytes | int, ...]) -> AESGCM:
    return AESGCM(derive_key(key, "hubbub/1 peer seal", *context))


PEER_CIPHERS = X25519Ciphers()
