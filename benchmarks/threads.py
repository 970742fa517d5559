"""Speed-up of an aggregator's opening and adding of a phase with two threads.

Chunks are decrypted, expanded from seeds, added and packed as the aggregator does it, without messages and disks.
All of this but a few Python steps per chunk lets other threads run. The gain from two threads depends on the other
load of the machine, so the gain of AES-CTR alone is measured in turn with it. Times are wall-clock times.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from benchmarks.compact import PhaseSteps
from hubbub.crypto.sealing import ChunkKey
from hubbub.crypto.stream import AesCtrStream
from hubbub.protocol.layout import Payload
from hubbub_aggregator.spooled_shares import Adding, Room

_RAW_BYTES = 2**22
_RAW_PARTS = 8
_INFO = b"benchmark"


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadsTiming:
    """Times of opening and adding all chunks with one and with two threads, and the speed-up."""

    parameters: int
    chunks: int
    one_s: float
    two_s: float
    best_one_s: float
    best_two_s: float
    speedup: float
    raw_speedup: float
    """Speed-up of filling memory with AES-CTR."""


def time_threads(parameters: int, repeats: int) -> ThreadsTiming:
    """Time one thread and two in turn, and AES-CTR alone likewise."""
    phase = PhaseSteps(parameters)
    adding = _seal(phase.begin_adding(), len(phase.plan))
    chunks = [partial(adding.add, index, chunk) for index, chunk in enumerate(phase.plan)]
    raw = [_make_raw() for _ in range(_RAW_PARTS)]
    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(2) as two:
        taken = [
            tuple(_time(pool, calls) for calls in (chunks, raw) for pool in (one, two)) for _ in range(repeats + 1)
        ][1:]
    return ThreadsTiming(
        parameters=parameters,
        chunks=len(chunks),
        one_s=statistics.median(row[0] for row in taken),
        two_s=statistics.median(row[1] for row in taken),
        best_one_s=min(row[0] for row in taken),
        best_two_s=min(row[1] for row in taken),
        speedup=statistics.median(row[0] / row[1] for row in taken),
        raw_speedup=statistics.median(row[2] / row[3] for row in taken),
    )


def _seal(adding: Adding, chunks: int) -> Adding:
    """Return the same addition over encrypted shares, each of which is decrypted when it is added."""
    room = Room()

    def seal(read: Callable[[int], Payload]) -> Callable[[int], Payload]:
        key = ChunkKey.fresh()
        sealed = [key.encrypt(index, bytes(read(index)), _INFO) for index in range(chunks)]
        return lambda index: key.decrypt(index, sealed[index], _INFO, room.take)

    return replace(adding, full=[seal(read) for read in adding.full])


def _make_raw() -> Callable[[], None]:
    return partial(AesCtrStream.from_os().fill, np.zeros(_RAW_BYTES, dtype=np.uint8))


def _time(pool: Executor, calls: Sequence[Callable[[], object]]) -> float:
    began_s = time.perf_counter()
    for done in [pool.submit(call) for call in calls]:
        done.result()
    return time.perf_counter() - began_s
