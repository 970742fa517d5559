"""An event loop that owns its time: nothing waits, and nothing happens beside it.

When nothing is left to do, time jumps to the next timer. What runs in threads elsewhere runs here at once, in the
loop itself, and its result comes when `pace` says. So one history of calls has one outcome, however fast or busy
the machine is.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable
from typing import Any


class NothingLeft(Exception):
    """Nobody can do anything any more, and no timer will change that."""


class ManualLoop(asyncio.SelectorEventLoop):
    """Time begins at zero and moves only when everybody waits."""

    def __init__(self, pace: Callable[[], float] = lambda: 0.0) -> None:
        self.now_s = 0.0
        self._pace = pace
        super().__init__(_Jump(self))

    def time(self) -> float:
        return self.now_s

    def run_in_executor(  # type: ignore[override]  # The same, for callers that name no executor.
        self, executor: None, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        del executor
        done: asyncio.Future[Any] = self.create_future()
        try:
            result = func(*args)
        except BaseException as error:  # noqa: BLE001  (Whatever it is, it is for the one who waits.)
            done.set_exception(error)
        else:
            self.call_later(self._pace(), _give, done, result)
        return done


class _Jump(selectors.SelectSelector):
    """Instead of waiting for files it moves the time; there are no files."""

    def __init__(self, loop: ManualLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise NothingLeft
        self._loop.now_s += max(0.0, timeout)
        return []


def _give(done: asyncio.Future[Any], result: object) -> None:
    if not done.done():
        done.set_result(result)
