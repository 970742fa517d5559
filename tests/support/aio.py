"""Async tests: each runs in an event loop of its own, and none is let hang."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import TypeVar

from support.patience import HANG_S

T = TypeVar("T")

CLEAN_UP_S = 5.0
LOOK_AGAIN_S = 0.01


async def bounded(work: Coroutine[object, object, T]) -> T:
    """Run a test or a fixture; cancel it, with whatever it cleans up, if it does not end."""
    task = asyncio.ensure_future(work)
    await asyncio.wait({task}, timeout=HANG_S)
    if task.done():
        return task.result()
    # More than once, because what a test cleans up when it is cancelled may hang as well.
    while not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=CLEAN_UP_S)
    raise TimeoutError(f"the test did not end within {HANG_S:g} s")


async def until(holds: Callable[[], object]) -> None:
    """Return when something holds that nobody announces."""
    while not holds():  # noqa: ASYNC110  (There is nothing to wait for but time.)
        await asyncio.sleep(LOOK_AGAIN_S)
