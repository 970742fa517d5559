"""Paillier's encryption of vectors (Paillier, 1999), many elements to a plaintext as in Dong et al. (2020).

    keys       n = p·q, public; p and q, secret
    encrypt    E(m) = (1 + n)^m · r^n mod n²                        with a random r, never used twice
    add        E(m) · E(m') mod n² = E(m + m' mod n)

A plaintext has a slot of 32 bits (24 of precision and 8 of padding, in that work) for each element. n has 2,048
bits and the highest of them set, so 64 slots fit: sums in a slot are below 2^31, so the plaintext is below
2^2047 < n. Ciphertexts have twice as many bits as n. Numbers travel as their 32-bit words, the lowest first.

phe encrypts and decrypts, with the numbers of gmpy2. It is under the GPL and comes with the extra `eastly`, so it
is only imported where a client uses it. A server multiplies without it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from math import ceil
from typing import Any

import numpy as np

from hubbub.errors import ConfigurationError, LocalError, PeerError, RejectReason
from hubbub.protocol.dense import Digits, check_digits
from hubbub.protocol.ring import RandomStream, Residues

KEY_BITS = 2048
SLOT_BITS = 32
SLOTS = KEY_BITS // SLOT_BITS
SLOT_LIMIT = 2 ** (SLOT_BITS - 1)
"""Sums of a slot stay below this."""
WORDS = 2**SLOT_BITS
"""Ring of the words that numbers are cut into."""
KEY_WORDS = KEY_BITS // SLOT_BITS
CIPHERTEXT_WORDS = 2 * KEY_WORDS
_WORD = np.dtype("<u4")


Progress = Callable[[int, int], None]
"""Called with how many are done, and how many there are: a model takes seconds."""


def _ignore(_done: int, _total: int) -> None:
    """Tell nobody."""


def load(module: str) -> Any:
    """Import phe or gmpy2; raise `ConfigurationError`, which names the extra to install, if it is missing."""
    try:
        return import_module(module)
    except ModuleNotFoundError:
        raise ConfigurationError(
            f"Paillier's encryption needs {module}, which is not installed here: pip install 'hubbub[eastly]'"
        ) from None


# Keys ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Key:
    """Public and private key; it does not print."""

    n: int = field(repr=False)
    private: Any = field(repr=False)
    """A `phe.PaillierPrivateKey`, which holds the public one."""


def make_key(stream: RandomStream, bits: int = KEY_BITS) -> Key:
    """Draw two primes; the same stream gives the same key."""
    phe = load("phe")
    p = q = _draw_prime(stream, bits // 2)
    while q == p:
        q = _draw_prime(stream, bits // 2)
    return Key(p * q, phe.PaillierPrivateKey(phe.PaillierPublicKey(p * q), p, q))


def _draw_prime(stream: RandomStream, bits: int) -> int:
    """Draw a prime with its two highest bits set, so that a product of two has twice as many bits."""
    is_prime = load("gmpy2").is_prime  # That of phe takes ten times as long.
    while True:
        candidate = _draw(stream, bits) | 3 << (bits - 2) | 1
        if is_prime(candidate):
            return candidate


def _draw(stream: RandomStream, bits: int) -> int:
    """Draw a number of up to so many bits, a multiple of 8."""
    drawn = np.empty(bits // 8, dtype=np.uint8)
    stream.fill(drawn)
    return int.from_bytes(drawn.tobytes(), "little")


def draw_blinds(stream: RandomStream, n: int, count: int) -> list[int]:
    """Draw an r from [1, n) for each of so many ciphertexts; the stream must be secret and fresh."""
    blinds: list[int] = []
    while len(blinds) < count:
        drawn = _draw(stream, n.bit_length())
        if 0 < drawn < n:
            blinds.append(drawn)
    return blinds


# Clients ------------------------------------------------------------------------------------------------


def count_plaintexts(length: int) -> int:
    """Count the plaintexts that a vector takes."""
    return ceil(length / SLOTS)


def pack(values: Digits) -> list[int]:
    """Pack a vector into plaintexts, the first element lowest; unused slots of the last one are zero."""
    check_digits(values, SLOT_LIMIT)
    slots = np.zeros(count_plaintexts(values.size) * SLOTS, dtype=np.uint32)
    slots[: values.size] = values
    return from_words(slots, SLOTS)


def unpack(plaintexts: Sequence[int], length: int) -> Residues:
    """Undo `pack`, also of sums of plaintexts."""
    return to_words(plaintexts, SLOTS)[:length]


def encrypt(key: Key, plaintexts: Sequence[int], blinds: Sequence[int], progress: Progress = _ignore) -> list[int]:
    """Encrypt plaintexts, each with an r of its own."""
    public, found = key.private.public_key, list[int]()
    for m, r in zip(plaintexts, blinds, strict=True):
        found.append(int(public.raw_encrypt(m, r_value=r)))
        progress(len(found), len(plaintexts))
    return found


def decrypt(key: Key, ciphertexts: Sequence[int], progress: Progress = _ignore) -> list[int]:
    """Decrypt ciphertexts."""
    found = list[int]()
    for each in ciphertexts:
        found.append(int(key.private.raw_decrypt(each)))
        progress(len(found), len(ciphertexts))
    return found


# Server -------------------------------------------------------------------------------------------------


def check_modulus(n: int, bits: int = KEY_BITS) -> None:
    """Raise `PeerError` if n has another size or is even."""
    if n.bit_length() != bits or n % 2 == 0:
        raise PeerError(
            RejectReason.RESIDUE_OUT_OF_RANGE, f"the modulus that was sent is no odd number of {bits} bits"
        )


def check_ciphertexts(ciphertexts: Sequence[int], n: int) -> None:
    """Raise `PeerError` unless all are in [1, n²)."""
    if not all(0 < each < n * n for each in ciphertexts):
        raise PeerError(RejectReason.RESIDUE_OUT_OF_RANGE, "a ciphertext that was sent is zero, or not below n²")


def add(totals: Sequence[int], ciphertexts: Sequence[int], n: int) -> list[int]:
    """Add what is encrypted: multiply mod n²."""
    square = n * n
    return [total * each % square for total, each in zip(totals, ciphertexts, strict=True)]


# Wire ---------------------------------------------------------------------------------------------------


def to_words(numbers: Sequence[int], words: int) -> Residues:
    """Cut each number into so many words; raise `LocalError` if one does not fit."""
    try:
        joined = b"".join(each.to_bytes(words * _WORD.itemsize, "little") for each in numbers)
    except OverflowError:
        raise LocalError(f"a number does not fit {words} words") from None
    return np.frombuffer(joined, dtype=_WORD).astype(np.uint32)


def from_words(residues: Digits, words: int) -> list[int]:
    """Undo `to_words`."""
    rows = residues.astype(_WORD).reshape(-1, words)
    return [int.from_bytes(row.tobytes(), "little") for row in rows]
