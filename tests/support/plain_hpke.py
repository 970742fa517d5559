"""HPKE with X25519 and HKDF-SHA-256 (RFC 9180, base mode) a second time, in plain Python integers.

The curve is RFC 7748's ladder, the AEAD is GCM (NIST SP 800-38D) over the AES of `plain_aes`; slow, and not safe
against anybody who measures time.
"""

import hmac

from support.plain_aes import encrypt_block

_P = 2**255 - 19
_BASE = (9).to_bytes(32, "little")


def multiply(scalar: bytes, u: bytes) -> bytes:
    """X25519: the u of scalar times the point at `u`."""
    k = int.from_bytes(scalar, "little") % 2**254 // 8 * 8 + 2**254
    x = int.from_bytes(u, "little") % 2**255
    low, high = (1, 0), (x, 1)
    for bit in range(254, -1, -1):
        if k >> bit & 1:
            low, high = _sum(low, high, x), _double(high)
        else:
            low, high = _double(low), _sum(low, high, x)
    return (low[0] * pow(low[1], _P - 2, _P) % _P).to_bytes(32, "little")


def _double(point: tuple[int, int]) -> tuple[int, int]:
    x, z = point
    plus, minus = (x + z) ** 2, (x - z) ** 2
    return plus * minus % _P, (plus - minus) * (plus + 121665 * (plus - minus)) % _P


def _sum(first: tuple[int, int], second: tuple[int, int], difference: int) -> tuple[int, int]:
    """Add two points whose difference has u = `difference`."""
    cross, other = (first[0] - first[1]) * (second[0] + second[1]), (first[0] + first[1]) * (second[0] - second[1])
    return (cross + other) ** 2 % _P, difference * (cross - other) ** 2 % _P


def public_of(private: bytes) -> bytes:
    return multiply(private, _BASE)


def _extract(suite: bytes, salt: bytes, label: bytes, material: bytes) -> bytes:
    return hmac.digest(salt or bytes(32), b"HPKE-v1" + suite + label + material, "sha256")


def _expand(suite: bytes, key: bytes, label: bytes, info: bytes, length: int) -> bytes:
    labelled = length.to_bytes(2, "big") + b"HPKE-v1" + suite + label + info
    return hmac.digest(key, labelled + b"\x01", "sha256")[:length]


def shared_secret(enc: bytes, private: bytes) -> bytes:
    """What the KEM gives the recipient."""
    suite = b"KEM\x00\x20"
    agreed = _extract(suite, b"", b"eae_prk", multiply(private, enc))
    return _expand(suite, agreed, b"shared_secret", enc + public_of(private), 32)


def schedule(shared: bytes, info: bytes, *, aead: int, key_bytes: int) -> tuple[bytes, bytes]:
    """The key and the first nonce."""
    suite = b"HPKE\x00\x20\x00\x01" + aead.to_bytes(2, "big")
    context = b"\x00" + _extract(suite, b"", b"psk_id_hash", b"") + _extract(suite, b"", b"info_hash", info)
    secret = _extract(suite, shared, b"secret", b"")
    return _expand(suite, secret, b"key", context, key_bytes), _expand(suite, secret, b"base_nonce", context, 12)


def open_sealed(sealed: bytes, private: bytes, info: bytes) -> bytes:
    """Open `enc` and the ciphertext of AES-256-GCM that follows it."""
    key, nonce = schedule(shared_secret(sealed[:32], private), info, aead=2, key_bytes=32)
    return gcm_open(key, nonce, sealed[32:], b"")


def gcm_open(key: bytes, nonce: bytes, sealed: bytes, associated: bytes) -> bytes:
    """AES-256-GCM with a nonce of 12 bytes; the tag comes last."""
    text, tag = sealed[:-16], sealed[-16:]
    lengths = (8 * len(associated)).to_bytes(8, "big") + (8 * len(text)).to_bytes(8, "big")
    hashed = _ghash(encrypt_block(key, bytes(16)), _padded(associated) + _padded(text) + lengths)
    assert _xor(hashed, encrypt_block(key, nonce + b"\x00\x00\x00\x01")) == tag, "the tag is another"
    blocks = range(0, len(text), 16)
    return b"".join(
        _xor(text[start : start + 16], encrypt_block(key, nonce + (start // 16 + 2).to_bytes(4, "big")))
        for start in blocks
    )


def _ghash(key: bytes, data: bytes) -> bytes:
    total = bytes(16)
    for start in range(0, len(data), 16):
        total = _times(_xor(total, data[start : start + 16]), key)
    return total


def _times(a: bytes, b: bytes) -> bytes:
    """Multiply in GF(2^128), whose bits run from the left: x^0 is the first."""
    x, product, v = int.from_bytes(a, "big"), 0, int.from_bytes(b, "big")
    for bit in range(127, -1, -1):
        product ^= v if x >> bit & 1 else 0
        v = v >> 1 ^ (0xE1 << 120 if v & 1 else 0)
    return product.to_bytes(16, "big")


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 16)


def _xor(a: bytes, b: bytes) -> bytes:
    return bytes(x ^ y for x, y in zip(a, b, strict=False))
