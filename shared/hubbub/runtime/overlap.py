"""Sending what is ready while the next is prepared.

A vector travels in chunks: while one is sealed, signed and on its way to the broker, the next is computed. What is
in flight is in memory, so it is bounded; who prepares faster than the broker takes waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import ParamSpec

from hubbub.errors import HubbubError

P = ParamSpec("P")

AT_ONCE = 4
"""Messages in flight: each holds a chunk in memory, and the broker hardly takes more for more of them."""


class Overlap:
    """Begins calls that go on in the background, so many at a time."""

    def __init__(self, at_once: int) -> None:
        self._room = asyncio.Semaphore(at_once)
        self._tasks: set[asyncio.Task[None]] = set()
        self._failure: HubbubError | None = None

    async def begin(self, work: Callable[P, Awaitable[None]], *args: P.args, **kwargs: P.kwargs) -> None:
        """Begin a call as soon as there is room for it; raises what another one has failed with."""
        await self._room.acquire()
        self._raise_failure()
        self._tasks.add(asyncio.create_task(self._finish(work, *args, **kwargs)))

    async def _finish(self, work: Callable[P, Awaitable[None]], *args: P.args, **kwargs: P.kwargs) -> None:
        try:
            await work(*args, **kwargs)
        except HubbubError as error:
            self._failure = self._failure or error
        finally:
            self._room.release()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    async def wait(self) -> None:
        """Return when all have ended; raises the first failure as soon as there is one."""
        while self._tasks and self._failure is None:
            done, self._tasks = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        self._raise_failure()

    async def give_up(self) -> None:
        """End what is still under way."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@asynccontextmanager
async def overlapping(at_once: int = AT_ONCE) -> AsyncIterator[Overlap]:
    """What is begun inside has ended when the block has; the first failure ends all of it and is raised."""
    overlap = Overlap(at_once)
    try:
        yield overlap
        await overlap.wait()
    finally:
        await overlap.give_up()
