"""Routes for planning: what a run would cost and tell, and a request for a run like another."""

from pathlib import Path

from hubbub.frame_costs import count_sent
from hubbub.run_request import RunRequest
from hubbub.strategies.planner import Question, plan
from support.builders import make_manifest
from support.coordinator_scene import client_of, running_scene
from support.parties import roster_of

ASKED = {"strategy": "no-union", "parameters": "61706", "clients": "5", "servers": "2"}


async def test_a_plan_is_what_the_planner_says(tmp_path: Path) -> None:
    answer = plan(Question(parameters=61_706, clients=5, servers=2, rho=0.1))
    row, dense = answer.row("no-union"), answer.row("fedavg")
    async with running_scene(tmp_path) as scene, client_of(scene.coordinator) as client:
        found = (await client.get("/api/v1/plan", params=ASKED)).json()
        masked = (await client.get("/api/v1/plan", params={**ASKED, "strategy": "shared-mask"})).json()
        lost = (
            await client.get("/api/v1/plan", params={**ASKED, "strategy": "sec-union", "rho": "1", "clients": "4"})
        ).json()
        open_one = (await client.get("/api/v1/plan", params={**ASKED, "strategy": "fedavg"})).json()

    assert found["payload_bits"] == row.bits_per_round
    assert found["wire_bytes"] == count_sent("no-union", row.phases, answer.question.run)
    assert found["fedavg_wire_bytes"] == count_sent("fedavg", dense.phases, answer.question.run)
    assert (found["servers_learn"], found["reveals"], found["warning"]) == ("nothing", "", "")
    assert masked["rho"] == 0.03
    assert lost["q"] > 1, "with q = 1 nearly all marks would cancel"
    assert (open_one["servers_learn"], bool(open_one["reveals"])) == ("updates", True)


async def test_a_question_that_makes_no_sense_is_refused(tmp_path: Path) -> None:
    async with running_scene(tmp_path) as scene, client_of(scene.coordinator) as client:
        for wrong in (
            {"strategy": "magic"},
            {"parameters": "0"},
            {"clients": "1"},
            {"rho": "2"},
            {"servers": "x"},
        ):
            answer = await client.get("/api/v1/plan", params={**ASKED, **wrong})
            assert (answer.status_code, bool(answer.json()["detail"])) == (422, True), wrong


async def test_a_request_for_the_same_again_has_a_seed_of_its_own_each_time(tmp_path: Path) -> None:
    manifest = make_manifest(rounds=2)
    path = f"/api/v1/runs/{manifest.run_id}"
    async with running_scene(tmp_path) as scene, client_of(scene.coordinator) as client:
        submitted = manifest.model_copy(update={"roster_sha256": roster_of(manifest).digest})
        path = f"/api/v1/runs/{submitted.run_id}"
        answer = await client.post("/api/v1/runs", content=submitted.model_dump_json())
        assert answer.status_code == 201, answer.text
        found = [RunRequest.model_validate_json((await client.get(f"{path}/request")).text) for _ in range(2)]

    assert found[0].options.seed != found[1].options.seed
    assert (found[0].task, found[0].options.rounds, found[0].clients) == (manifest.task, 2, manifest.clients)
