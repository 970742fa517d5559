"""CPU seconds by party, where all parties share one process.

Each party's tasks and threads carry its name in their context, as its log lines do. So a meter needs two hooks
of the event loop and nothing of a service: a task factory that times every step of a task, and a default executor
that times every call that is given to a thread. `time.thread_time` counts what the thread itself computed, so
neither waiting nor the work of others is in it. A timed block inside another is taken off the outer one: so
training comes out apart from the rest of a trainer's job.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Generator, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

from hubbub.runtime.telemetry import current_context

P = ParamSpec("P")
T = TypeVar("T")

PROTOCOL, TRAINING, EVALUATION, BOOKKEEPING = "protocol", "training", "evaluation", "bookkeeping"


@dataclass(frozen=True, slots=True)
class Reading:
    """What the meter shows at one moment: seconds by party and kind, and those of the whole process.

    `saved` is training that was not done again: it counts as training, but nobody computed it here.
    """

    seconds: Mapping[tuple[str, str], float]
    process_s: float
    saved_s: float

    def since(self, before: Reading) -> Reading:
        """What has been spent since an earlier reading."""
        return Reading(
            {key: value - before.seconds.get(key, 0.0) for key, value in self.seconds.items()},
            self.process_s - before.process_s,
            self.saved_s - before.saved_s,
        )

    def by_party(self, kind: str) -> dict[str, float]:
        """One kind, by party."""
        return {party: value for (party, each), value in sorted(self.seconds.items()) if each == kind and party}

    def total(self, kind: str) -> float:
        """One kind, over all parties."""
        return sum(self.by_party(kind).values())

    @property
    def attributed_s(self) -> float:
        """All that was computed here and is known to be somebody's."""
        known = sum(value for (party, kind), value in self.seconds.items() if party or kind == BOOKKEEPING)
        return known - self.saved_s


class _Inner(threading.local):
    """Seconds that timed blocks inside the current one took, per thread."""

    spent_s = 0.0


class Meter:
    """Adds up CPU seconds."""

    def __init__(self) -> None:
        self._seconds: dict[tuple[str, str], float] = {}
        self._saved_s = 0.0
        self._adding = threading.Lock()
        self._inner = _Inner()

    def read(self) -> Reading:
        """What was spent up to now."""
        with self._adding:
            return Reading(dict(self._seconds), time.process_time(), self._saved_s)

    def add_saved(self, kind: str, seconds: float) -> None:
        """Count what somebody would have spent now, had it not been done before."""
        with self._adding:
            self._saved_s += seconds
        self._add(current_party(), kind, seconds)

    def _add(self, party: str, kind: str, seconds: float) -> None:
        with self._adding:
            self._seconds[party, kind] = self._seconds.get((party, kind), 0.0) + seconds

    @contextmanager
    def timing(self, kind: str, party: str | None = None) -> Iterator[None]:
        """Count what this thread computes in the block, less what blocks inside it count."""
        name = current_party() if party is None else party
        outer_s, self._inner.spent_s = self._inner.spent_s, 0.0
        began_s = time.thread_time()
        try:
            yield
        finally:
            spent_s = time.thread_time() - began_s
            self._add(name, kind, spent_s - self._inner.spent_s)
            self._inner.spent_s = outer_s + spent_s

    def install(self, loop: asyncio.AbstractEventLoop) -> None:
        """Time all that is begun on a loop from now on, for as long as the loop lives."""
        loop.set_default_executor(_Executor(self))
        loop.set_task_factory(self._make_task)

    def _make_task(
        self, loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T] | Generator[Any, None, T], **more: Any
    ) -> asyncio.Task[T]:
        # Not a generator, whatever asyncio's types allow: nobody here has one for a task.
        assert isinstance(work, Coroutine)  # noqa: S101
        return asyncio.Task(_Timed(work, self, current_party()), loop=loop, **more)


def current_party() -> str:
    """Who we are computing for; nobody, outside of a party's tasks and threads."""
    return str(current_context().get("party", ""))


class _Executor(ThreadPoolExecutor):
    """Threads whose work is counted for the party that gave it to them."""

    def __init__(self, meter: Meter) -> None:
        super().__init__(thread_name_prefix="metered")
        self._meter = meter

    def submit(self, work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Take work, for the party in whose context this is called."""
        party = current_party()

        def measured() -> T:
            with self._meter.timing(PROTOCOL, party):
                return work(*args, **kwargs)

        return super().submit(measured)


class _Timed(Coroutine[Any, Any, T]):
    """A coroutine of which every step is counted."""

    def __init__(self, inner: Coroutine[Any, Any, T], meter: Meter, party: str) -> None:
        self._inner = inner
        self._meter = meter
        self._party = party

    def send(self, value: Any, /) -> Any:
        """Go on to the next await."""
        with self._meter.timing(PROTOCOL, self._party):
            return self._inner.send(value)

    def throw(  # type: ignore[override]  # Of the overloads, the form that asyncio uses, and the older one.
        self,
        kind: BaseException | type[BaseException],
        value: BaseException | None = None,
        trace: TracebackType | None = None,
        /,
    ) -> Any:
        """Go on with an error."""
        del trace
        with self._meter.timing(PROTOCOL, self._party):
            return self._inner.throw(kind if value is None else value)

    def close(self) -> None:
        """Give it up."""
        self._inner.close()

    def __await__(self) -> Generator[Any, Any, T]:
        return self._inner.__await__()
