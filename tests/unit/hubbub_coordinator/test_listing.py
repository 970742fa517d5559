"""Lists in pages: runs newest first, rounds and events oldest first, and only what is shown is looked at."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from hubbub.ids import Role, RunId
from hubbub.machine.effects import Key
from hubbub.runtime.runner import RunningMachine, Transition
from hubbub.transport.memory import MemoryBroker, MemoryTransport
from hubbub.transport.topology import topology_for
from hubbub_coordinator.api import runs as routes
from hubbub_coordinator.api.views import view_run
from hubbub_coordinator.events import Began
from hubbub_coordinator.phases import round as rounds
from hubbub_coordinator.phases import run as runs
from hubbub_coordinator.service import Coordinator
from support.aio import aio
from support.builders import make_manifest
from support.coordinator_scene import client_of
from support.parties import identity_of, roster_of

MANIFEST = make_manifest(clients=3, servers=2, rounds=9)
RUNS = "/api/v1/runs"
Json = Any  # What a server answers; the assertions are its types.


@contextmanager
def coordinator_with(folder: Path, states: list[runs.State]) -> Iterator[Coordinator]:
    """A coordinator, not started, that has had a run in each of these states."""
    me = MANIFEST.coordinator
    coordinator = Coordinator(
        identity=identity_of(MANIFEST, me),
        roster=roster_of(MANIFEST),
        transport=MemoryTransport(MemoryBroker(), topology_for(me, Role.COORDINATOR)),
        folder=folder,
    )
    machines = {}
    for number, state in enumerate(states):
        manifest = MANIFEST.model_copy(update={"nonce": f"{number:032x}"})
        # The id is as good as a real one, and quicker.
        data = runs.CoordinatorRun(
            manifest=manifest, began_at_s=float(number), released=2, ended=2, rounds_s=8.0, round=3
        )
        machines[Key("run", RunId(f"{number:064x}"))] = RunningMachine(runs.KIND, state, data)
    coordinator.runner.machines |= machines
    coordinator.restore(machines)
    yield coordinator
    coordinator.close()


async def get(client: httpx.AsyncClient, path: str, **parameters: Any) -> Json:
    answer = await client.get(path, params=parameters)
    assert answer.status_code == 200, answer.text
    return answer.json()


def numbers(page: Json) -> list[int]:
    return [int(item["began_at_s"]) for item in page["items"]]


# Runs ------------------------------------------------------------------------------------------------------


@aio
async def test_runs_come_newest_first_page_by_page(tmp_path: Path) -> None:
    with coordinator_with(tmp_path, [runs.State.COMPLETED] * 7) as coordinator:
        async with client_of(coordinator) as client:
            first = await get(client, RUNS, limit=3)
            second = await get(client, RUNS, limit=3, after=first["next"])
            third = await get(client, RUNS, limit=3, after=second["next"])

    assert [numbers(page) for page in (first, second, third)] == [[6, 5, 4], [3, 2, 1], [0]]
    assert [page["total"] for page in (first, second, third)] == [7, 7, 7]
    assert third["next"] is None


@pytest.mark.parametrize(("count", "limit"), [(0, 1), (1, 1), (3, 3)])
@aio
async def test_a_page_that_holds_all_has_no_next(tmp_path: Path, count: int, limit: int) -> None:
    with coordinator_with(tmp_path, [runs.State.RUNNING] * count) as coordinator:
        async with client_of(coordinator) as client:
            page = await get(client, RUNS, limit=limit)

    assert (len(page["items"]), page["next"]) == (count, None)


@aio
async def test_only_runs_in_the_states_that_are_asked_for_are_listed_and_counted(tmp_path: Path) -> None:
    states = [runs.State.RUNNING, runs.State.FAILED, runs.State.PAUSED] * 3
    with coordinator_with(tmp_path, states) as coordinator:
        async with client_of(coordinator) as client:
            first = await get(client, RUNS, limit=4, state=["running", "paused"])
            second = await get(client, RUNS, limit=4, state=["running", "paused"], after=first["next"])
            # The cursor may have left these states since it was given.
            moved = await get(client, RUNS, state="failed", after=first["next"])
            answer = await client.get(RUNS, params={"state": "happy"})

    assert (numbers(first), numbers(second)) == ([8, 6, 5, 3], [2, 0])
    assert (first["total"], second["next"]) == (6, None)
    assert numbers(moved) == [1]
    assert answer.status_code == 422


@pytest.mark.parametrize("limit", ["0", "201", "-1", "many", ""])
@aio
async def test_a_page_has_a_size_within_reason(tmp_path: Path, limit: str) -> None:
    with coordinator_with(tmp_path, []) as coordinator:
        async with client_of(coordinator) as client:
            assert (await client.get(RUNS, params={"limit": limit})).status_code == 422


@aio
async def test_of_ten_thousand_runs_only_a_page_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    viewed: list[runs.CoordinatorRun] = []
    looked_up: list[Key] = []
    view, find = view_run, Coordinator._find

    def watch_view(run: RunId, state: runs.State, data: runs.CoordinatorRun, last: Any) -> Any:
        viewed.append(data)
        return view(run, state, data, last)

    def watch_find(self: Coordinator, key: Key) -> RunningMachine | None:
        looked_up.append(key)
        return find(self, key)

    monkeypatch.setattr(routes, "view_run", watch_view)
    monkeypatch.setattr(Coordinator, "_find", watch_find)
    with coordinator_with(tmp_path, [runs.State.COMPLETED] * 10_000) as coordinator:
        async with client_of(coordinator) as client:
            page = await get(client, RUNS, limit=50, state="completed", after=f"{5_000:064x}")

    assert (len(page["items"]), page["total"]) == (50, 10_000)
    assert [int(run.began_at_s) for run in viewed] == list(range(4_999, 4_949, -1))
    assert len(looked_up) <= 4 * 50, "each run and its last rounds in memory, and none of the others"
    assert {key.round for key in looked_up} <= {0, 2, 3}


@aio
async def test_what_is_left_is_estimated_from_the_rounds_that_have_ended(tmp_path: Path) -> None:
    with coordinator_with(tmp_path, [runs.State.RUNNING, runs.State.PAUSED, runs.State.FAILED]) as coordinator:
        async with client_of(coordinator) as client:
            page = await get(client, RUNS)

    assert [item["remaining_s"] for item in page["items"]] == [None, 28.0, 28.0], "7 rounds of 4 seconds"


# Rounds ----------------------------------------------------------------------------------------------------


def add_rounds(coordinator: Coordinator, run: RunId, count: int) -> None:
    for number in range(1, count + 1):
        data = rounds.CoordinatorRound(run=Key("run", run), number=number, manifest=MANIFEST)
        coordinator.runner.machines[Key("round", run, number)] = RunningMachine(
            rounds.KIND, rounds.State.VOID, data
        )


@aio
async def test_rounds_come_oldest_first_page_by_page(tmp_path: Path) -> None:
    run = RunId("0" * 64)
    with coordinator_with(tmp_path, [runs.State.RUNNING]) as coordinator:
        add_rounds(coordinator, run, 3)
        async with client_of(coordinator) as client:
            path = f"{RUNS}/{run}/rounds"
            first = await get(client, path, limit=2)
            second = await get(client, path, limit=2, after=first["next"])
            beyond = await get(client, path, after=99)

    assert [[item["round"] for item in page["items"]] for page in (first, second, beyond)] == [[1, 2], [3], []]
    assert [(page["next"], page["total"]) for page in (first, second, beyond)] == [(2, 3), (None, 3), (None, 3)]


@aio
async def test_a_round_that_is_about_to_begin_is_not_listed_yet(tmp_path: Path) -> None:
    run = RunId("0" * 64)
    with coordinator_with(tmp_path, [runs.State.RUNNING]) as coordinator:
        add_rounds(coordinator, run, 2)
        async with client_of(coordinator) as client:
            page = await get(client, f"{RUNS}/{run}/rounds")
            answer = await client.get(f"{RUNS}/{run}/rounds/3")

    assert [item["round"] for item in page["items"]] == [1, 2]
    assert answer.status_code == 404


# Events ----------------------------------------------------------------------------------------------------

EVENTS = "/api/v1/events"
ONE, TWO = RunId(f"{0:064x}"), RunId(f"{1:064x}")


def report(coordinator: Coordinator, *told: RunId) -> None:
    data, state = runs.CoordinatorRun(manifest=MANIFEST), runs.State.ENROLLING
    for number, run in enumerate(told, 1 + coordinator.event_feed.newest // 100):
        moment = Transition(number, Key("run", run), state, Began(at_s=1.0), state, data, 0.0, data)
        coordinator.event_feed.note(moment)


def ids(page: Json) -> list[int]:
    return [item["id"] for item in page["items"]]


@aio
async def test_events_are_the_newest_or_those_after_one_oldest_first(tmp_path: Path) -> None:
    with coordinator_with(tmp_path, [runs.State.RUNNING] * 2) as coordinator:
        report(coordinator, *[ONE, TWO] * 3)
        async with client_of(coordinator) as client:
            newest = await get(client, EVENTS, limit=2)
            first = await get(client, EVENTS, limit=4, after=0)
            second = await get(client, EVENTS, limit=4, after=first["next"])
            nothing = await get(client, EVENTS, after=600)

    assert [ids(page) for page in (newest, first, second, nothing)] == [
        *([500, 600], [100, 200, 300, 400], [500, 600], []),
    ]
    assert [page["next"] for page in (newest, first, second, nothing)] == [None, 400, None, None]
    assert not any(page["reset"] for page in (newest, first, second, nothing))


@aio
async def test_events_are_filtered_by_run_kind_and_party(tmp_path: Path) -> None:
    with coordinator_with(tmp_path, [runs.State.RUNNING] * 2) as coordinator:
        report(coordinator, ONE, TWO, ONE)
        async with client_of(coordinator) as client:
            of_run = await get(client, EVENTS, run=ONE)
            of_kind = await get(client, EVENTS, kind=["run-submitted", "run-failed"])
            of_other_kind = await get(client, EVENTS, kind="run-failed")
            of_party = await get(client, EVENTS, party="client-1")
            unknown = await client.get(EVENTS, params={"kind": "rumour"})

    pages = (of_run, of_kind, of_other_kind, of_party)
    assert [ids(page) for page in pages] == [[100, 300], [100, 200, 300], [], []]
    assert unknown.status_code == 422


@aio
async def test_events_that_are_gone_are_said_to_be(tmp_path: Path) -> None:
    with coordinator_with(tmp_path, [runs.State.RUNNING]) as coordinator:
        report(coordinator, *[ONE] * 23_000)
        async with client_of(coordinator) as client:
            page = await get(client, EVENTS, after=100, limit=3)
            other = await get(client, EVENTS, after=99_999_999, limit=1)
            newest = await get(client, EVENTS, limit=1)

    assert page["reset"]
    assert ids(page)[0] == coordinator.event_feed.since(0)[0].id
    assert other["reset"]
    assert (ids(newest), newest["reset"]) == ([2_300_000], False)
