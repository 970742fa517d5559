"""Times as ratios: every step is timed together with two yardsticks.

A machine's speed changes from minute to minute, and more so when others use it. So each repeat of a step is
preceded by a repeat of both yardsticks, over the same number of bytes, and the median of these ratios is kept.
Time is the CPU time of this thread: the steps wait for nothing, so on a quiet machine it is the wall-clock time,
and on a busy one the share of others is left out.
"""

from __future__ import annotations

import math
import statistics
import time
import timeit
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from hubbub.crypto.stream import AesCtrStream

ELEMENT_BYTES = 4
"""A residue in memory is a uint32."""

# Shorter samples would measure the clock and the call.
_SHORTEST_SAMPLE_S = 0.002


@dataclass(frozen=True, slots=True)
class Step:
    """Step to time, over `vectors` vectors of `elements` elements."""

    name: str
    path: str
    elements: int
    vectors: int
    run: Callable[[], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Time of a step, and its ratio to each yardstick over the same bytes."""

    name: str
    path: str
    elements: int
    vectors: int
    seconds: float
    stream_ratio: float
    addition_ratio: float


class Yardsticks:
    """Yardsticks: the AES-CTR key stream and numpy's addition, both into preallocated memory."""

    def __init__(self, elements: int) -> None:
        self._stream = AesCtrStream.from_os()
        self._bytes = np.zeros(elements * ELEMENT_BYTES, dtype=np.uint8)
        self._a, self._b, self._sum = (np.ones(elements, dtype=np.uint32) for _ in range(3))

    def fill_stream(self) -> None:
        self._stream.fill(self._bytes)

    def add(self) -> None:
        np.add(self._a, self._b, out=self._sum)


def time_steps(steps: Sequence[Step], repeats: int) -> list[Timing]:
    """Time all steps `repeats` times in turn, so that a slow moment affects all of them alike."""
    yardsticks = {elements: Yardsticks(elements) for elements in {step.elements for step in steps}}
    trios = [
        [
            make_sampler(run)
            for run in (step.run, yardsticks[step.elements].fill_stream, yardsticks[step.elements].add)
        ]
        for step in steps
    ]
    samples: list[list[tuple[float, float, float]]] = [[] for _ in steps]
    for _ in range(repeats):
        for (own, stream, addition), taken in zip(trios, samples, strict=True):
            beside = stream(), addition()
            taken.append((own(), *beside))
    return [_summarise(step, taken) for step, taken in zip(steps, samples, strict=True)]


def make_sampler(run: Callable[[], object]) -> Callable[[], float]:
    """Return a function that times `run`, repeating it until a sample is long enough."""
    timer = timeit.Timer(run, timer=time.thread_time)
    timer.timeit(1)
    loops = max(1, math.ceil(_SHORTEST_SAMPLE_S / max(timer.timeit(1), 1e-9)))
    return lambda: timer.timeit(loops) / loops


def _summarise(step: Step, samples: Iterable[tuple[float, float, float]]) -> Timing:
    taken = list(samples)
    return Timing(
        name=step.name,
        path=step.path,
        elements=step.elements,
        vectors=step.vectors,
        seconds=statistics.median(own for own, _, _ in taken),
        stream_ratio=statistics.median(own / (stream * step.vectors) for own, stream, _ in taken),
        addition_ratio=statistics.median(own / (addition * step.vectors) for own, _, addition in taken),
    )
