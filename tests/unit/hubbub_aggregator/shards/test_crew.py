"""An aggregator whose workers die: what they had begun is done by others, and nobody else can tell."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from hubbub.errors import RejectReason
from hubbub.messages.codec import decode
from hubbub.messages.rounds import ClosePhase, OrderRefused, PhaseReleased
from hubbub.messages.runs import RunEnded
from hubbub.transport.base import RETRY, Address, Transport
from hubbub_aggregator.shards import hand as hands
from hubbub_aggregator.shards.launching import WorkerTask
from hubbub_aggregator.shards.words import Dismissal
from hubbub_aggregator.shards.worker import Worker
from support.aggregator_scene import CLIENTS, PLAN, Scene, make_receipts, scene_of
from support.aio import aio
from support.compact_scene import compact_scene
from support.deaths import Fate
from support.wrapping import Wrapping

WORKERS = 2
DONE = RunEnded(outcome="completed", reason="all rounds are done")


class Nest:
    """Where workers are started, and killed."""

    def __init__(self, scene: Scene) -> None:
        usual = scene.launch(Fate())
        self._launch = replace(usual, connect=lambda: Deadly(usual.connect(), self))
        self.started: list[WorkerTask] = []
        self.deadly = ""
        """When the first of them has sent its first message of this kind, all die."""
        self.killed = 0

    async def __call__(self, number: int) -> WorkerTask:
        worker = await self._launch(number)
        self.started.append(worker)
        return worker

    def kill_all(self) -> None:
        self.killed += 1
        for worker in self.started:
            worker.task.cancel()


class Deadly(Wrapping):
    """A worker's transport, over which to send may be the end."""

    def __init__(self, inner: Transport, nest: Nest) -> None:
        super().__init__(inner)
        self._nest = nest

    async def publish(self, address: Address, body: bytes) -> None:
        await super().publish(address, body)
        if decode(body).kind == self._nest.deadly and not self._nest.killed:
            self._nest.kill_all()
            await asyncio.Event().wait()


@asynccontextmanager
async def nested(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Nest]:
    """The aggregator of a scene, with workers from a nest."""
    monkeypatch.setattr(Scene, "workers", WORKERS)
    nest = Nest(scene)
    monkeypatch.setattr(scene, "launch", lambda _: nest)
    async with scene.start():
        await scene.join()
        yield nest


def restarts(scene: Scene) -> float:
    registry = scene.aggregator.counters.registry
    values = [
        registry.get_sample_value("hubbub_worker_restarts_total", {"worker": str(number)})
        for number in range(WORKERS)
    ]
    return sum(value or 0.0 for value in values)


@aio
async def test_workers_that_die_while_they_release_are_replaced_and_the_sum_is_the_same_to_the_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with scene_of(tmp_path) as scene, nested(scene, monkeypatch) as nest:
        nest.deadly = "sum-chunk"
        await scene.send_sets(1)

        await scene.close(1)

        # What comes again must be equal, or this fails.
        await scene.check_sum(1)
        await scene.coordinator.hear(PhaseReleased)
        assert nest.killed == 1
        assert restarts(scene) == WORKERS
        await scene.play_good_round(2)


@pytest.mark.parametrize("combines", [True, False], ids=["combiner", "other"])
@aio
async def test_workers_that_die_while_they_release_on_the_compact_wire_are_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, combines: bool
) -> None:
    async with compact_scene(tmp_path, combines=combines) as scene, nested(scene, monkeypatch) as nest:
        nest.deadly = "masked-chunk" if combines else "partial-chunk"

        await scene.play_round()

        assert nest.killed == 1


@aio
async def test_workers_that_die_with_a_chunk_that_the_head_does_not_know_of_are_given_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with scene_of(tmp_path) as scene, nested(scene, monkeypatch) as nest:
        tell = Worker._tell

        async def die(worker: Worker, number: int, word: object) -> object:
            if nest.killed < WORKERS:
                nest.kill_all()
                return RETRY  # As a message is to the broker whose consumer is gone.
            return await tell(worker, number, word)  # type: ignore[arg-type]  # It is passed on as it came.

        monkeypatch.setattr(Worker, "_tell", die)

        await scene.play_good_round(1)

        assert nest.killed == WORKERS
        assert scene.dead() == []
        assert not list((tmp_path / "staged").rglob("*.*"))


@aio
async def test_after_its_workers_died_an_aggregator_still_releases_over_one_member_set_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with scene_of(tmp_path) as scene, nested(scene, monkeypatch) as nest:
        await scene.send_sets(1)
        nest.deadly = "sum-chunk"
        await scene.close(1)
        others = CLIENTS[:2]

        await scene.order(ClosePhase(members=others, receipts=make_receipts(1, others)), 1)

        await scene.check_sum(1)
        ((_, refusal),) = await scene.coordinator.hear(OrderRefused)
        assert refusal.reason is RejectReason.ALREADY_ENDED


@aio
async def test_an_aggregator_is_not_ready_while_a_worker_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with scene_of(tmp_path) as scene, nested(scene, monkeypatch) as nest:
        await scene.play_good_round(1)
        gone = asyncio.Event()

        async def launch_no_more(number: int) -> WorkerTask:
            del number
            gone.set()
            raise OSError(12, "Cannot allocate memory")

        for hand in scene.aggregator._crew._hands if scene.aggregator._crew else ():
            hand._launch = launch_no_more
        nest.kill_all()
        await gone.wait()

        assert "worker 0 is not there" in scene.aggregator.runner.find_problems()


@aio
async def test_a_worker_that_says_nothing_is_taken_for_stuck_and_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hands, "SILENCE_S", 0.05)
    rounds = count(1)
    async with scene_of(tmp_path) as scene, nested(scene, monkeypatch) as nest:
        while len(nest.started) <= WORKERS:
            await scene.play_good_round(next(rounds))
        monkeypatch.setattr(hands, "SILENCE_S", 60.0)

        await scene.play_good_round(next(rounds))


@aio
async def test_when_a_run_is_over_workers_forget_its_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heard = asyncio.Queue[Dismissal]()
    listen = Worker._listen

    async def overhear(worker: Worker) -> None:
        receive = worker._link.receive

        async def pass_on() -> object:
            word = await receive()
            if isinstance(word, Dismissal):
                heard.put_nowait(word)
            return word

        monkeypatch.setattr(worker._link, "receive", pass_on)
        await listen(worker)

    monkeypatch.setattr(Worker, "_listen", overhear)
    async with scene_of(tmp_path) as scene, nested(scene, monkeypatch):
        await scene.play_good_round(1)

        await scene.command(DONE)

        assert {(await heard.get()).run for _ in range(WORKERS)} == {scene.run}


def test_these_sets_have_a_chunk_for_each_worker() -> None:
    assert len(PLAN) == WORKERS
