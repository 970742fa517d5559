"""The REST interface over a real federation in this process."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from hubbub.messages.manifest import Manifest, MetricClaim
from hubbub.runtime.runner import Transition
from hubbub_coordinator.api.access import Tokens
from hubbub_coordinator.api.app import create_app
from hubbub_coordinator.events import ReceiptArrived
from hubbub_coordinator.phases import round as rounds
from hubbub_coordinator.phases import run as runs
from hubbub_local.federation import start_federation
from hubbub_trainer.learning.synthetic import SyntheticTask
from hubbub_trainer.workspace import digest
from support.aio import aio
from support.builders import make_manifest
from support.held_task import HeldTask, Silence
from support.parties import parties_of

TASK = SyntheticTask(1_003)
MANIFEST = make_manifest(
    clients=3,
    servers=2,
    rounds=2,
    parameters=TASK.count_parameters(),
    task=TASK.name,
    initial_model_sha256=digest(TASK.initial_model(7)),
    metrics=tuple(map(MetricClaim.of, TASK.metrics)),
)
RUN = f"/api/v1/runs/{MANIFEST.run_id}"
JSON = {"content-type": "application/json"}
TOKENS = Tokens(read="r" * 32, change="c" * 32)
AUTHORISED = {"authorization": f"Bearer {TOKENS.change}"}
FULL_SIGNS_BITS = 2 * 2 * 3 * 1_003 * 3
Json = Any  # What a server answers; the assertions are its types.


class Scene:
    """A federation whose last client is silent in round 1 until it is let go."""

    def __init__(
        self, client: httpx.AsyncClient, silence: Silence, stalled: asyncio.Event, over: asyncio.Event
    ) -> None:
        self.client = client
        self.silence = silence
        self.stalled = stalled
        self.over = over

    async def post_manifest(self, manifest: Manifest = MANIFEST, key: str = "") -> httpx.Response:
        headers = {**JSON, **({"idempotency-key": key} if key else {})}
        return await self.client.post("/api/v1/runs", content=manifest.model_dump_json(), headers=headers)

    async def get(self, path: str) -> Json:
        answer = await self.client.get(path)
        assert answer.status_code == 200, answer.text
        return answer.json()


@asynccontextmanager
async def scene_of(folder: Path) -> AsyncIterator[Scene]:
    silence, stalled, over = Silence((2, 1)), asyncio.Event(), asyncio.Event()

    def observe(moment: Transition) -> None:
        match moment:
            case Transition(event=ReceiptArrived(), data=rounds.CoordinatorRound() as data):
                if data.missing() == MANIFEST.clients[2:]:
                    stalled.set()
        if moment.after in runs.OUTCOMES:
            over.set()

    async with start_federation(
        MANIFEST,
        parties=parties_of(MANIFEST),
        folder=folder,
        load_task=HeldTask(TASK, silence).load,
        demo_seed=1,
        observer=observe,
    ) as federation:
        transport = httpx.ASGITransport(create_app(federation.coordinator, TOKENS))
        async with httpx.AsyncClient(
            transport=transport, base_url="http://coordinator", headers=AUTHORISED
        ) as client:
            try:
                yield Scene(client, silence, stalled, over)
            finally:
                silence.lift_all()


@pytest.mark.parametrize("again", [False, True])
@aio
async def test_a_manifest_begins_a_run_once(tmp_path: Path, *, again: bool) -> None:
    async with scene_of(tmp_path) as scene:
        answer = await scene.post_manifest()
        assert answer.status_code == 201
        assert answer.json()["run"] == MANIFEST.run_id
        assert answer.json()["state"] == "enrolling"
        assert answer.headers["location"] == RUN
        assert "idempotency-replayed" not in answer.headers
        if again:
            answer = await scene.post_manifest()
            assert answer.status_code == 409
            assert answer.headers["content-type"] == "application/problem+json"
            assert "needs a new nonce" in answer.json()["detail"]
            assert (await scene.get("/api/v1/runs"))["total"] == 1


OTHER = MANIFEST.model_copy(update={"nonce": "1" * 32})


@aio
async def test_a_manifest_that_is_sent_again_under_its_key_is_the_same_run(tmp_path: Path) -> None:
    async with scene_of(tmp_path) as scene:
        first, second = await asyncio.gather(*(scene.post_manifest(key="once") for _ in range(2)))
        third = await scene.post_manifest(key="once")

        assert (first.status_code, second.status_code, third.status_code) == (201, 200, 200)
        assert {answer.json()["run"] for answer in (first, second, third)} == {MANIFEST.run_id}
        assert third.headers["idempotency-replayed"] == "true"
        assert third.headers["location"] == RUN
        assert (await scene.get("/api/v1/runs"))["total"] == 1


@aio
async def test_a_key_belongs_to_one_manifest_and_a_manifest_to_one_run(tmp_path: Path) -> None:
    async with scene_of(tmp_path) as scene:
        await scene.post_manifest(key="once")
        reused = await scene.post_manifest(OTHER, key="once")
        known = await scene.post_manifest(key="twice")

        assert (reused.status_code, known.status_code) == (422, 409)
        assert "a new run needs a new key" in reused.json()["detail"]
        assert (await scene.post_manifest(OTHER, key="twice")).status_code == 201, "nothing had begun under it"


@pytest.mark.parametrize("key", ["a b", "ä", "x" * 65, "a/b"])
@aio
async def test_a_key_has_few_characters(tmp_path: Path, key: str) -> None:
    async with scene_of(tmp_path) as scene:
        headers = [(b"idempotency-key", key.encode())]
        content = MANIFEST.model_dump_json()
        answer = await scene.client.post("/api/v1/runs", content=content, headers=headers)

        assert answer.status_code == 422
        assert "Idempotency-Key" in answer.json()["detail"]


@pytest.mark.parametrize(
    ("change", "field"),
    [
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
    ],
)
@aio
async def test_an_invalid_manifest_is_refused_by_field(
    tmp_path: Path, change: dict[str, object], field: str
) -> None:
    document = {**json.loads(MANIFEST.model_dump_json()), **change}
    async with scene_of(tmp_path) as scene:
        answer = await scene.client.post("/api/v1/runs", json=document)
        assert answer.status_code == 422, answer.text
        assert answer.headers["content-type"] == "application/problem+json"
        assert field in answer.json()["detail"]
        assert await scene.get("/api/v1/runs") == {"items": [], "next": None, "total": 0}


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff\xfe", b'{"rounds": 2}'])
@aio
async def test_what_is_no_manifest_at_all_is_refused(tmp_path: Path, body: bytes) -> None:
    async with scene_of(tmp_path) as scene:
        answer = await scene.client.post("/api/v1/runs", content=body, headers=JSON)
        assert answer.status_code == 422
        assert "not a manifest" in answer.json()["detail"]


@aio
async def test_an_unknown_run_is_not_found(tmp_path: Path) -> None:
    async with scene_of(tmp_path) as scene:
        asked = ("", "/rounds", "/rounds/1", "/cost", "/export", "/export?format=csv")
        of_run = (f"/api/v1/{path}run={MANIFEST.run_id}" for path in ("events?", "events/stream?"))
        for path in (*(f"{RUN}{each}" for each in asked), *of_run, f"/api/v1/runs?after={MANIFEST.run_id}"):
            answer = await scene.client.get(path)
            assert answer.status_code == 404
            assert MANIFEST.run_id in answer.json()["detail"]
        assert (await scene.client.post(f"{RUN}/cancel")).status_code == 404
        assert (await scene.client.get("/api/v1/runs/nonsense")).status_code == 422


@aio
async def test_a_run_can_be_followed_while_it_goes_on(tmp_path: Path) -> None:
    async with scene_of(tmp_path) as scene:
        await scene.post_manifest()
        await scene.stalled.wait()
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
        assert (status["client-1"]["organisation"], status["aggregator-2"]["organisation"]) == (
            *("org-1", "aggregator-2"),
        )
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


@aio
async def test_a_run_can_be_looked_at_when_it_is_over(tmp_path: Path) -> None:
    async with scene_of(tmp_path) as scene:
        await scene.post_manifest()
        scene.silence.lift_all()
        await scene.over.wait()
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
        assert {row["party"] for row in by_party if row["direction"] == "up" and row["payload_bits"]} == {
            *MANIFEST.clients
        }
        status = {each["name"]: each["status"] for each in (await scene.get(RUN))["participants"]}
        assert status["client-3"] == "applied round 2"
        assert status["aggregator-2"] == "released"


@aio
async def test_on_the_compact_wire_a_run_says_so_and_counts_what_goes_from_aggregator_to_aggregator(
    tmp_path: Path,
) -> None:
    manifest = Manifest.model_validate(MANIFEST.model_dump() | {"wire": "compact"})
    path = f"/api/v1/runs/{manifest.run_id}"
    async with scene_of(tmp_path) as scene:
        await scene.post_manifest(manifest)
        scene.silence.lift_all()
        await scene.over.wait()
        run, cost = await scene.get(path), await scene.get(f"{path}/cost")
        first, second = (await scene.get(f"{path}/rounds"))["items"]

    # In round 1 the second aggregator combines the signs, in round 2 the first, and the scores the other one. Who
    # does not sends 59 words of 48 bits.
    assert (run["state"], run["wire"]) == ("completed", "compact")
    combiners = [phase["combiner"] for each in (first, second) for phase in each["phases"]]
    assert combiners == ["aggregator-2", "aggregator-1", "aggregator-1", "aggregator-2"]
    tagged = ("tags", 3 * 64)
    learnt, scored = (("signs", 59 * 48), ("factors", 32), tagged), (tagged, ("scores", 2 * 32))
    across = [row for row in cost["by_party"] if row["direction"] == "across" and row["payload_bits"]]
    assert [(row["round"], row["party"], row["counts_as"], row["payload_bits"]) for row in across] == [
        *((1, "aggregator-1", name, bits) for name, bits in learnt),
        *((1, "aggregator-2", name, bits) for name, bits in scored),
        *((2, "aggregator-2", name, bits) for name, bits in learnt),
        *((2, "aggregator-1", name, bits) for name, bits in scored),
    ]
    scores = cost["total"]["scores"]
    assert scores["payload_bits"] == scores["predicted_bits"] == 2 * (7 * 2 * 32 + 3 * 256)
    signs_bits, others_bits = 7 * 59 * 48 + 3 * 256, 7 * (32 + 3 * 64)
    assert cost["total"]["signs"]["payload_bits"] == cost["total"]["signs"]["predicted_bits"] == 2 * signs_bits
    assert cost["other_strategies"]["no-union"]["rounds"] == dict.fromkeys(("1", "2"), signs_bits + others_bits)


@aio
async def test_a_run_can_be_cancelled_once(tmp_path: Path) -> None:
    async with scene_of(tmp_path) as scene:
        await scene.post_manifest()
        await scene.stalled.wait()
        answer = await scene.client.post(f"{RUN}/cancel")
        assert answer.status_code == 200
        await scene.over.wait()  # It is answered once it is kept: what follows cannot be stopped any more.
        found = await scene.get(RUN)
        assert (found["state"], found["reason"]) == ("cancelled", "an operator cancelled it")
        again = await scene.client.post(f"{RUN}/cancel")
        assert again.status_code == 409
        assert "cancelled already" in again.json()["detail"]
        assert (await scene.get(f"{RUN}/rounds"))["total"] == 1


@aio
async def test_health_metrics_and_the_description_of_the_interface(tmp_path: Path) -> None:
    async with scene_of(tmp_path) as scene:
        assert (await scene.get("/healthz"))["status"] == "ok"
        metrics = await scene.client.get("/metrics")
        assert 'hubbub_messages_rejected_total{reason="malformed"} 0.0' in metrics.text
        described = await scene.get("/openapi.json")
        body = described["paths"]["/api/v1/runs"]["post"]["requestBody"]
        reference = body["content"]["application/json"]["schema"]["$ref"]
        manifest = described["components"]["schemas"][reference.rsplit("/", 1)[1]]
        assert "initial_model_sha256" in manifest["required"]
