"""CPU time by party, for parties that share a process and work in turn."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Stopwatch:
    """Stopwatch that sums times by name; the default clock is the CPU time of all threads of the process."""

    def __init__(self, clock: Callable[[], float] = time.process_time) -> None:
        self._clock = clock
        self.spent_s: defaultdict[str, float] = defaultdict(float)

    @contextmanager
    def on(self, name: str) -> Iterator[None]:
        began_s = self._clock()
        try:
            yield
        finally:
            self.spent_s[name] += self._clock() - began_s
