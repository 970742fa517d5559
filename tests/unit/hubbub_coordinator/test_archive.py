"""The archive: a round that is over takes little room, and shows what it showed before."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
from benchmarks.interface import draw_up_feeding, feed_rounds, list_events, settle

from hubbub.machine.effects import Key
from hubbub.messages.rounds import ScoreClaim
from hubbub.transport.base import Address
from hubbub.transport.memory import MemoryBroker, MemoryTransport
from hubbub.transport.topology import topology_for
from hubbub_coordinator import accounts
from hubbub_coordinator.accounts import Sums
from hubbub_coordinator.api.views import view_costs, view_round
from hubbub_coordinator.archive import fold
from hubbub_coordinator.events import DeadlinePassed
from hubbub_coordinator.phases.round import CoordinatorRound, State
from hubbub_coordinator.service import SNAPSHOT_AFTER, Coordinator, RunOver
from hubbub_local.federation import make_parties
from support.builders import make_manifest
from support.coordinator_play import REGRESSED, RoundPlay
from support.coordinator_scene import StillClock, client_of
from support.deaths import Fate, make_mortal
from support.forgetful_store import Disk, ForgetfulStore

MANIFEST = make_manifest(min_clients=2, strategy="sec-union", metrics=REGRESSED)
SCORES = (ScoreClaim(name="r2", value=0.5), ScoreClaim(name="mse", value=4.0))


def play_round() -> CoordinatorRound:
    """A scored round without its third client, whose traffic is reported in two parts."""
    play = RoundPlay(MANIFEST, lambda _: None, is_scored=True)
    one, two, three = MANIFEST.clients
    play.begin()
    play.deliver(three)
    play.feed(DeadlinePassed(at_s=160.0))
    play.release()
    play.deliver(three)
    play.release()
    for client in (one, two):
        play.apply(client)
    data: CoordinatorRound = play.data
    return replace(
        data,
        early=data.records[0].held,
        records=(replace(data.records[0], spoilt={three: "refused"}), *data.records[1:]),
        reported=dict.fromkeys((one, two), SCORES),
        traffic=(*data.traffic, *data.traffic),
    )


@pytest.mark.parametrize("state", [State.RELEASED, State.VOID, State.CONTRADICTED])
def test_all_that_is_shown_of_a_round_is_the_same_after_it_was_folded_and_no_receipt_stays(state: State) -> None:
    whole = play_round()

    folded = fold(whole)

    assert view_round(state, folded) == view_round(state, whole)
    assert view_costs(Sums(), [(state, folded)]) == view_costs(Sums(), [(state, whole)])
    assert accounts.add_up(Sums(), state, folded) == accounts.add_up(Sums(), state, whole)
    assert accounts.account(folded) == accounts.account(whole)
    sums = [(data.payload_bits, data.wire_bytes, data.metrics) for data in (folded, whole)]
    assert sums[0] == sums[1]
    assert (folded.early, [record.held for record in folded.records]) == ({}, [{}, {}])
    assert all(report.traffic == () for report in folded.applied.values())
    assert 2 * len(folded.traffic) == len(whole.traffic), "one row for each party, direction and vector"


# A coordinator and its archive ------------------------------------------------------------------------------

PARTIES = make_parties(clients=3, servers=2)
FED = draw_up_feeding(PARTIES, 200)
RUN = f"/api/v1/runs/{FED.run_id}"
QUESTIONS = [
    "/api/v1/runs",
    RUN,
    *(f"{RUN}/rounds{each}" for each in ("", "?after=3&limit=2", "/1")),
    *(f"{RUN}/cost{each}" for each in ("", "?after=2&limit=3")),
    *(f"{RUN}/export?{each}" for each in ("format=json", "format=csv", "format=csv&table=costs")),
    *(f"/api/v1/events?limit=1000{each}" for each in ("", "&after=0", f"&run={FED.run_id}")),
]


class Unheard(MemoryTransport):
    """Nobody is there to whom something could be sent."""

    async def publish(self, address: Address, body: bytes) -> None:
        del address, body


@asynccontextmanager
async def coordinator_on(disk: Disk, folder: Path, fate: Fate | None = None) -> AsyncIterator[Coordinator]:
    identity = PARTIES.identities[FED.coordinator]
    async with Unheard(MemoryBroker(), topology_for(identity.name, identity.role)) as transport:
        coordinator = Coordinator(
            identity=identity,
            roster=PARTIES.roster,
            transport=transport,
            folder=folder,
            store=ForgetfulStore(disk),
            clock=StillClock(),
        )
        if fate:
            make_mortal(coordinator, fate)
        try:
            await coordinator.start()
            yield coordinator
        finally:
            await coordinator.runner.stop()
            coordinator.close()


async def ask_all(coordinator: Coordinator) -> list[str]:
    async with client_of(coordinator) as client:
        answers = [await client.get(question) for question in QUESTIONS]
    assert {each.status_code for each in answers} == {200}
    return [each.text for each in answers]


@pytest.mark.parametrize("cancelled", [False, True], ids=["going on", "cancelled in the middle of a round"])
async def test_every_answer_is_the_same_to_the_byte_after_a_restart(
    tmp_path: Path,
    cancelled: bool,  # noqa: FBT001  (A parameter of the test.)
) -> None:
    disk = Disk()
    async with coordinator_on(disk, tmp_path) as coordinator:
        await feed_rounds(coordinator, FED, PARTIES, 7)
        for event in islice(list_events(FED, 5.0), 3):
            await coordinator.runner.feed(Key("round", FED.run_id, 8), event)
        if cancelled:
            await coordinator.cancel(FED.run_id)
        await settle(coordinator)
        before = await ask_all(coordinator)
    async with coordinator_on(disk, tmp_path) as coordinator:
        assert await ask_all(coordinator) == before
        assert coordinator.list_runs() == [FED.run_id]
    assert {key.round for key in disk.over if key.kind == "round"} == set(range(1, 9 if cancelled else 8))


async def test_nothing_that_is_answered_changes_when_it_is_archived(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def archive_nothing(_: Coordinator) -> None:
        return

    with monkeypatch.context() as patch:
        patch.setattr(Coordinator, "_archive_due", archive_nothing)
        disk = Disk()
        async with coordinator_on(disk, tmp_path) as coordinator:
            await feed_rounds(coordinator, FED, PARTIES, 4)
            before = await ask_all(coordinator)
    async with coordinator_on(disk, tmp_path) as coordinator:
        await settle(coordinator)
        assert await ask_all(coordinator) == before
        assert {key.round for key in coordinator.runner.machines} == {0, 5}
        assert coordinator._over == {}


async def test_what_a_restart_replays_and_what_is_in_memory_is_bounded_whatever_the_number_of_rounds(
    tmp_path: Path,
) -> None:
    disk, round_events = Disk(), 1 + len([*list_events(FED, 0.0)])
    for count in (3, 150):
        async with coordinator_on(disk, tmp_path) as coordinator:
            await feed_rounds(coordinator, FED, PARTIES, count)
            assert len(coordinator.runner.machines) == 2
            assert coordinator._over == {}
            assert coordinator.runner.event_log.entries == len(disk.entries)
        assert len(disk.entries) <= SNAPSHOT_AFTER + 2 * round_events


async def test_a_run_that_has_ended_leaves_no_entries_and_is_found(tmp_path: Path) -> None:
    disk = Disk()
    async with coordinator_on(disk, tmp_path) as coordinator:
        await feed_rounds(coordinator, FED, PARTIES, 2)
        await coordinator.cancel(FED.run_id)
        await settle(coordinator)
        before = coordinator.find_run(FED.run_id), coordinator.find_rounds(FED.run_id)
        with pytest.raises(RunOver):
            await coordinator.pause(FED.run_id)
    assert (disk.entries, [key for key in disk.snapshots if key.run]) == ({}, [])
    async with coordinator_on(disk, tmp_path) as coordinator:
        assert coordinator.runner.machines == {}
        assert (coordinator.find_run(FED.run_id), coordinator.find_rounds(FED.run_id)) == before
        with pytest.raises(RunOver):
            await coordinator.resume(FED.run_id)


@pytest.mark.parametrize("instant", range(6))
async def test_a_coordinator_that_dies_before_or_after_archiving_goes_on(tmp_path: Path, instant: int) -> None:
    """Round by round: nothing is lost, nothing counts twice, and the news has the ids that it would have had."""
    lived = await show_life(tmp_path / "lived", None)
    died = await show_life(tmp_path / "died", instant)
    assert died == lived


async def show_life(folder: Path, instant: int | None) -> list[str]:
    disk, rounds_wanted = Disk(), 4
    if instant is not None:
        fate = Fate(at=instant, counts=lambda each: each.endswith("archiving"))
        async with coordinator_on(disk, folder, fate) as coordinator:
            feeding = asyncio.create_task(feed_rounds(coordinator, FED, PARTIES, rounds_wanted))
            await fate.met.wait()
            feeding.cancel()
            await asyncio.gather(feeding, return_exceptions=True)
    async with coordinator_on(disk, folder) as coordinator:
        await feed_rounds(coordinator, FED, PARTIES, rounds_wanted)
        return await ask_all(coordinator)


async def test_totals_are_of_all_rounds_on_every_page(tmp_path: Path) -> None:
    async with coordinator_on(Disk(), tmp_path) as coordinator:
        await feed_rounds(coordinator, FED, PARTIES, 5)
        async with client_of(coordinator) as client:
            pages = [(await client.get(f"{RUN}/cost?limit=2&after={after}")).json() for after in (0, 2, 4)]
            whole = (await client.get(f"{RUN}/cost")).json()

    found = [(list(page["rounds"]), page["next"]) for page in pages]
    assert found == [(["1", "2"], 2), (["3", "4"], 4), (["5", "6"], None)]
    of_a_page = ("rounds", "by_party", "next", "other_strategies")
    totals = {name: value for name, value in whole.items() if name not in of_a_page}
    for page in pages:
        assert {name: value for name, value in page.items() if name not in of_a_page} == totals
    assert whole["rounds_released"] == 5
    for name, cost in whole["total"].items():
        parts = [each[name]["payload_bits"] for each in whole["rounds"].values() if name in each]
        assert cost["payload_bits"] == sum(parts)
    in_all, by_round = (sum(row["wire_bytes"] for row in whole[name]) for name in ("total_by_party", "by_party"))
    assert in_all == by_round
    for other in whole["other_strategies"].values():
        assert other["total_bits"] == sum(other["rounds"].values())
