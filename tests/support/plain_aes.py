"""AES-256 in counter mode a second time: FIPS 197 in plain Python, to check the stream's vectors with."""

from functools import cache


def _times(a: int, b: int) -> int:
    """Multiply in GF(2^8) mod x^8 + x^4 + x^3 + x + 1."""
    product = 0
    while b:
        product ^= a if b & 1 else 0
        a = (a << 1) ^ (0x11B if a & 0x80 else 0)
        b >>= 1
    return product


@cache
def _substitute(byte: int) -> int:
    """The S-box: the inverse, then an affine map."""
    inverse = next((c for c in range(256) if _times(byte, c) == 1), 0)
    turned = [inverse] + [((inverse << k) | (inverse >> (8 - k))) & 0xFF for k in range(1, 5)]
    return turned[0] ^ turned[1] ^ turned[2] ^ turned[3] ^ turned[4] ^ 0x63


def _round_keys(key: bytes) -> list[bytes]:
    words = [key[i : i + 4] for i in range(0, 32, 4)]
    constant = 1
    for i in range(8, 60):
        word = words[-1]
        if i % 8 == 0:
            word = bytes(_substitute(b) for b in word[1:] + word[:1])
            word = bytes([word[0] ^ constant]) + word[1:]
            constant = _times(constant, 2)
        elif i % 8 == 4:
            word = bytes(_substitute(b) for b in word)
        words.append(bytes(a ^ b for a, b in zip(words[i - 8], word, strict=True)))
    return [b"".join(words[i : i + 4]) for i in range(0, 60, 4)]


def _mix(column: bytes) -> bytes:
    a, b, c, d = column
    rows = ((a, b, c, d), (b, c, d, a), (c, d, a, b), (d, a, b, c))
    return bytes(_times(w, 2) ^ _times(x, 3) ^ y ^ z for w, x, y, z in rows)


def encrypt_block(key: bytes, block: bytes) -> bytes:
    keys = _round_keys(key)
    state = bytes(a ^ b for a, b in zip(block, keys[0], strict=True))
    for number, round_key in enumerate(keys[1:], start=1):
        state = bytes(_substitute(b) for b in state)
        state = bytes(state[(i + 4 * (i % 4)) % 16] for i in range(16))
        if number < len(keys) - 1:
            state = b"".join(_mix(state[i : i + 4]) for i in range(0, 16, 4))
        state = bytes(a ^ b for a, b in zip(state, round_key, strict=True))
    return state


def counter_stream(key: bytes, size: int) -> bytes:
    """The encrypted blocks 0, 1, 2, …, counted big-endian."""
    blocks = range(-(-size // 16))
    return b"".join(encrypt_block(key, i.to_bytes(16, "big")) for i in blocks)[:size]
