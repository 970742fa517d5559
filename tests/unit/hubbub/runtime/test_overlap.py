import asyncio
import gc

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


@aio
async def test_caller_goes_on_while_what_it_began_is_under_way() -> None:
    gate = Gate()

    async with overlapping(2) as overlap:
        await overlap.begin(gate.pass_through)
        await overlap.begin(gate.pass_through)
        await settle()
        assert (gate.waiting, gate.done) == (2, 0)
        gate.open()

    assert gate.done == 2


@aio
async def test_no_more_than_so_many_are_under_way() -> None:
    gate = Gate()

    async def prepare_three() -> None:
        async with overlapping(2) as overlap:
            for _ in range(3):
                await overlap.begin(gate.pass_through)

    preparing = asyncio.create_task(prepare_three())
    await settle()
    assert gate.waiting == 2
    gate.open()
    await preparing

    assert gate.done == 3


@aio
async def test_failure_in_the_background_is_raised_as_itself_and_ends_the_rest() -> None:
    gate = Gate()

    async def fail() -> None:
        raise TransportError("the broker is gone")

    async def prepare() -> None:
        async with overlapping(2) as overlap:
            await overlap.begin(gate.pass_through)
            await overlap.begin(fail)
            await overlap.begin(gate.pass_through)

    with pytest.raises(TransportError, match="the broker is gone"):
        await prepare()

    assert gate.done == 0


@aio
async def test_failure_of_the_caller_is_raised_as_itself_and_ends_the_rest() -> None:
    gate = Gate()

    async def prepare() -> None:
        async with overlapping(2) as overlap:
            await overlap.begin(gate.pass_through)
            await settle()
            raise LocalError("nothing left to send")

    with pytest.raises(LocalError, match="nothing left"):
        await prepare()

    assert gate.done == 0


@aio
async def test_cancelling_the_caller_ends_what_it_began() -> None:
    gate = Gate()

    async def prepare() -> None:
        async with overlapping(1) as overlap:
            await overlap.begin(gate.pass_through)
            await overlap.begin(gate.pass_through)

    preparing = asyncio.create_task(prepare())
    await settle()
    preparing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await preparing

    assert gate.done == 0


@aio
async def test_bug_in_the_background_is_raised_as_itself() -> None:
    async def stumble() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        async with overlapping(2) as overlap:
            await overlap.begin(stumble)


@aio
async def test_no_task_is_left_with_a_failure_that_nobody_saw() -> None:
    seen: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, what: seen.append(what))

    async def fail() -> None:
        raise TransportError("the broker is gone")

    async def prepare() -> None:
        async with overlapping(2) as overlap:
            await overlap.begin(fail)
            await overlap.begin(fail)

    with pytest.raises(TransportError):
        await prepare()
    gc.collect()

    assert seen == []
