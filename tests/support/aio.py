"""Async tests without a plug-in: `@aio` runs one in a fresh event loop and never lets it hang."""

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import ParamSpec

from support.patience import HANG_S

P = ParamSpec("P")

TEST_TIMEOUT_S = HANG_S
CLEAN_UP_S = 5.0
LOOK_AGAIN_S = 0.01


Test = Callable[P, Coroutine[object, object, None]]


def aio(test: Test[P]) -> Callable[P, None]:
    return aio_within(TEST_TIMEOUT_S)(test)


def aio_within(timeout_s: float) -> Callable[[Test[P]], Callable[P, None]]:
    """The same for a test that takes as long as it says."""

    def decorate(test: Test[P]) -> Callable[P, None]:
        # functools.wraps keeps the signature, from which pytest reads the fixtures.
        @functools.wraps(test)
        def run(*args: P.args, **kwargs: P.kwargs) -> None:
            asyncio.run(_bounded(test(*args, **kwargs), timeout_s))

        return run

    return decorate


async def _bounded(test: Coroutine[object, object, None], timeout_s: float) -> None:
    task = asyncio.ensure_future(test)
    await asyncio.wait({task}, timeout=timeout_s)
    if task.done():
        return task.result()
    # More than once, because what a test cleans up when it is cancelled may hang as well.
    while not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=CLEAN_UP_S)
    raise TimeoutError(f"the test did not end within {timeout_s:g} s")


async def until(holds: Callable[[], object]) -> None:
    """Return when something holds that nobody announces."""
    while not holds():  # noqa: ASYNC110  (There is nothing to wait for but time.)
        await asyncio.sleep(LOOK_AGAIN_S)
