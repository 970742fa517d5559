import asyncio
from dataclasses import dataclass, field

import pytest

from hubbub.errors import LocalError
from hubbub.transport.base import ACK, RETRY, Delivery, Verdict
from hubbub.transport.subscription import RetryPause, Worker, check_outside
from support.aio import aio


@dataclass
class FakeTaken:
    body: bytes
    stale: bool = False
    fails: bool = False
    verdicts: list[Verdict] = field(default_factory=list)
    settled: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def delivery(self) -> Delivery:
        return Delivery(self.body, redelivered=False)

    def is_stale(self) -> bool:
        return self.stale

    async def settle(self, verdict: Verdict) -> None:
        self.verdicts.append(verdict)
        self.settled.set()
        if self.fails:
            raise RuntimeError("the disk is full")


def test_pause_doubles_up_to_its_limit() -> None:
    pause = RetryPause(first_s=0.1, longest_s=1.0)

    assert [pause.after(n) for n in (1, 2, 3, 4, 5)] == [0.1, 0.2, 0.4, 0.8, 1.0]
    assert pause.after(1_000_000) == 1.0


@aio
async def test_stale_message_is_not_handled() -> None:
    handled: list[bytes] = []

    async def handle(delivery: Delivery) -> Verdict:
        handled.append(delivery.body)
        return ACK

    worker = Worker[FakeTaken]("inbox", handle)
    gone, fresh = FakeTaken(b"gone", stale=True), FakeTaken(b"fresh")
    worker.put(gone)
    worker.put(fresh)
    await fresh.settled.wait()
    await worker.stop()

    assert handled == [b"fresh"]
    assert gone.verdicts == []


@aio
async def test_failure_to_settle_does_not_stop_the_worker() -> None:
    async def handle(_: Delivery) -> Verdict:
        return ACK

    worker = Worker[FakeTaken]("inbox", handle)
    bad, good = FakeTaken(b"", fails=True), FakeTaken(b"")
    worker.put(bad)
    worker.put(good)
    await good.settled.wait()
    await worker.stop()

    assert good.verdicts == [ACK]


@aio
async def test_exception_and_foreign_cancellation_mean_retry() -> None:
    errors: list[BaseException] = [ValueError("a bug"), asyncio.CancelledError()]

    async def handle(_: Delivery) -> Verdict:
        raise errors.pop(0)

    worker = Worker[FakeTaken]("inbox", handle)
    first, second = FakeTaken(b""), FakeTaken(b"")
    worker.put(first)
    worker.put(second)
    await second.settled.wait()
    await worker.stop()

    assert first.verdicts == second.verdicts == [RETRY]


@aio
async def test_stopping_that_is_cancelled_ends_the_handler() -> None:
    holding, ended = asyncio.Event(), asyncio.Event()

    async def hold(_: Delivery) -> Verdict:
        holding.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return ACK

    worker = Worker[FakeTaken]("inbox", hold)
    taken = FakeTaken(b"")
    worker.put(taken)
    await holding.wait()
    stopping = asyncio.create_task(worker.stop())
    await asyncio.sleep(0)
    stopping.cancel()

    with pytest.raises(asyncio.CancelledError):
        await stopping
    assert ended.is_set()
    assert taken.verdicts == []


@aio
async def test_handler_knows_that_it_is_inside() -> None:
    seen: list[Exception] = []

    async def handle(_: Delivery) -> Verdict:
        try:
            check_outside([worker])
        except LocalError as error:
            seen.append(error)
        return ACK

    worker = Worker[FakeTaken]("inbox", handle)
    taken = FakeTaken(b"")
    worker.put(taken)
    await taken.settled.wait()
    check_outside([worker])
    await worker.stop()

    assert len(seen) == 1
