"""An aggregator that dies, at whatever instant, and is started again on the same folder: the sum is the same."""

import asyncio
import shutil
import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import numpy as np
import pytest

from hubbub.errors import Code, LocalError, RejectReason, StorageFailed
from hubbub.messages.envelope import Message
from hubbub.messages.rounds import ClosePhase, OrderRefused, PhaseReleased, PhaseVoided, SumChunk, VoidPhase
from hubbub.messages.runs import PartyFailed, RunEnded, RunJoined, RunKeys, RunProposed, RunRefused
from hubbub.messages.shares import SetReceived
from hubbub.protocol.layout import Vector
from hubbub.runtime.effects import Effects
from hubbub.runtime.state_folder import STATE_FILE
from hubbub.transport.topology import DELIVERY_LIMIT
from hubbub_aggregator.phase_jobs import PhaseJobs
from hubbub_aggregator.phases import accumulation
from hubbub_aggregator.phases.accumulation import Accumulation
from hubbub_aggregator.service import Aggregator
from support.aggregator_scene import (
    ANOTHER,
    CLIENTS,
    MANIFEST,
    PLAN,
    Scene,
    make_receipts,
    manifest_of,
    running_scene,
    scene_of,
    send_plain,
)
from support.aio import until
from support.deaths import Fate, live_through

M = TypeVar("M", bound=Message)
Script = Callable[[Scene], Awaitable[None]]
DONE = RunEnded(outcome="completed", reason="all rounds are done")


async def settle(scene: Scene) -> None:
    """Wait until the aggregator has taken all that it was sent: it answers one thing after the other."""
    before = len([each for each in scene.coordinator.heard if each.run == ANOTHER.run_id])
    await scene.command(RunProposed(manifest=ANOTHER), run=ANOTHER.run_id)
    while len([each for each in scene.coordinator.heard if each.run == ANOTHER.run_id]) == before:
        await scene.broker.change()
    await scene.empty_inbox()


async def play_run(scene: Scene) -> None:
    """A run of one round, to its end."""
    await scene.join()
    await scene.send_sets(1)
    await scene.close(1)
    await scene.check_sum(1)
    await scene.coordinator.hear(PhaseReleased)
    await scene.command(DONE)
    await settle(scene)
    # A message is settled first, and what it makes superfluous is forgotten then.
    await until(lambda: {run_of(scene, table) for table in ("secrets", "events")} == {((ANOTHER.run_id,),)})


def run_of(scene: Scene, table: str) -> tuple[tuple[object, ...], ...]:
    """The runs that something is left of in a table."""
    return tuple(read_rows(scene.folder, f"SELECT DISTINCT run FROM {table}"))  # noqa: S608


# The proposal, the keys, six chunks and their checks, the order, the release that it told, the sum and the end:
# each is kept. Two answers, a receipt, six chunks of the sum and the report: each is sent. The phase and the run
# are forgotten.
INSTANTS = 2 * (18 + 10 + 2)


@pytest.fixture
def one_receipt(monkeypatch: pytest.MonkeyPatch) -> None:
    """All sets share a receipt, however slow this machine is."""
    monkeypatch.setattr(accumulation, "RECEIPT_WAIT_S", 60.0)


@pytest.mark.usefixtures("one_receipt")
async def test_these_tests_know_every_instant_of_a_run(tmp_path: Path) -> None:
    async with scene_of(tmp_path) as scene:
        fate = Fate()
        async with scene.start(fate):
            await play_run(scene)
        proposals = [number for number, each in enumerate(fate.instants) if each == "before keeping Proposed"]
        assert proposals == [0, INSTANTS]
        assert sum("sending sum-chunk" in each for each in fate.instants) == 2 * len(PLAN) * len(CLIENTS)


@pytest.mark.usefixtures("one_receipt")
@pytest.mark.parametrize("instant", range(INSTANTS))
async def test_dead_at_any_instant_it_ends_in_the_same_sum(tmp_path: Path, instant: int) -> None:
    """What is sent again is the same to the bit, and in the end nothing is left of the run."""
    async with scene_of(tmp_path) as scene:
        fate = Fate(at=instant)
        await live_through(scene.start, play_run(scene), fate)
        assert fate.met.is_set()
        assert scene.dead() == []
        assert len({each.run_key for each in said(scene, RunJoined)}) == 1
        reports = [body for _, body in await scene.coordinator.hear(PhaseReleased)]
        assert all(report == reports[0] for report in reports)
        assert not said(scene, OrderRefused)
        assert not said(scene, PartyFailed)
        assert not scene.spooled()
        assert read_rows(tmp_path, "SELECT DISTINCT run FROM secrets") == [(ANOTHER.run_id,)]
        assert read_rows(tmp_path, "SELECT DISTINCT run FROM events") == [(ANOTHER.run_id,)]


def said(scene: Scene, kind: type[M]) -> list[M]:
    """All that the coordinator was told of a kind, in the run that the test is about."""
    heard = [each.body for each in scene.coordinator.heard if each.run == scene.run]
    return [body for body in heard if isinstance(body, kind)]


def read_rows(folder: Path, query: str) -> list[tuple[object, ...]]:
    database = sqlite3.connect(folder / STATE_FILE)
    try:
        return database.execute(query).fetchall()
    finally:
        database.close()


# Some of these instants, by what a client or an operator sees ---------------------------------------------


@pytest.mark.parametrize("chunks", [1, len(PLAN) + 1, len(PLAN) * len(CLIENTS)])
async def test_chunks_that_arrived_before_a_restart_need_not_be_sent_again(
    tmp_path: Path, chunks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even those that nobody had looked at."""

    async def open_nothing(*_: object) -> None:
        await asyncio.Event().wait()

    everything = [(client, index) for client in CLIENTS for index in range(len(PLAN))]
    async with scene_of(tmp_path) as scene:
        with monkeypatch.context() as blind:
            blind.setattr(PhaseJobs, "check", open_nothing)
            async with scene.start():
                await scene.join()
                for client, index in everything[:chunks]:
                    await scene.send_chunk(client, index)
                await settle(scene)
                assert len(scene.spooled()) == chunks
                assert not said(scene, SetReceived)
        async with scene.start():
            for client, index in everything[chunks:]:
                await scene.send_chunk(client, index)
            await scene.hear_receipts()
            await scene.close(1)
            await scene.check_sum(1)


async def test_a_complete_set_that_waits_for_its_receipt_gets_it_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with scene_of(tmp_path) as scene:
        with monkeypatch.context() as still:
            still.setattr(Effects, "_set_timer", lambda *_: None)
            async with scene.start() as aggregator:
                await scene.join()
                for index in range(len(PLAN)):
                    await scene.send_chunk(CLIENTS[0], index)
                await until(lambda: bool(receipts_awaited(aggregator)))
            assert not said(scene, SetReceived)
        async with scene.start():
            assert (await scene.hear_receipts(1, CLIENTS[:1])).keys() == {CLIENTS[0]}
            await scene.send_sets(1, CLIENTS[1:])
            await scene.close(1)
            await scene.check_sum(1)


def receipts_awaited(aggregator: Aggregator) -> list[float]:
    data = [live.data for live in aggregator.runner.machines.values()]
    return [each.receipts_by_s for each in data if isinstance(each, Accumulation) and each.receipts_by_s]


Order = ClosePhase | VoidPhase
OTHER_ORDERS: list[Order] = [
    ClosePhase(members=CLIENTS[:2], receipts=make_receipts(1, CLIENTS[:2])),
    VoidPhase(),
]


@pytest.mark.parametrize("other", OTHER_ORDERS, ids=["other-members", "void"])
@pytest.mark.parametrize("instant", [0, len(PLAN) * len(CLIENTS), 2 * len(PLAN) * len(CLIENTS) - 1])
async def test_released_stays_released_over_the_same_members(tmp_path: Path, instant: int, other: Order) -> None:
    """Dead between the verdict and the last chunk of the sum, and then told to end the phase otherwise."""
    async with scene_of(tmp_path) as scene:
        fate = Fate(at=instant, counts=lambda each: "sending sum-chunk" in each)
        async with scene.start(fate):
            await scene.join()
            await scene.send_sets(1)
            await scene.close(1)
            await fate.met.wait()
        await scene.order(other, 1)
        async with scene.start():
            await scene.check_sum(1)
            await scene.coordinator.hear(PhaseReleased)
            await scene.play_good_round(2)
        # By the machine, if the sum was not out yet, or by the journal.
        refused = [*(each.reason for each in said(scene, OrderRefused)), *map(RejectReason, scene.dead())]
        assert refused == [RejectReason.ALREADY_ENDED]
        assert not said(scene, PhaseVoided)


@pytest.mark.parametrize("other", OTHER_ORDERS, ids=["other-members", "void"])
async def test_a_verdict_that_was_journalled_and_no_more_is_final(tmp_path: Path, other: Order) -> None:
    """The event was not kept, and the order never comes again: still there is no other verdict."""
    async with scene_of(tmp_path) as scene:
        fate = Fate(at=0, counts=lambda each: each == "before keeping CloseOrdered")
        async with scene.start(fate):
            await scene.join()
            await scene.send_sets(1)
            await scene.close(1)
            await fate.met.wait()
        forget_inbox(scene)
        async with scene.start():
            await scene.order(other, 1)
            assert await scene.bury() == [RejectReason.ALREADY_ENDED.value]
            await scene.close(1)
            await scene.check_sum(1)


def forget_inbox(scene: Scene) -> None:
    """As a broker's operator can."""
    for name, queue in scene.broker._queues.items():
        if "aggregator" in name and "dead" not in name:
            queue.ready.clear()


async def test_void_stays_void(tmp_path: Path) -> None:
    async with scene_of(tmp_path) as scene:
        fate = Fate(at=0, counts=lambda each: each == "before sending void-notice")
        async with scene.start(fate):
            await scene.join()
            await scene.send_sets(1)
            await scene.order(VoidPhase(), 1)
            await fate.met.wait()
        await scene.close(1)
        async with scene.start():
            await scene.coordinator.hear(PhaseVoided)
            assert await scene.bury() == [RejectReason.ALREADY_ENDED.value]
            await scene.play_good_round(2)
        heard = scene.clients[CLIENTS[0]].heard
        assert not [each for each in heard if isinstance(each.body, SumChunk) and each.round == 1]


@pytest.mark.parametrize("instant", range(2 * len(CLIENTS) + 2))
async def test_what_each_client_is_sent_under_a_key_of_its_own_is_the_same_again(
    tmp_path: Path, instant: int
) -> None:
    manifest = manifest_of("fedavg")
    updates = [np.random.default_rng(number).standard_normal(100).astype("<f4") for number in range(3)]
    expected = np.mean(np.stack(updates).astype(np.float64), axis=0).astype("<f4").tobytes()

    async def play(scene: Scene) -> None:
        await scene.join(manifest)
        scene.run = manifest.run_id
        for client, update in zip(CLIENTS, updates, strict=True):
            await send_plain(scene, client, "update", Vector("update", 100, 2**32), update.tobytes())
        receipts = tuple(dict.fromkeys((await scene.hear_receipts()).values()))
        order = ClosePhase(members=CLIENTS, receipts=receipts)
        await scene.command(order, round_number=1, phase="update")
        sums = [await scene.open_sums(client, 1, phase="update") for client in CLIENTS]
        await scene.coordinator.hear(PhaseReleased)
        await settle(scene)
        sums = [await scene.open_sums(client, 1, phase="update") for client in CLIENTS]
        assert [each.packed for each in sums] == [{0: expected}] * 3
        assert len({each.key for each in sums}) == 3

    async with scene_of(tmp_path) as scene:
        fate = Fate(at=instant, counts=lambda each: each.endswith(("sending sum-chunk", "sending phase-released")))
        await live_through(scene.start, play(scene), fate)
        assert fate.met.is_set()
        assert scene.dead() == []


async def test_keys_and_shares_of_a_phase_go_when_it_is_over(tmp_path: Path) -> None:
    async with scene_of(tmp_path) as scene:
        fate = Fate(at=0, counts=lambda each: each == "before sending phase-released")
        async with scene.start(fate):
            await scene.join()
            await scene.send_sets(1)
            await scene.close(1)
            await fate.met.wait()
        names = {name for (name,) in read_rows(tmp_path, "SELECT name FROM secrets")}
        assert names == {"run key", "sum keys 1 signs"}
        assert scene.spooled()
        async with scene.start():
            await scene.coordinator.hear(PhaseReleased)
            await settle(scene)
            assert not scene.spooled()
        names = {name for (name,) in read_rows(tmp_path, "SELECT name FROM secrets")}
        assert names == {"run key"}


# What was lost --------------------------------------------------------------------------------------------


async def give_keys(scene: Scene) -> None:
    own = said(scene, RunJoined)[0].run_key
    await scene.command(RunKeys(keys=(own, *(seals.claim for seals in scene.seals[scene.run].values()))))


def lose_state(folder: Path) -> None:
    for path in folder.glob(f"{STATE_FILE}*"):
        path.unlink()


ORDERS: dict[str, Script] = {
    "void": lambda scene: scene.order(VoidPhase(), 2),
    "close": lambda scene: scene.close(2),
    "keys": give_keys,
}


@pytest.mark.parametrize("order", ORDERS)
async def test_an_aggregator_that_lost_its_journal_says_so_and_makes_no_second_key(
    tmp_path: Path, order: str
) -> None:
    async with scene_of(tmp_path) as scene:
        async with scene.start():
            await scene.join()
            await scene.play_good_round(1)
        lose_state(tmp_path)
        async with scene.start() as aggregator:
            await scene.send_chunk(CLIENTS[0], 0, round_number=2)
            await ORDERS[order](scene)
            (*_, (_, failed)) = await scene.coordinator.hear(PartyFailed, 2)  # When it started, and now.
            assert failed.code is Code.DISK_LOST
            await scene.command(RunProposed(manifest=MANIFEST))
            ((_, refusal),) = await scene.coordinator.hear(RunRefused)
            assert refusal.code is Code.PROTOCOL_JOINED_BEFORE
            assert aggregator._seals == {}
            assert not [each for each in scene.clients[CLIENTS[0]].heard if each.round == 2]


async def test_a_run_that_has_ended_is_not_lost(tmp_path: Path) -> None:
    async with scene_of(tmp_path) as scene:
        async with scene.start():
            await scene.join()
            await scene.play_good_round(1)
            await scene.command(DONE)
            await settle(scene)
        async with scene.start():
            await scene.close(1)
            await scene.command(RunProposed(manifest=MANIFEST))
            ((_, refusal),) = await scene.coordinator.hear(RunRefused)
            assert refusal.code is Code.PROTOCOL_JOINED_BEFORE
            assert not said(scene, PartyFailed)


# A disk that takes nothing ------------------------------------------------------------------------------

FAULTY: dict[str, Callable[[Aggregator], object]] = {
    "write": lambda aggregator: aggregator._spool,
    "append": lambda aggregator: aggregator.runner.event_log.store,
    "record": lambda aggregator: aggregator.journal,
    "record_set": lambda aggregator: aggregator.journal,
    "put": lambda aggregator: aggregator._vault,
}


@pytest.mark.parametrize("what", FAULTY)
async def test_a_disk_that_is_full_for_a_while_costs_time_and_nothing_else(
    tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hubbub.runtime.effects.PAUSE_S", 0.0)
    async with running_scene(tmp_path) as scene:
        where = FAULTY[what](scene.aggregator)
        # More attempts than all that are fetched at a time may be delivered.
        real, left = getattr(where, what), [10 * DELIVERY_LIMIT]

        def fail_at_first(*args: object, **kwargs: object) -> object:
            if left[0]:
                left[0] -= 1
                raise StorageFailed("the disk is full")
            return real(*args, **kwargs)

        monkeypatch.setattr(where, what, fail_at_first)
        await scene.play_good_round(1)
        assert left == [0]
        await scene.play_good_round(2)
        assert scene.dead() == []
        assert not said(scene, PartyFailed)


async def test_an_event_that_cannot_be_read_any_more_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    async with scene_of(tmp_path) as scene:
        async with scene.start():
            await scene.join()
        database = sqlite3.connect(tmp_path / STATE_FILE)
        database.execute("UPDATE events SET body = '[{' WHERE kind = 'Proposed'")
        database.commit()
        database.close()
        with pytest.raises(
            LocalError, match=r"state\.sqlite cannot be replayed: .*; it is damaged, .* move it away"
        ):
            async with scene.start():
                pass


async def test_a_folder_that_cannot_be_written_to_is_a_clear_error(tmp_path: Path) -> None:
    async with scene_of(tmp_path / "full") as scene:
        async with scene.start():
            await scene.join()
        shutil.copytree(tmp_path / "full", tmp_path / "broken")
    state = tmp_path / "broken" / STATE_FILE
    state.unlink()
    state.mkdir()
    async with scene_of(tmp_path / "broken") as scene:
        with pytest.raises(StorageFailed, match=r"state\.sqlite cannot be used"):
            async with scene.start():
                pass


async def test_an_old_disk_put_back_is_found_out_by_the_next_order_of_the_coordinator(tmp_path: Path) -> None:
    async with scene_of(tmp_path / "disk") as scene:
        async with scene.start():
            await scene.join()
        shutil.copytree(scene.folder, tmp_path / "backup")
        async with scene.start():
            await scene.play_good_round(1)
        shutil.rmtree(scene.folder)
        shutil.copytree(tmp_path / "backup", scene.folder)
        async with scene.start():
            await scene.send_chunk(CLIENTS[0], 0, round_number=2)
            assert await scene.bury() == [RejectReason.TOO_EARLY.value]
            assert not said(scene, PartyFailed), "a client alone is not believed"
            await scene.order(VoidPhase(), 2)
            ((_, failed),) = await scene.coordinator.hear(PartyFailed)
            assert failed.code is Code.DISK_OLD


async def test_an_old_disk_put_back_releases_twice(tmp_path: Path) -> None:
    """The limit of the journal: no file beside it can tell that all of them are old."""
    async with scene_of(tmp_path / "disk") as scene:
        async with scene.start():
            await scene.join()
            await scene.send_sets(1)
        shutil.copytree(scene.folder, tmp_path / "backup")
        async with scene.start():
            await scene.close(1)
            await scene.coordinator.hear(PhaseReleased)
        shutil.rmtree(scene.folder)
        shutil.copytree(tmp_path / "backup", scene.folder)
        async with scene.start():
            await scene.close(1, CLIENTS[:2])
            releases = await scene.coordinator.hear(PhaseReleased, 2)
    assert [body.members for _, body in releases] == [CLIENTS, CLIENTS[:2]]
