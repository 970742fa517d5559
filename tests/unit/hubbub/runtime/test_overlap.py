import asyncio
import gc
from collections.abc import Awaitable, Callable

import pytest

from hubbub.errors import LocalError, TransportError
from hubbub.runtime.publisher import overlapping
from support.aio import aio


class Gate:
    """Work that waits to be let through, and counts how many wait."""

    def __init__(self) -> None:
        self.waiting = 0
        self.done = 0
        self._open = asyncio.Event()

    def open(self) -> None:
        self._open.set()

    async def pass_through(self) -> None:
        self.waiting += 1
        await self._open.wait()
        self.waiting -= 1
        self.done += 1


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def begin(*calls: Callable[[], Awaitable[None]], at_once: int = 2) -> None:
    async with overlapping(at_once) as overlap:
        for call in calls:
            await overlap.begin(call)


@aio
async def test_caller_goes_on_while_what_it_began_is_under_way_and_no_more_than_so_many_are() -> None:
    gate = Gate()

    beginning = asyncio.create_task(begin(*[gate.pass_through] * 3))
    await settle()
    assert (gate.waiting, gate.done) == (2, 0)
    gate.open()
    await beginning

    assert gate.done == 3


@aio
async def test_failure_in_the_background_is_raised_as_itself_and_ends_the_rest() -> None:
    gate, unseen = Gate(), list[dict[str, object]]()
    asyncio.get_running_loop().set_exception_handler(lambda _, what: unseen.append(what))

    async def fail() -> None:
        raise TransportError("the broker is gone")

    async def stumble() -> None:
        raise ZeroDivisionError

    for calls in ((gate.pass_through, fail), (gate.pass_through, fail, gate.pass_through), (fail, fail)):
        with pytest.raises(TransportError, match="the broker is gone"):
            await begin(*calls)
    with pytest.raises(ZeroDivisionError):
        await begin(gate.pass_through, stumble)
    gc.collect()

    assert gate.done == 0
    assert unseen == [], "no task is left with a failure that nobody saw"


@aio
async def test_failure_or_cancellation_of_the_caller_is_raised_as_itself_and_ends_the_rest() -> None:
    gate = Gate()

    async def fail_after_beginning() -> None:
        async with overlapping(2) as overlap:
            await overlap.begin(gate.pass_through)
            await settle()
            raise LocalError("nothing left to send")

    with pytest.raises(LocalError, match="nothing left"):
        await fail_after_beginning()
    beginning = asyncio.create_task(begin(gate.pass_through, gate.pass_through, at_once=1))
    await settle()
    beginning.cancel()
    with pytest.raises(asyncio.CancelledError):
        await beginning

    assert gate.done == 0
