"""Paillier with phe, with elements packed into plaintexts as EaSTLy packs them.

All clients hold one secret key, and the server none. An element is a fixed-point number of 24 bits under 8 bits
of padding, into which the sum of up to 256 clients grows, and as many as fit make one plaintext. phe does not
pack, so that is done here with numpy.
"""

from __future__ import annotations

import time
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.peers.contest import (
    Contest,
    PeerCost,
    PeerMissing,
    check_error,
    load_peer,
    name_versions,
)
from benchmarks.peers.memory import MemoryWatch
from benchmarks.peers.stopwatch import Stopwatch

SYSTEM = "Paillier (phe)"
KEY_BITS = 2048
PRECISION_BITS, PADDING_BITS = 24, 8
SLOTS = KEY_BITS // (PRECISION_BITS + PADDING_BITS) - 1
"""All slots but the highest: a plaintext must be less than the modulus, of which only the highest bit is sure."""
LARGEST = 0.5
"""Bound to which updates are clipped on both sides."""
CIPHERTEXT_BYTES = 2 * KEY_BITS // 8
_STEP = 2 * LARGEST / (2**PRECISION_BITS - 1)
_SLOT_BYTES = (PRECISION_BITS + PADDING_BITS) // 8
_SLOT_TYPE = np.dtype("<u4")

CLIENT, CLIENT_WIRE, SERVER, SERVER_WIRE = "client", "client wire", "server", "server wire"


def measure_paillier(contest: Contest, *, measured: int | None = None) -> PeerCost:
    """Measure one round over the first `measured` elements; bytes and times are scaled up if there are more."""
    phe = load_peer("phe.paillier")
    load_peer("gmpy2")
    if not load_peer("phe.util").HAVE_GMP:
        raise PeerMissing("phe does not use gmpy2, without which it is many times slower")
    if contest.clients > 2**PADDING_BITS:
        raise ValueError(f"{PADDING_BITS} bits of padding hold the sum of at most {2**PADDING_BITS} clients")
    length = min(measured or contest.parameters, contest.parameters)
    memory = MemoryWatch()
    public, private = phe.generate_paillier_keypair(n_length=KEY_BITS)
    watch, began_s = Stopwatch(), time.monotonic()
    sent = [_encrypt(public, contest.update(place)[:length], watch) for place in range(contest.clients)]
    answer = _add(phe, public, sent, watch)
    decrypted = _decrypt(private, answer, length, contest.clients, watch)
    wall_s, scale = time.monotonic() - began_s, _count_plaintexts(contest.parameters) / _count_plaintexts(length)
    error = float(np.abs(decrypted - contest.add_up()[:length]).max())
    return PeerCost(
        system=SYSTEM,
        version=name_versions("phe", "gmpy2"),
        setting=f"{KEY_BITS} bits, {SLOTS} elements of {PRECISION_BITS} + {PADDING_BITS} bits a ciphertext",
        parameters=contest.parameters,
        clients=contest.clients,
        up_bytes=round(sum(map(len, sent)) * scale),
        down_bytes=round(len(answer) * contest.clients * scale),
        client_s=(watch.spent_s[CLIENT] / contest.clients) * scale,
        server_s=watch.spent_s[SERVER] * scale,
        client_wire_s=(watch.spent_s[CLIENT_WIRE] / contest.clients) * scale,
        server_wire_s=watch.spent_s[SERVER_WIRE] * scale,
        wall_s=wall_s * scale,
        memory_bytes=memory.grown_bytes(),
        largest_error=check_error(SYSTEM, error, contest.clients * _STEP),
        allowed_error=contest.clients * _STEP,
        measured=length,
    )


def _count_plaintexts(elements: int) -> int:
    return -(-elements // SLOTS)


def pack(values: NDArray[np.float32]) -> list[int]:
    """Pack fixed-point numbers into plaintexts, the first lowest; all are shifted to be positive."""
    clipped = np.clip(values, -LARGEST, LARGEST).astype(np.float64)
    slots = np.zeros(_count_plaintexts(values.size) * SLOTS, dtype=_SLOT_TYPE)
    slots[: values.size] = np.rint((clipped + LARGEST) / _STEP)
    return [int.from_bytes(row.tobytes(), "little") for row in slots.reshape(-1, SLOTS)]


def unpack(plaintexts: list[int], length: int, summands: int) -> NDArray[np.float64]:
    """Return the sums in plaintexts; each summand was shifted once."""
    packed = b"".join(each.to_bytes(SLOTS * _SLOT_BYTES, "little") for each in plaintexts)
    slots = np.frombuffer(packed, dtype=_SLOT_TYPE)[:length].astype(np.float64)
    slots *= _STEP
    slots -= summands * LARGEST
    return slots


def _encrypt(public: Any, values: NDArray[np.float32], watch: Stopwatch) -> bytes:
    with watch.on(CLIENT):
        ciphertexts = [public.raw_encrypt(plaintext) for plaintext in pack(values)]
    with watch.on(CLIENT_WIRE):
        return _to_bytes(ciphertexts)


def _add(phe: ModuleType, public: Any, sent: list[bytes], watch: Stopwatch) -> bytes:
    with watch.on(SERVER_WIRE):
        received = [_from_bytes(each) for each in sent]
    with watch.on(SERVER):
        encrypted = ([phe.EncryptedNumber(public, each) for each in one] for one in received)
        totals = [sum(others, start=first) for first, *others in zip(*encrypted, strict=True)]
    with watch.on(SERVER_WIRE):
        # Sums keep the clients' randomness: the server need not randomise them again.
        return _to_bytes([total.ciphertext(be_secure=False) for total in totals])


def _decrypt(private: Any, answer: bytes, length: int, clients: int, watch: Stopwatch) -> NDArray[np.float64]:
    for _ in range(clients):
        with watch.on(CLIENT_WIRE):
            received = _from_bytes(answer)
        with watch.on(CLIENT):
            totals = unpack([private.raw_decrypt(each) for each in received], length, clients)
    return totals


def _to_bytes(ciphertexts: list[int]) -> bytes:
    return b"".join(each.to_bytes(CIPHERTEXT_BYTES, "little") for each in ciphertexts)


def _from_bytes(data: bytes) -> list[int]:
    pieces = (data[start : start + CIPHERTEXT_BYTES] for start in range(0, len(data), CIPHERTEXT_BYTES))
    return [int.from_bytes(piece, "little") for piece in pieces]
