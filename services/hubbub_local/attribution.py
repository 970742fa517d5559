"""CPU time by party, when all parties share one process and its threads.

The tasks that a party's runner starts, and those that they start, carry the party's name in their context, as
its log lines do. An event loop that times every callback and every call into its threads can therefore tell
which party each was for.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from contextvars import Context
from functools import partial
from pathlib import Path
from typing import TypeVar

from hubbub.protocol.compression import Indices
from hubbub.protocol.metrics import Scores
from hubbub.runtime.telemetry import context, current_context
from hubbub.store.message_file import MessageFile
from hubbub_local.task_wrappers import TaskWrapper
from hubbub_trainer.learning.task import (
    Adjustable,
    FollowsRounds,
    Learner,
    ProgressCallback,
    Task,
    Theta,
    Training,
)

T = TypeVar("T")


class Attribution:
    """CPU seconds by party; excluded time is counted apart in `aside_s`."""

    def __init__(self) -> None:
        self.spent_s: defaultdict[str, float] = defaultdict(float)
        self.aside_s: defaultdict[str, float] = defaultdict(float)
        self._lock = threading.Lock()

    def time(self, call: Callable[[], T]) -> T:
        """Run a call, and count its CPU time for the party in whose context it runs."""
        began_s = time.thread_time()
        try:
            return call()
        finally:
            self._add(self.spent_s, time.thread_time() - began_s)

    @contextmanager
    def put_aside(self) -> Iterator[None]:
        """Exclude the block's CPU time from the party's measured time."""
        began_s = time.thread_time()
        try:
            yield
        finally:
            took_s = time.thread_time() - began_s
            self._add(self.aside_s, took_s)
            self._add(self.spent_s, -took_s)

    def read(self) -> dict[str, float]:
        """Return the CPU seconds so far, by party."""
        with self._lock:
            return dict(self.spent_s)

    def _add(self, where: defaultdict[str, float], took_s: float) -> None:
        with self._lock:
            where[_current_party()] += took_s


def _current_party() -> str:
    """Return the party whose context this is; empty if nobody's."""
    return str(current_context().get("party", ""))


class AttributingLoop(asyncio.SelectorEventLoop):
    """Event loop that times its callbacks and the calls that it hands to threads."""

    def __init__(self, attribution: Attribution) -> None:
        # Before `super().__init__`, which registers a reader for the loop's own pipe.
        self._attribution = attribution
        super().__init__()

    def call_soon(
        self, callback: Callable[..., object], *args: object, context: Context | None = None
    ) -> asyncio.Handle:
        """Run a callback soon, timed."""
        return super().call_soon(self._attribution.time, partial(callback, *args), context=context)

    # The selector calls socket readers and writers, not `call_soon`.
    def _add_reader(self, fd: int, callback: Callable[..., object], *args: object) -> object:
        return super()._add_reader(fd, self._attribution.time, partial(callback, *args))  # type: ignore[misc]

    def _add_writer(self, fd: int, callback: Callable[..., object], *args: object) -> object:
        return super()._add_writer(fd, self._attribution.time, partial(callback, *args))  # type: ignore[misc]

    def run_in_executor(
        self, executor: Executor | None, func: Callable[..., T], *args: object
    ) -> asyncio.Future[T]:
        """Hand a call to a thread, timed, and enter the party's context there."""
        party = _current_party()

        def call() -> T:
            with context(party=party):
                return self._attribution.time(partial(func, *args))

        return super().run_in_executor(executor, call)


class UncountedMessages(MessageFile):
    """Messages in a file; the work on it is the broker's, and excluded from the party's protocol time."""

    def __init__(self, path: Path, attribution: Attribution) -> None:
        super().__init__(path)
        self._attribution = attribution

    def add(self, queue: str, user: str, body: bytes) -> int:
        """Add a message."""
        with self._attribution.put_aside():
            return super().add(queue, user, body)

    def remove(self, number: int) -> None:
        """Remove a message."""
        with self._attribution.put_aside():
            super().remove(number)


class MeasuredTask(TaskWrapper):
    """Wraps a task, and counts the CPU seconds of each client's training."""

    def __init__(self, inner: Task, attribution: Attribution) -> None:
        super().__init__(inner)
        self._attribution = attribution
        self.training_s: dict[int, float] = {}

    def learner(self, *, index: int, clients: int, seed: int) -> MeasuredLearner:
        """Make a client's learner."""
        inner = super().learner(index=index, clients=clients, seed=seed)
        return MeasuredLearner(inner, index, self.training_s, self._attribution)


class MeasuredLearner:
    """One client's learner; its work is excluded from the party's protocol time."""

    def __init__(self, inner: Learner, index: int, training_s: dict[int, float], attribution: Attribution) -> None:
        self._inner = inner
        self._index = index
        self._training_s = training_s
        self._attribution = attribution
        self.samples, self.examples = inner.samples, inner.examples
        if isinstance(inner, Adjustable):
            self.adjusted = partial(self._adjust, inner)
        if isinstance(inner, FollowsRounds):
            self.in_round = partial(self._follow, inner)

    def _follow(self, inner: FollowsRounds, number: int, rounds: int) -> MeasuredLearner:
        return MeasuredLearner(inner.in_round(number, rounds), self._index, self._training_s, self._attribution)

    def _adjust(
        self, inner: Adjustable, *, learning_rate: float | None, movable: Indices | None
    ) -> MeasuredLearner:
        adjusted = inner.adjusted(learning_rate=learning_rate, movable=movable)
        return MeasuredLearner(adjusted, self._index, self._training_s, self._attribution)

    def train(
        self, theta: Theta, *, steps: int, seed: int, progress: ProgressCallback, memory: Theta | None = None
    ) -> Training:
        """Train."""
        began_s = time.thread_time()
        with self._attribution.put_aside():
            training = self._inner.train(theta, steps=steps, seed=seed, progress=progress, memory=memory)
        spent_s = time.thread_time() - began_s
        self._training_s[self._index] = self._training_s.get(self._index, 0.0) + spent_s
        return training

    def evaluate(self, theta: Theta, *, memory: Theta | None = None) -> Scores:
        """Score a model."""
        with self._attribution.put_aside():
            return self._inner.evaluate(theta, memory=memory)
