import asyncio
from dataclasses import dataclass, field

import pytest

from hubbub.errors import LocalError
from hubbub.transport.base import ACK, RETRY, Delivery, Verdict
from hubbub.transport.subscription import RetryPause, Worker, check_outside


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


async def test_a_stale_message_is_not_handled_and_no_failure_stops_the_worker() -> None:
    seen: list[Exception] = []

    async def handle(delivery: Delivery) -> Verdict:
        if delivery.body == b"bug":
            raise ValueError("a bug")
        if delivery.body == b"cancelled":
            raise asyncio.CancelledError
        try:
            check_outside([worker])
        except LocalError as error:
            seen.append(error)
        return ACK

    worker = Worker[FakeTaken]("inbox", handle)
    gone, unsettled = FakeTaken(b"gone", stale=True), FakeTaken(b"unsettled", fails=True)
    bug, cancelled, fresh = FakeTaken(b"bug"), FakeTaken(b"cancelled"), FakeTaken(b"fresh")
    for taken in (gone, unsettled, bug, cancelled, fresh):
        worker.put(taken)
    await fresh.settled.wait()
    check_outside([worker])
    await worker.stop()

    assert gone.verdicts == []
    assert bug.verdicts == cancelled.verdicts == [RETRY]
    assert unsettled.verdicts == fresh.verdicts == [ACK]
    assert len(seen) == 2, "a handler knows that it is inside"


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
