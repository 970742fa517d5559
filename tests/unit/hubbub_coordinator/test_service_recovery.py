"""Recovery of a coordinator that dies, at whatever instant, and is started again; outages, and a lost store."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from hubbub.errors import ConfigurationError, HubbubError, StorageFailed
from hubbub.ids import PartyId
from hubbub.machine.effects import Key
from hubbub.messages.rounds import ClosePhase, RoundOpened, VoidPhase
from hubbub.messages.runs import RunEnded, RunJoined, RunKeys, RunProposed, RunReady
from hubbub.runtime.state_folder import STATE_FILE
from hubbub.transport.topology import inbox
from hubbub_coordinator.api import views
from hubbub_coordinator.events import Began, PartyJoined, ReceiptArrived
from hubbub_coordinator.phases import round as rounds
from hubbub_coordinator.phases import run as runs
from hubbub_coordinator.service import Coordinator, KeyReused, RunExists, UnknownRun
from support.aio import bounded
from support.builders import make_run_key
from support.coordinator_scene import (
    AGGREGATOR,
    ANOTHER,
    CLIENT,
    MANIFEST,
    ME,
    REPORT,
    Scene,
    client_of,
    running_scene,
    scene_of,
)
from support.deaths import Fate, live_through

ROUND = Key("round", MANIFEST.run_id, 1)
Shown = list[object]


def show(coordinator: Coordinator) -> Shown:
    """All that the interface tells of all runs."""
    shown: Shown = []
    for run in coordinator.list_runs():
        known = coordinator.look_at(run)
        all_rounds = known.find_rounds()
        detail = views.view_detail(known, coordinator.runner.roster, coordinator.now_s())
        shown += [detail, views.view_costs(known.add_up(), all_rounds)]
        shown += [views.view_round(*each) for each in all_rounds]
    return shown


async def submit_surely(scene: Scene) -> None:
    """As an operator does who was not answered."""
    while True:
        coordinator = scene.coordinator
        try:
            await coordinator.submit(MANIFEST)
        except RunExists:
            return
        except HubbubError:
            while scene.coordinator is coordinator or coordinator.runner._driver is None:
                await scene.broker.change()
        else:
            return


async def play_run(scene: Scene) -> None:
    """A run of one round, to its end; everybody answers once, however often it is asked."""
    await submit_surely(scene)
    await scene.get_ready()
    await scene.play_round()


async def stop_in_the_round(scene: Scene, delivered: tuple[PartyId, ...], later_s: float = 0.0) -> None:
    """Open a round, and return when some clients have delivered, that much later than its deadline was set."""
    await scene.open_round()
    await scene.has_taken(Began, 2)  # Of the run and of the round: the deadline is set.
    scene.clock.at_s += later_s
    await scene.deliver(delivered)
    await scene.has_taken(ReceiptArrived, len(delivered) * len(MANIFEST.aggregators))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Shown, list[str]]:
    """The traces of a run that nothing happens to, and every instant of it."""

    async def play() -> tuple[Shown, list[str]]:
        async with scene_of(tmp_path_factory.mktemp("undisturbed")) as scene:
            fate = Fate()
            async with scene.start(fate):
                await play_run(scene)
            async with scene.start() as coordinator:
                return show(coordinator), fate.instants

    return asyncio.run(bounded(play()))


# The beginning, five answers, five times ready, the round set up and begun at once, six receipts, two releases,
# three applications, and the round's word to the run: each is kept. Five proposals, five times all keys, three
# orders to train, two to release, and five times the last word: each is sent.
INSTANTS = 2 * (1 + 5 + 5 + 1 + 6 + 2 + 3 + 1 + 5 + 5 + 3 + 2 + 5)


def test_these_tests_know_every_instant_of_a_run(undisturbed: tuple[Shown, list[str]]) -> None:
    _, instants = undisturbed
    assert len(instants) in {INSTANTS - 1, INSTANTS}, "who hears the last word may be faster than who says it"


@pytest.mark.parametrize("instant", range(INSTANTS - 1))
async def test_dead_at_any_instant_it_tells_the_same_in_the_end(
    tmp_path: Path, instant: int, undisturbed: tuple[Shown, list[str]]
) -> None:
    async with scene_of(tmp_path) as scene:
        fate = Fate(at=instant)
        await live_through(scene.start, play_run(scene), fate)
        assert fate.met.is_set()
        assert scene.dead() == []
        async with scene.start() as coordinator:
            assert show(coordinator) == undisturbed[0]
            with pytest.raises(RunExists):
                await coordinator.submit(MANIFEST)


# Some of these instants, by what is seen of them ----------------------------------------------------------


async def test_all_runs_and_an_open_round_are_as_they_were(tmp_path: Path) -> None:
    async with scene_of(tmp_path) as scene:
        async with scene.start() as coordinator:
            await stop_in_the_round(scene, MANIFEST.clients[:1])
            await coordinator.submit(ANOTHER)
            await scene.has_taken(Began, 3)  # Two runs and a round.
            before = show(coordinator)
        async with scene.start() as coordinator:
            assert coordinator.list_runs() == [MANIFEST.run_id, ANOTHER.run_id], "oldest first"
            assert show(coordinator) == before
            await scene.finish()
            before = show(coordinator)
        async with scene.start() as coordinator:
            assert scene.state() is runs.State.COMPLETED
            assert coordinator.list_runs() == [MANIFEST.run_id, ANOTHER.run_id]
            assert show(coordinator) == before


async def test_who_has_not_answered_is_asked_again_after_a_restart(tmp_path: Path) -> None:
    answered, *others = [*MANIFEST.aggregators, *MANIFEST.clients]
    async with scene_of(tmp_path) as scene:
        async with scene.start() as coordinator:
            await coordinator.submit(MANIFEST)
            for party in scene.parties.values():
                await party.hear(RunProposed)
            await scene.say(answered, RunJoined(run_key=make_run_key(MANIFEST, answered)))
            await scene.has_taken(PartyJoined, 1)
        before = {name: proposals(scene, name) for name in scene.parties}
        async with scene.start():
            for name in others:
                await scene.parties[name].hear(RunProposed, 2)
                await scene.say(name, RunJoined(run_key=make_run_key(MANIFEST, name)))
            for name in scene.parties:
                await scene.parties[name].hear(RunKeys)
        assert proposals(scene, answered) == before[answered]


def proposals(scene: Scene, name: PartyId) -> int:
    heard = scene.parties[name].heard
    return len([each for each in heard if isinstance(each.body, RunProposed) and each.run == MANIFEST.run_id])


@pytest.mark.parametrize("away_s", [0.0, 86_400.0, -86_400.0], ids=["short", "a day, or set forward", "set back"])
async def test_a_deadline_has_after_a_restart_what_was_left_when_something_last_happened(
    tmp_path: Path, away_s: float
) -> None:
    quarter_s = MANIFEST.phase_timeout_s / 4
    async with scene_of(tmp_path) as scene:
        async with scene.start():
            await stop_in_the_round(scene, MANIFEST.clients[:1], quarter_s)
        for _ in range(2):
            scene.clock.at_s += away_s
            async with scene.start() as coordinator:
                left_s = (
                    coordinator.runner.effects.timers[ROUND, "deadline"].when() - asyncio.get_running_loop().time()
                )
                assert left_s == pytest.approx(3 * quarter_s, rel=0.1)
                assert scene.coordinator.find_rounds(MANIFEST.run_id)[0][0] is rounds.State.COLLECTING


async def test_a_deadline_passes_after_a_restart_when_its_time_is_over(tmp_path: Path) -> None:
    async with scene_of(tmp_path) as scene:
        async with scene.start():
            await stop_in_the_round(scene, MANIFEST.clients[:1], MANIFEST.phase_timeout_s)
        async with scene.start():
            for server in MANIFEST.aggregators:
                await scene.parties[server].hear(VoidPhase)


@pytest.mark.parametrize("instant", range(4))
async def test_the_members_of_an_order_stay_though_more_receipts_have_come(tmp_path: Path, instant: int) -> None:
    """Dead before or after one or both of two aggregators heard of it."""
    async with scene_of(tmp_path) as scene:
        async with scene.start():
            await stop_in_the_round(scene, MANIFEST.clients[:2], MANIFEST.phase_timeout_s)
        fate = Fate(at=instant, counts=lambda each: each.endswith("sending close-phase"))
        async with scene.start(fate):
            await fate.met.wait()
        await scene.deliver(MANIFEST.clients[2:])
        async with scene.start() as coordinator:
            await scene.has_taken(ReceiptArrived, len(MANIFEST.clients) * len(MANIFEST.aggregators))
            for server in MANIFEST.aggregators:
                orders = [body for _, body in await scene.parties[server].hear(ClosePhase)]
                assert {order.members for order in orders} == {MANIFEST.clients[:2]}
            ((state, data),) = coordinator.find_rounds(MANIFEST.run_id)
            assert (state, data.members) == (rounds.State.RELEASING, frozenset(MANIFEST.clients[:2]))


@pytest.mark.parametrize("instant", ["after keeping CancelRequested", "before sending run-ended"])
async def test_a_run_that_was_cancelled_stays_so_and_everybody_hears_of_it(tmp_path: Path, instant: str) -> None:
    async with scene_of(tmp_path) as scene:
        fate = Fate(at=0, counts=lambda each: each == instant)
        async with scene.start(fate) as coordinator:
            await scene.open_round()
            cancelling = asyncio.create_task(coordinator.cancel(MANIFEST.run_id))
            await fate.met.wait()
            await asyncio.gather(cancelling, return_exceptions=True)
        async with scene.start():
            assert scene.state() is runs.State.CANCELLED
            for party in scene.parties.values():
                ((_, ended), *_) = await party.hear(RunEnded)
                assert ended.outcome == "cancelled"


async def test_a_client_with_another_model_ends_the_run_and_everybody_hears_who(tmp_path: Path) -> None:
    async with running_scene(tmp_path) as scene:
        await scene.open_round()
        await scene.deliver()
        await scene.release()
        await scene.say(CLIENT, REPORT.model_copy(update={"model_hmac": "0" * 64}), round_number=1)
        for client in MANIFEST.clients[1:]:
            await scene.say(client, REPORT, round_number=1)
        for party in scene.parties.values():
            ((_, ended),) = await party.hear(RunEnded)
            assert ended.outcome == "failed"
            assert ended.reason.startswith(f"{CLIENT} hold")


# A broker that is away, a disk that is full -----------------------------------------------------------------


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hubbub.runtime.effects.PAUSE_S", 0.01)


async def test_a_run_is_submitted_once_it_is_kept_though_the_broker_is_away(tmp_path: Path) -> None:
    """And it is proposed when the broker is back, after a restart too."""
    async with scene_of(tmp_path) as scene:
        async with scene.start() as coordinator, client_of(coordinator) as client:
            scene.broker.stop()
            answer = await client.post("/api/v1/runs", content=MANIFEST.model_dump_json())
            assert (answer.status_code, answer.json()["state"]) == (201, "enrolling")
            with pytest.raises(RunExists):
                await coordinator.submit(MANIFEST)
        scene.broker.start()
        async with scene.start() as coordinator:
            assert coordinator.list_runs() == [MANIFEST.run_id]
            await scene.join()


def fail_at_first(coordinator: Coordinator, times: int) -> Callable[[], bool]:
    """Let the disk be full for so many attempts; say whether they were made."""
    store, left = coordinator.runner.event_log.store, [times]
    append = store.append

    def fail(drafts: object) -> int:
        if left[0]:
            left[0] -= 1
            raise StorageFailed("the disk is full")
        return append(drafts)  # type: ignore[arg-type]

    store.append = fail  # type: ignore[method-assign]
    return lambda: left == [0]


async def test_a_key_is_known_after_a_restart(tmp_path: Path) -> None:
    async with scene_of(tmp_path) as scene:
        async with scene.start() as coordinator:
            assert await coordinator.submit_once(MANIFEST, "key") == (MANIFEST.run_id, False)
            await scene.has_taken(Began, 1)
        async with scene.start() as coordinator:
            assert await coordinator.submit_once(MANIFEST, "key") == (MANIFEST.run_id, True)
            with pytest.raises(KeyReused):
                await coordinator.submit_once(ANOTHER, "key")
            with pytest.raises(RunExists):
                await coordinator.submit_once(MANIFEST, "another key")
            assert coordinator.list_runs() == [MANIFEST.run_id]


async def test_a_run_that_could_not_be_kept_has_not_begun_and_can_be_begun_under_its_key(tmp_path: Path) -> None:
    async with running_scene(tmp_path) as scene:
        is_over = fail_at_first(scene.coordinator, 1)
        with pytest.raises(StorageFailed, match="the disk is full"):
            await scene.coordinator.submit(MANIFEST)
        assert is_over()
        with pytest.raises(UnknownRun):
            scene.coordinator.find_run(MANIFEST.run_id)
        assert scene.coordinator.list_runs() == []
        assert not [each for party in scene.parties.values() for each in party.heard]
        fail_at_first(scene.coordinator, 1)
        first, second = await asyncio.gather(
            *(scene.coordinator.submit_once(MANIFEST, "key") for _ in range(2)), return_exceptions=True
        )
        assert isinstance(first, StorageFailed)
        assert second == (MANIFEST.run_id, False), "it waited, and was not told of what had not begun"
        await scene.join()


async def test_a_disk_that_is_full_for_a_while_costs_time_and_nothing_else(tmp_path: Path) -> None:
    async with running_scene(tmp_path) as scene:
        await scene.coordinator.submit(MANIFEST)
        for name, party in scene.parties.items():
            await party.hear(RunProposed)
            was_full = fail_at_first(scene.coordinator, 3)
            await scene.say(name, RunJoined(run_key=make_run_key(MANIFEST, name)))
        await scene.parties[AGGREGATOR].hear(RunKeys)
        assert was_full()
        for name in scene.parties:
            await scene.say(name, RunReady())
        await scene.parties[CLIENT].hear(RoundOpened)
        fail_at_first(scene.coordinator, 3)
        await scene.finish()
        assert scene.state() is runs.State.COMPLETED
        assert scene.dead() == []


# What was lost --------------------------------------------------------------------------------------------


async def test_a_coordinator_without_its_store_starts_only_if_its_operator_gives_the_runs_up(
    tmp_path: Path,
) -> None:
    async with scene_of(tmp_path) as scene:
        async with scene.start() as coordinator:
            await coordinator.submit(MANIFEST)
            await scene.has_taken(Began, 1)
        for path in scene.folder.glob(f"{STATE_FILE}*"):
            path.unlink()
        await scene.say(CLIENT, RunJoined(run_key=make_run_key(MANIFEST, CLIENT)))

        with pytest.raises(ConfigurationError, match=f"lacks 1 of the runs .* run {MANIFEST.run_id}"):
            async with scene.start():
                pass

        assert scene.broker.waiting_in(inbox(ME)) == 1, "it takes nothing from its queue"
        assert scene.dead() == []
        async with scene.start(new_state=True) as coordinator:
            assert coordinator.list_runs() == []
            with pytest.raises(RunExists):
                await coordinator.submit(MANIFEST)
            await coordinator.submit(ANOTHER)
        async with scene.start() as coordinator:
            assert coordinator.list_runs() == [ANOTHER.run_id], "once is enough"


async def test_a_coordinator_takes_messages_from_its_first_run_on(tmp_path: Path) -> None:
    """And leaves those that come before to another one, which knows their run."""
    async with scene_of(tmp_path / "ours") as scene:
        async with scene.start(as_process=True) as coordinator:
            await coordinator.submit(MANIFEST)
            await scene.say(AGGREGATOR, RunJoined(run_key=make_run_key(MANIFEST, AGGREGATOR)))
            await scene.has_taken(PartyJoined, 1)
        ours, scene.folder = scene.folder, tmp_path / "twin"
        await scene.say(CLIENT, RunJoined(run_key=make_run_key(MANIFEST, CLIENT)))
        async with scene.start(as_process=True, new_state=True) as twin:
            assert twin.runner.find_problems() == ()
            assert scene.broker.waiting_in(inbox(ME)) == 1
        scene.folder = ours
        async with scene.start(as_process=True):
            await scene.has_taken(PartyJoined, 2)
        assert scene.dead() == []
