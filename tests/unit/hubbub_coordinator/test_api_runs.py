"""Routes about runs and rounds: submitting, following, steering and listing them."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, call

import httpx
import pytest

from hubbub.errors import ConfigurationError
from hubbub.ids import Role, RunId
from hubbub.machine.effects import Key
from hubbub.messages.manifest import Manifest, MetricClaim
from hubbub.runtime.runner import RunningMachine, Transition
from hubbub.transport.memory import MemoryBroker, MemoryTransport
from hubbub.transport.topology import topology_for
from hubbub_coordinator.events import ReceiptArrived
from hubbub_coordinator.labels import Label, Labels
from hubbub_coordinator.phases import round as rounds
from hubbub_coordinator.phases import run as runs
from hubbub_coordinator.service import LABELS_FILE, Coordinator
from hubbub_local.federation import start_federation
from hubbub_trainer.learning.synthetic import SyntheticTask
from support import coordinator_scene
from support.builders import make_manifest
from support.coordinator_play import make_round
from support.coordinator_scene import client_of, running_scene
from support.held_task import HeldTask, Silence
from support.live_coordinator import manifest_of
from support.parties import identity_of, parties_of, roster_of

RUNS = "/api/v1/runs"
Json = Any  # What a server answers; the assertions are its types.


async def get(client: httpx.AsyncClient, path: str, **parameters: Any) -> Json:
    answer = await client.get(path, params=parameters or None)
    assert answer.status_code == 200, answer.text
    return answer.json()


# Submitting and cancelling ---------------------------------------------------------------------------------

SUBMITTED = coordinator_scene.MANIFEST
OTHER = SUBMITTED.model_copy(update={"nonce": "1" * 32})


async def submit(client: httpx.AsyncClient, manifest: Manifest = SUBMITTED, key: str = "") -> httpx.Response:
    headers = [(b"idempotency-key", key.encode())] if key else []
    return await client.post(RUNS, content=manifest.model_dump_json(), headers=headers)


async def test_a_run_that_loses_nearly_all_indices_is_refused_and_one_that_loses_many_has_a_warning(
    tmp_path: Path,
) -> None:
    empty = make_manifest(clients=4, strategy="sec-union", rho=1.0)
    lossy = SUBMITTED.model_copy(update={"strategy": "sec-union", "rho": 0.5})
    larger = SUBMITTED.model_copy(update={"parameters": 1_000})
    async with running_scene(tmp_path) as scene, client_of(scene.coordinator) as client:
        refused, begun, quiet = [await submit(client, manifest) for manifest in (empty, lossy, larger)]

        assert refused.status_code == 422
        assert "sec-union with q = 1, rho = 1 and 4 clients loses 100% of the" in refused.json()["detail"]
        assert "nearly all marks cancel" in refused.json()["detail"]
        assert (begun.status_code, quiet.status_code) == (201, 201)
        assert "rho = 0.5 and 3 clients loses 43% of the indices" in begun.json()["warning"]
        assert quiet.json()["warning"] == ""
        assert (await get(client, f"{RUNS}/{lossy.run_id}"))["warning"] == begun.json()["warning"]


async def test_a_manifest_begins_a_run_once(tmp_path: Path) -> None:
    async with running_scene(tmp_path) as scene, client_of(scene.coordinator) as client:
        begun, again = await submit(client), await submit(client)

        assert (begun.status_code, begun.headers["location"]) == (201, f"{RUNS}/{SUBMITTED.run_id}")
        assert (begun.json()["run"], begun.json()["state"]) == (SUBMITTED.run_id, "enrolling")
        assert "idempotency-replayed" not in begun.headers
        assert (again.status_code, again.headers["content-type"]) == (409, "application/problem+json")
        assert "needs a new nonce" in again.json()["detail"]
        assert (await get(client, RUNS))["total"] == 1


async def test_a_manifest_that_is_sent_again_under_its_key_is_the_same_run(tmp_path: Path) -> None:
    """A key belongs to one manifest, and a manifest to one run."""
    async with running_scene(tmp_path) as scene, client_of(scene.coordinator) as client:
        answers = [*await asyncio.gather(*(submit(client, key="once") for _ in range(2)))]
        answers.append(await submit(client, key="once"))
        reused, known = await submit(client, OTHER, "once"), await submit(client, key="twice")
        wrong = [await submit(client, key=key) for key in ("a b", "ä", "x" * 65, "a/b")]
        listed = await get(client, RUNS)
        begun = await submit(client, OTHER, "twice")

    assert [answer.status_code for answer in answers] == [201, 200, 200]
    assert {answer.json()["run"] for answer in answers} == {SUBMITTED.run_id}
    assert answers[2].headers["idempotency-replayed"] == "true"
    assert answers[2].headers["location"] == f"{RUNS}/{SUBMITTED.run_id}"
    assert (reused.status_code, known.status_code) == (422, 409)
    assert "a new run needs a new key" in reused.json()["detail"]
    for answer in wrong:
        assert (answer.status_code, "Idempotency-Key" in answer.json()["detail"]) == (422, True)
    assert listed["total"] == 1
    assert begun.status_code == 201, "nothing had begun under it"


INVALID: list[tuple[dict[str, object], str]] = [
    ({"rho": 1.5}, "rho"),
    ({"rho": 0.0001}, "rho"),
    ({"min_clients": 9}, "min_clients"),
    ({"rounds": 0}, "rounds"),
    ({"rounds": "3"}, "rounds"),
    ({"colour": "blue"}, "colour"),
    ({"nonce": "zz"}, "nonce"),
    ({"aggregators": ["aggregator-1"]}, "aggregators"),
    ({"strategy": "magic"}, "no strategy 'magic'"),
    ({"coordinator": "another"}, "another"),
]


async def test_an_invalid_manifest_is_refused_by_field_and_what_is_none_at_all(tmp_path: Path) -> None:
    document = json.loads(SUBMITTED.model_dump_json())
    bodies = [(json.dumps({**document, **change}).encode(), field) for change, field in INVALID]
    bodies += [(body, "not a manifest") for body in (b"", b"{", b"[]", b"\xff\xfe", b'{"rounds": 2}')]
    async with running_scene(tmp_path) as scene, client_of(scene.coordinator) as client:
        for body, saying in bodies:
            answer = await client.post(RUNS, content=body)
            assert answer.status_code == 422, answer.text
            assert answer.headers["content-type"] == "application/problem+json"
            assert saying in answer.json()["detail"]
        assert await get(client, RUNS) == {"items": [], "next": None, "total": 0}


async def test_an_unknown_run_is_not_found(tmp_path: Path) -> None:
    run = SUBMITTED.run_id
    asked = ("", "/rounds", "/rounds/1", "/cost", "/export", "/export?format=csv")
    paths = [*(f"{RUNS}/{run}{each}" for each in asked), f"{RUNS}?after={run}"]
    async with running_scene(tmp_path) as scene, client_of(scene.coordinator) as client:
        for path in (*paths, f"/api/v1/events?run={run}", f"/api/v1/events/stream?run={run}"):
            answer = await client.get(path)
            assert (answer.status_code, run in answer.json()["detail"]) == (404, True)
        assert (await client.post(f"{RUNS}/{run}/cancel")).status_code == 404
        assert (await client.get(f"{RUNS}/nonsense")).status_code == 422


async def test_a_run_has_the_name_and_note_that_it_was_given_last_also_when_it_is_over_or_after_a_restart(
    tmp_path: Path,
) -> None:
    path = f"{RUNS}/{SUBMITTED.run_id}"
    async with running_scene(tmp_path) as scene, client_of(scene.coordinator) as client:
        await client.post(RUNS, content=SUBMITTED.model_dump_json())
        assert (await get(client, path))["name"] == ""
        await client.post(f"{path}/cancel")
        for name, status in ((" Pilot ", 200), ("x" * 61, 422), ("two\nlines", 422)):
            answer = await client.put(f"{path}/label", json={"name": name, "note": "slow at night"})
            assert answer.status_code == status, answer.text
        assert (await client.put(f"{RUNS}/{'0' * 64}/label", json={"name": "x"})).status_code == 404
        (listed,) = (await get(client, RUNS))["items"]

    assert (listed["name"], listed["note"]) == ("Pilot", "slow at night")
    (file,) = await asyncio.to_thread(lambda: [*tmp_path.rglob(LABELS_FILE)])
    kept = Labels(file)
    assert kept.find(SUBMITTED.run_id) == Label(name="Pilot", note="slow at night")


def test_a_file_of_names_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    file = tmp_path / LABELS_FILE
    file.write_text("{", encoding="ascii")

    with pytest.raises(ConfigurationError, match=r"labels.json should hold the names and notes of runs"):
        Labels(file)


async def test_a_run_can_be_paused_resumed_and_cancelled_once(tmp_path: Path) -> None:
    path = f"{RUNS}/{SUBMITTED.run_id}"
    async with running_scene(tmp_path) as scene, client_of(scene.coordinator) as client:
        await scene.open_round()
        paused, resumed = await client.post(f"{path}/pause"), await client.post(f"{path}/resume")
        assert [answer.json()["pausing"] for answer in (paused, resumed)] == [True, False]
        answer = await client.post(f"{path}/cancel")
        await scene.over.wait()  # It is answered once it is kept: what follows cannot be stopped any more.
        found, again = await get(client, path), await client.post(f"{path}/cancel")

        assert answer.status_code == 200
        assert (found["state"], found["reason"]) == ("cancelled", "an operator cancelled it")
        assert (again.status_code, "cancelled already" in again.json()["detail"]) == (409, True)
        assert (await get(client, f"{path}/rounds"))["total"] == 1


# A run of a real federation --------------------------------------------------------------------------------

TASK = SyntheticTask(1_003)
MANIFEST = manifest_of(TASK, metrics=tuple(map(MetricClaim.of, TASK.metrics)))
RUN = f"{RUNS}/{MANIFEST.run_id}"
FULL_SIGNS_BITS = 2 * 2 * 3 * 1_003 * 3


class Scene:
    """A federation whose last client is silent in round 1 until it is let go."""

    def __init__(self) -> None:
        self.silence, self.stalled, self.over = Silence((2, 1)), asyncio.Event(), asyncio.Event()
        self.client: httpx.AsyncClient

    def observe(self, moment: Transition) -> None:
        match moment:
            case Transition(event=ReceiptArrived(), data=rounds.CoordinatorRound() as data):
                if data.missing() == MANIFEST.clients[2:]:
                    self.stalled.set()
        if moment.after in runs.OUTCOMES:
            self.over.set()

    async def get(self, path: str) -> Json:
        return await get(self.client, path)


@asynccontextmanager
async def federation_scene(folder: Path) -> AsyncIterator[Scene]:
    scene = Scene()
    async with (
        start_federation(
            MANIFEST,
            parties=parties_of(MANIFEST),
            folder=folder,
            load_task=HeldTask(TASK, scene.silence).load,
            demo_seed=1,
            observer=scene.observe,
        ) as federation,
        client_of(federation.coordinator) as scene.client,
    ):
        try:
            yield scene
        finally:
            scene.silence.lift_all()


async def test_a_run_can_be_followed_while_it_goes_on_and_looked_at_when_it_is_over(tmp_path: Path) -> None:
    async with federation_scene(tmp_path) as scene:
        await submit(scene.client, MANIFEST)
        await scene.stalled.wait()
        await check_open_round(scene)
        scene.silence.lift_all()
        await scene.over.wait()
        await check_completed_run(scene)


async def check_open_round(scene: Scene) -> None:
    run = await scene.get(RUN)
    assert (run["state"], run["round"], run["rounds_released"], run["metrics"]) == ("running", 1, 0, {})
    assert Manifest.model_validate_json(json.dumps(run["manifest"])) == MANIFEST
    status = {each["name"]: each for each in run["participants"]}
    assert {name: each["role"] for name, each in status.items()} == {
        **dict.fromkeys(MANIFEST.aggregators, "aggregator"),
        **dict.fromkeys(MANIFEST.clients, "client"),
    }
    assert all(each["joined"] for each in status.values())
    assert status["client-1"]["status"] == "delivered signs to 2 of 2 aggregators"
    assert status["client-3"]["status"] == "training or sending"
    assert status["aggregator-1"]["status"] == "holds 2 share sets"
    assert {name: each["state"] for name, each in status.items()} == {
        **dict.fromkeys(map(str, MANIFEST.aggregators), "idle"),
        "client-1": "delivered",
        "client-2": "delivered",
        "client-3": "training",
    }
    waited_for = [name for name, each in status.items() if each["waited_for"]]
    assert waited_for == run["waiting_for"] == ["client-3"]
    assert status["client-3"]["since_s"] == run["waiting_since_s"] > 0
    assert status["client-1"]["since_s"] is None
    owners = [status[name]["organisation"] for name in ("client-1", "aggregator-2")]
    assert owners == ["org-1", "aggregator-2"]
    (first,) = (await scene.get(f"{RUN}/rounds"))["items"]
    assert (first["phases"][0]["state"], first["applied"]) == ("collecting", [])
    assert (first["state"], first["phase"], first["missing"]) == ("collecting", "signs", ["client-3"])
    assert first["phases"][0]["delivered"] == {
        client: list(MANIFEST.aggregators) for client in ("client-1", "client-2")
    }
    assert first["phases"][0]["closed_at_s"] is None
    cost = await scene.get(f"{RUN}/cost")
    assert cost["fedavg_bits"] == 0
    assert {each["total_bits"] for each in cost["other_strategies"].values()} == {0}


async def check_completed_run(scene: Scene) -> None:
    (run,) = (await scene.get("/api/v1/runs"))["items"]
    assert (run["state"], run["rounds_released"], run["rounds_void"]) == ("completed", 2, 0)
    assert (run["parameters"], run["clients"], run["aggregators"]) == (1_003, 3, 2)
    assert run["wire"] == "paper"
    assert (run["remaining_s"], run["waiting_for"], run["target"]) == (None, [], None)
    assert run["headline"] == {"name": "accuracy", "higher_is_better": True}
    first, second = (await scene.get(f"{RUN}/rounds"))["items"]
    assert run["metrics"] == second["metrics"]
    assert run["metrics"].keys() == first["metrics"].keys() == {"accuracy", "loss"}
    assert 0 < run["metrics"]["accuracy"] <= 1
    for name in ("payload_bits", "wire_bytes"):
        parts = (cost[name] for each in (first, second) for cost in each["cost"].values())
        assert run[name] == sum(parts) > 0
    assert first["applied"] == list(MANIFEST.clients)
    assert [phase["name"] for phase in first["phases"]] == ["signs", "scores"]
    assert [phase["state"] for phase in first["phases"]] == ["released"] * 2
    scores = first["cost"]["scores"]
    assert scores["payload_bits"] == scores["predicted_bits"] == 2 * 2 * 3 * 2 * 32
    assert first["fedavg_bits"] == 2 * 3 * 32 * 1_003
    assert first["fedavg_wire_bytes"] > first["fedavg_bits"] / 8
    assert first["all_wire_bytes"] > sum(cost["wire_bytes"] for cost in first["cost"].values())
    assert (await scene.get(RUN))["no_gain"] == "This model is too small to gain from compression"
    assert [each["state"] for each in (first, second)] == ["released"] * 2
    assert first["members"] == list(MANIFEST.clients)
    assert first["union_size"] == 1_003
    signs = first["cost"]["signs"]
    assert signs["payload_bits"] == signs["predicted_bits"] == FULL_SIGNS_BITS
    assert await scene.get(f"{RUN}/rounds/2") == second
    assert (await scene.client.get(f"{RUN}/rounds/3")).status_code == 404
    cost = await scene.get(f"{RUN}/cost")
    assert cost["total"]["signs"]["payload_bits"] == 2 * FULL_SIGNS_BITS
    assert cost["fedavg_bits"] == 2 * (2 * 3 * 32 * 1_003)
    assert list(cost["rounds"]) == ["1", "2"]
    # Of scores, the two rounds have three tags of 64 bits to and from both aggregators.
    predicted = sum(each["predicted_bits"] for name, each in cost["total"].items() if name != "scores")
    predicted -= 2 * (2 * 2 * 3 * 3 * 64)
    assert cost["other_strategies"]["no-union"]["total_bits"] == predicted
    assert cost["other_strategies"]["fedavg"]["rounds"] == {"1": 2 * 3 * 32 * 1_003, "2": 2 * 3 * 32 * 1_003}
    by_party = [row for row in cost["by_party"] if row["counts_as"] == "signs"]
    assert sum(row["payload_bits"] for row in by_party) == 2 * FULL_SIGNS_BITS
    senders = {row["party"] for row in by_party if row["direction"] == "up" and row["payload_bits"]}
    assert senders == set(MANIFEST.clients)
    status = {each["name"]: each["status"] for each in (await scene.get(RUN))["participants"]}
    assert status["client-3"] == "applied round 2"
    assert status["aggregator-2"] == "released"


# Pages -----------------------------------------------------------------------------------------------------

LISTED = make_manifest(rounds=9)


@asynccontextmanager
async def client_with(folder: Path, *states: runs.State) -> AsyncIterator[tuple[httpx.AsyncClient, Coordinator]]:
    """Somebody who asks a coordinator, not started, that has had a run in each of these states."""
    me = LISTED.coordinator
    coordinator = Coordinator(
        identity=identity_of(LISTED, me),
        roster=roster_of(LISTED),
        transport=MemoryTransport(MemoryBroker(), topology_for(me, Role.COORDINATOR)),
        folder=folder,
    )
    machines = {}
    for number, state in enumerate(states):
        manifest = LISTED.model_copy(update={"nonce": f"{number:032x}"})
        # The id is as good as a real one, and quicker.
        data = runs.CoordinatorRun(
            manifest=manifest, began_at_s=float(number), released=2, ended=2, rounds_s=8.0, round=3
        )
        machines[Key("run", RunId(f"{number:016x}" + "0" * 48))] = RunningMachine(runs.KIND, state, data)
    coordinator.runner.machines |= machines
    coordinator.restore(machines)
    async with client_of(coordinator) as client:
        yield client, coordinator
    coordinator.close()


def numbers(page: Json) -> list[int]:
    return [int(item["began_at_s"]) for item in page["items"]]


# Runs ------------------------------------------------------------------------------------------------------


async def test_runs_come_newest_first_page_by_page(tmp_path: Path) -> None:
    async with client_with(tmp_path, *[runs.State.COMPLETED] * 7) as (client, _):
        first = await get(client, RUNS, limit=3)
        second = await get(client, RUNS, limit=3, after=first["next"])
        third = await get(client, RUNS, limit=3, after=second["next"])
        whole = await get(client, RUNS, limit=7)
        for limit in ("0", "201", "-1", "many", ""):
            assert (await client.get(RUNS, params={"limit": limit})).status_code == 422

    assert [numbers(page) for page in (first, second, third)] == [[6, 5, 4], [3, 2, 1], [0]]
    assert [page["total"] for page in (first, second, third)] == [7, 7, 7]
    assert (third["next"], whole["next"], numbers(whole)) == (None, None, [6, 5, 4, 3, 2, 1, 0])


async def test_only_runs_in_the_states_that_are_asked_for_are_listed_and_counted(tmp_path: Path) -> None:
    states = [runs.State.RUNNING, runs.State.FAILED, runs.State.PAUSED] * 3
    async with client_with(tmp_path, *states) as (client, _):
        first = await get(client, RUNS, limit=4, state=["running", "paused"])
        second = await get(client, RUNS, limit=4, state=["running", "paused"], after=first["next"])
        # The cursor may have left these states since it was given.
        moved = await get(client, RUNS, state="failed", after=first["next"])
        answer = await client.get(RUNS, params={"state": "happy"})

    assert (numbers(first), numbers(second)) == ([8, 6, 5, 3], [2, 0])
    assert (first["total"], second["next"]) == (6, None)
    assert numbers(moved) == [1]
    assert answer.status_code == 422


async def test_of_ten_thousand_runs_only_a_page_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with client_with(tmp_path, *[runs.State.COMPLETED] * 10_000) as (client, coordinator):
        look = AsyncMock(wraps=coordinator.look)
        monkeypatch.setattr(coordinator, "look", look)
        page = await get(client, RUNS, limit=50, state="completed", after=f"{5_000:016x}" + "0" * 48)

    assert page["total"] == 10_000
    assert numbers(page) == list(range(4_999, 4_949, -1))
    assert look.await_args_list == [call(item["run"]) for item in page["items"]]


async def test_what_is_left_is_estimated_from_the_rounds_that_have_ended(tmp_path: Path) -> None:
    states = (runs.State.RUNNING, runs.State.PAUSED, runs.State.FAILED)
    async with client_with(tmp_path, *states) as (client, _):
        page = await get(client, RUNS)

    assert [item["remaining_s"] for item in page["items"]] == [None, 28.0, 28.0], "7 rounds of 4 seconds"


# Rounds ----------------------------------------------------------------------------------------------------


def add_rounds(coordinator: Coordinator, run: RunId, count: int) -> None:
    for number in range(1, count + 1):
        void = RunningMachine(rounds.KIND, rounds.State.VOID, make_round(LISTED, number))
        coordinator.runner.machines[Key("round", run, number)] = void


async def test_rounds_come_oldest_first_page_by_page_and_none_that_is_about_to_begin(tmp_path: Path) -> None:
    run = RunId("0" * 64)
    path = f"{RUNS}/{run}/rounds"
    async with client_with(tmp_path, runs.State.RUNNING) as (client, coordinator):
        add_rounds(coordinator, run, 2)
        begun, absent = await get(client, path), await client.get(f"{path}/3")
        add_rounds(coordinator, run, 3)
        first = await get(client, path, limit=2)
        second = await get(client, path, limit=2, after=first["next"])
        beyond = await get(client, path, after=99)

    assert ([item["round"] for item in begun["items"]], absent.status_code) == ([1, 2], 404)
    assert [[item["round"] for item in page["items"]] for page in (first, second, beyond)] == [[1, 2], [3], []]
    assert [(page["next"], page["total"]) for page in (first, second, beyond)] == [(2, 3), (None, 3), (None, 3)]
