"""Times of a phase's steps: first each function of the protocol alone, then the services' work on a chunk.

A function is given a whole vector, as when a vector fits into one chunk. The services' work is everything that the
trainer and the aggregator do between memory and bytes: cutting, splitting, packing; unpacking, checking, adding,
packing; unpacking, recombining.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from benchmarks.timing import Step, Timing, time_steps
from hubbub.crypto.stream import AesCtrStream
from hubbub.messages.manifest import CHUNK_BYTES
from hubbub.protocol import compression, ring, sharing, signs
from hubbub.protocol.layout import Vector, plan_chunks
from hubbub.protocol.ring import Residues
from hubbub.strategies.base import Phase
from hubbub_aggregator.spooled_shares import add_chunk, check_chunk
from hubbub_trainer.round_jobs import deal_chunk, recombine_chunks

CLIENTS = 5
SERVERS = 2
RHO = 0.1
FACTORS_MODULUS = 2**32

FUNCTION = "function"
CHUNKS = "chunks"

_PHASE = Phase("signs")


def time_signs(parameters: int, repeats: int) -> list[Timing]:
    """Time all steps of the signs phase."""
    steps = [*_compression_steps(parameters), *_ring_steps(parameters, signs.modulus(CLIENTS))]
    return time_steps([*steps, *_chunk_steps(parameters, CHUNK_BYTES)], repeats)


def time_factors(repeats: int) -> list[Timing]:
    """Time the steps of the factor phase: the factor is one number, so these times are the cost of a call."""
    return time_steps(_ring_steps(1, FACTORS_MODULUS), repeats)


def time_chunk_sizes(parameters: int, sizes: tuple[int, ...], repeats: int) -> dict[int, list[Timing]]:
    """Time the services' work with several chunk sizes, all in turn so that they compare."""
    steps = {size: _chunk_steps(parameters, size) for size in sizes}
    timings = iter(time_steps([step for size in sizes for step in steps[size]], repeats))
    return {size: [next(timings) for _ in steps[size]] for size in sizes}


def _compression_steps(n: int) -> list[Step]:
    kept = compression.count_kept(n, RHO)
    wanted = np.random.default_rng(0).standard_normal(n).astype(np.float32)
    directions = compression.top_binary(wanted, kept).signs
    residues = signs.to_ring(directions, CLIENTS)
    return [
        Step("TopBinary", FUNCTION, n, 1, partial(compression.top_binary, wanted, kept)),
        Step("T", FUNCTION, n, 1, partial(signs.to_ring, directions, CLIENTS)),
        Step("T⁻¹", FUNCTION, n, 1, partial(signs.from_ring, residues, CLIENTS)),
    ]


def _ring_steps(n: int, m: int) -> list[Step]:
    stream = AesCtrStream.from_os()
    x, total = ring.sample(stream, n, m), ring.sample(stream, n, m)
    sums = [ring.sample(stream, n, m) for _ in range(SERVERS)]
    packed = ring.pack(x, m)
    return [
        Step("sample", FUNCTION, n, 1, partial(ring.sample, stream, n, m)),
        Step("share", FUNCTION, n, SERVERS, partial(sharing.split, x, m, SERVERS, stream)),
        Step("pack", FUNCTION, n, 1, partial(ring.pack, x, m)),
        Step("unpack", FUNCTION, n, 1, partial(ring.unpack, packed, n, m)),
        Step("add", FUNCTION, n, 1, partial(sharing.accumulate, total, x, m)),
        Step("recombine", FUNCTION, n, SERVERS, partial(sharing.recombine, sums, m)),
    ]


def _chunk_steps(n: int, chunk_bytes: int) -> list[Step]:
    vectors = (Vector("signs", n, signs.modulus(CLIENTS)), Vector("factors", 1, FACTORS_MODULUS))
    plan = plan_chunks(vectors, chunk_bytes)
    stream = AesCtrStream.from_os()
    values = tuple(ring.sample(stream, vector.length, vector.modulus) for vector in vectors)

    def deal() -> list[list[bytes]]:
        return [deal_chunk(_PHASE, chunk, vectors, values, SERVERS, stream) for chunk in plan]

    dealt = [deal() for _ in range(CLIENTS)]

    def check() -> None:
        for chunk, payloads in zip(plan, dealt[0], strict=True):
            check_chunk(chunk, vectors, payloads[0])

    def add(server: int) -> list[bytes]:
        return [
            add_chunk(_PHASE, chunk, vectors, [_give(shares[index][server]) for shares in dealt])
            for index, chunk in enumerate(plan)
        ]

    sums = [add(server) for server in range(SERVERS)]

    def recombine() -> list[Residues]:
        return recombine_chunks(_PHASE, plan, vectors, range(SERVERS), lambda server, index: sums[server][index])

    return [
        Step("share, pack", CHUNKS, n, SERVERS, deal),
        Step("unpack to check", CHUNKS, n, 1, check),
        Step("unpack, add, pack", CHUNKS, n, CLIENTS, partial(add, 0)),
        Step("unpack, recombine", CHUNKS, n, SERVERS, recombine),
    ]


def _give(payload: bytes) -> Callable[[], bytes]:
    return lambda: payload
