"""The group secret and transcripts a second time: RFC 5869 from `hmac` alone, nothing of Hubbub."""

import hmac
from collections.abc import Sequence


def frame(*parts: bytes) -> bytes:
    """Each part after its length, eight bytes with the largest first."""
    framed = b""
    for part in parts:
        framed += bytes((len(part) >> shift) & 0xFF for shift in range(56, -1, -8)) + part
    return framed


def extract_and_expand(material: bytes, info: bytes) -> bytes:
    """HKDF-SHA-256 without salt, one block."""
    return expand(hmac.digest(bytes(32), material, "sha256"), info)


def expand(key: bytes, info: bytes) -> bytes:
    """The first and only block of HKDF-Expand."""
    return hmac.digest(key, info + b"\x01", "sha256")


def chain_values(contributions: Sequence[bytes], run: str, run_keys: Sequence[bytes], rounds: int) -> list[bytes]:
    """What the secret is in round 1, 2, and so on."""
    info = frame(b"hubbub/1 group secret", run.encode(), *run_keys)
    values = [extract_and_expand(frame(*contributions), info)]
    for number in range(2, rounds + 1):
        values.append(expand(values[-1], frame(b"step", number.to_bytes(8, "big"))))
    return values


def confirmation(first: bytes, run: str) -> str:
    """The tag that all clients sign."""
    return hmac.digest(expand(first, frame(b"confirmation")), frame(run.encode()), "sha256").hex()


def round_key(chain: bytes, number: int, purpose: str) -> bytes:
    """The key for one purpose in the round that a chain value is of."""
    return expand(chain, frame(b"key", number.to_bytes(8, "big"), purpose.encode()))


def transcript(key: bytes, parts: Sequence[bytes], phase: str) -> str:
    """All parts and the phase at once."""
    return hmac.digest(key, frame(*parts, phase.encode()), "sha256").hex()
