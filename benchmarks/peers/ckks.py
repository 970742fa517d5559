"""CKKS with TenSEAL and NVIDIA FLARE's default parameters.

All clients hold one secret key, and the server none. A ciphertext holds as many elements as the scheme has slots.
Clients encrypt and serialise, the server adds ciphertexts as they come and serialises the sum, and every client
decrypts it.
"""

from __future__ import annotations

import time
from types import ModuleType
from typing import Any

import numpy as np

from benchmarks.peers.contest import (
    Contest,
    PeerCost,
    check_error,
    load_peer,
    name_versions,
)
from benchmarks.peers.memory import MemoryWatch
from benchmarks.peers.stopwatch import Stopwatch

SYSTEM = "CKKS (TenSEAL)"
DEGREE = 8192
SLOTS = DEGREE // 2
COEFFICIENT_BITS = (60, 40, 40)
SCALE_BITS = 40
# Noise of the scheme at this scale is near 1e-9 for one ciphertext; sums of updates are near 1e-2.
ALLOWED_ERROR = 1e-6

CLIENT, CLIENT_WIRE, SERVER, SERVER_WIRE = "client", "client wire", "server", "server wire"


def measure_ckks(contest: Contest) -> PeerCost:
    """Measure one round, ciphertext by ciphertext, so that only the current one of each client is in memory."""
    seal = load_peer("tenseal")
    memory = MemoryWatch()
    mine, theirs = _make_contexts(seal)
    watch, total = Stopwatch(), contest.add_up()
    up_bytes = down_bytes = 0
    largest_error = 0.0
    began_s = time.monotonic()
    for start in range(0, contest.parameters, SLOTS):
        piece = slice(start, start + SLOTS)
        sent = [_encrypt(seal, mine, contest.update(place)[piece], watch) for place in range(contest.clients)]
        answer = _add(seal, theirs, sent, watch)
        decrypted = _decrypt(seal, mine, answer, contest.clients, watch)
        up_bytes += sum(map(len, sent))
        down_bytes += len(answer) * contest.clients
        largest_error = max(largest_error, float(np.abs(decrypted - total[piece]).max()))
    wall_s = time.monotonic() - began_s
    return PeerCost(
        system=SYSTEM,
        version=name_versions("tenseal"),
        setting=f"degree {DEGREE}, {'+'.join(map(str, COEFFICIENT_BITS))} bits, scale 2^{SCALE_BITS}",
        parameters=contest.parameters,
        clients=contest.clients,
        up_bytes=up_bytes,
        down_bytes=down_bytes,
        client_s=watch.spent_s[CLIENT] / contest.clients,
        server_s=watch.spent_s[SERVER],
        client_wire_s=watch.spent_s[CLIENT_WIRE] / contest.clients,
        server_wire_s=watch.spent_s[SERVER_WIRE],
        wall_s=wall_s,
        memory_bytes=memory.grown_bytes(),
        largest_error=check_error(SYSTEM, largest_error, ALLOWED_ERROR),
        allowed_error=ALLOWED_ERROR,
        measured=contest.parameters,
    )


def _make_contexts(seal: ModuleType) -> tuple[Any, Any]:
    """Return the clients' context and the server's, each deserialised as after provisioning."""
    context = seal.context(
        seal.SCHEME_TYPE.CKKS,
        poly_modulus_degree=DEGREE,
        coeff_mod_bit_sizes=list(COEFFICIENT_BITS),
        encryption_type=seal.ENCRYPTION_TYPE.SYMMETRIC,
    )
    context.generate_relin_keys()
    context.global_scale = 2**SCALE_BITS
    clients = context.serialize(save_public_key=True, save_secret_key=True, save_galois_keys=False)
    server = context.serialize(save_public_key=False, save_secret_key=False, save_galois_keys=False)
    return seal.context_from(clients), seal.context_from(server)


def _encrypt(seal: ModuleType, context: Any, values: Any, watch: Stopwatch) -> bytes:
    with watch.on(CLIENT):
        encrypted = seal.ckks_vector(context, values)
    with watch.on(CLIENT_WIRE):
        return bytes(encrypted.serialize())


def _add(seal: ModuleType, context: Any, sent: list[bytes], watch: Stopwatch) -> bytes:
    with watch.on(SERVER_WIRE):
        total = seal.ckks_vector_from(context, sent[0])
    for each in sent[1:]:
        with watch.on(SERVER_WIRE):
            received = seal.ckks_vector_from(context, each)
        with watch.on(SERVER):
            total += received
    with watch.on(SERVER_WIRE):
        return bytes(total.serialize())


def _decrypt(seal: ModuleType, context: Any, answer: bytes, clients: int, watch: Stopwatch) -> Any:
    for _ in range(clients):
        with watch.on(CLIENT_WIRE):
            received = seal.ckks_vector_from(context, answer)
        with watch.on(CLIENT):
            decrypted = received.decrypt()
    return np.array(decrypted)
