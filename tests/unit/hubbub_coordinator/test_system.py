"""Routes about the coordinator itself: health, readiness, identity, machines, metrics; and the description."""

from pathlib import Path
from typing import Any

import pytest

from hubbub import __version__
from hubbub.messages.manifest import Manifest
from hubbub.strategies.registry import STRATEGIES
from hubbub_coordinator.event_feed import FeedEventKind
from hubbub_coordinator.phases import round as rounds
from hubbub_coordinator.phases import run as runs
from support.coordinator_scene import MANIFEST, TOKENS, client_of, running_scene
from support.parties import roster_of
from support.rest_stand_in import Front


async def test_ready_means_that_it_can_work_and_alive_that_it_is_there(tmp_path: Path) -> None:
    async with running_scene(tmp_path) as scene, client_of(scene.coordinator) as client:
        ready = await client.get("/readyz")
        scene.broker.stop()
        alone, about = await client.get("/readyz"), (await client.get("/api/v1/about")).json()
        scene.broker.start()
        await scene.coordinator.runner.stop()
        stopped, alive = await client.get("/readyz"), await client.get("/healthz")

    assert (ready.status_code, ready.json()) == (200, {"status": "ready"})
    assert (alone.status_code, "broker" in alone.json()["detail"]) == (503, True)
    assert (about["ready"], about["broker_connected"]) == (False, False)
    assert (stopped.status_code, "being stopped" in stopped.json()["detail"]) == (503, True)
    assert alive.json() == {"status": "ok", "version": __version__}


async def test_it_says_who_it_is_whom_it_knows_what_a_token_may_and_how_it_works(tmp_path: Path) -> None:
    """Its machines are those of the tables, and its metrics in the format that is accepted."""
    async with running_scene(tmp_path) as scene, client_of(scene.coordinator) as client:
        about, machines = [(await client.get(f"/api/v1/{each}")).json() for each in ("about", "machines")]
        text = await client.get("/metrics")
        open_metrics = await client.get("/metrics", headers={"accept": "application/openmetrics-text"})
        async with client_of(scene.coordinator, TOKENS.read) as reader:
            to_reader = (await reader.get("/api/v1/about")).json()

    assert (about["may_change"], to_reader["may_change"]) == (True, False)
    roster = roster_of(MANIFEST)
    assert (about["version"], about["coordinator"]) == (__version__, MANIFEST.coordinator)
    assert about["roster_sha256"] == roster.digest
    assert about["parties"] == [
        {"name": party.name, "role": party.role.value, "organisation": party.organisation}
        for party in roster.parties
    ]
    assert (about["ready"], about["broker_connected"]) == (True, True)
    strategies = {each.pop("name"): each for each in about["strategies"]}
    assert strategies.keys() == STRATEGIES.keys()
    assert strategies["sec-union"] == {"phases": ["union", "signs"], "reveals": "", "usual_rho": 0.1}
    assert strategies["shared-mask"]["usual_rho"] == 0.03
    assert "indices" in strategies["plaintext-union"]["reveals"]
    assert [state["name"] for state in machines["round"]["states"]] == [state.value for state in rounds.State]
    finals = {state["name"] for state in machines["run"]["states"] if state["final"]}
    assert finals == {state.value for state in runs.OUTCOMES}
    assert (machines["run"]["initial"], machines["round"]["initial"]) == ("enrolling", "collecting")
    assert {"from": "collecting", "event": "DeadlinePassed", "to": "voiding"} in machines["round"]["transitions"]
    pauses = [each["from"] for each in machines["run"]["transitions"] if each["event"] == "PauseRequested"]
    assert pauses == ["enrolling", "agreeing", "running"], "what a table ignores is not shown"
    assert text.headers["content-type"].startswith("text/plain; version=")
    assert text.headers["content-type"].count("charset") == 1
    assert open_metrics.headers["content-type"].startswith("application/openmetrics-text")
    assert 'hubbub_messages_rejected_total{reason="malformed"} 0.0' in text.text


# The description -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def described() -> dict[str, Any]:
    return Front().routes.openapi()


def operations(described: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    return [
        (method, path, operation)
        for path, methods in described["paths"].items()
        for method, operation in methods.items()
    ]


def test_every_route_says_what_may_go_wrong_in_the_one_form_for_it(described: dict[str, Any]) -> None:
    for method, path, operation in operations(described):
        problems = {status: each for status, each in operation["responses"].items() if status >= "400"}
        expected = {"400", "413"} if path in {"/healthz", "/readyz"} else {"400", "401", "413", "422"}
        expected |= {"403", "503"} if method == "post" else set()
        expected |= {"404"} if "{run}" in path else set()
        assert expected <= problems.keys(), path
        for each in problems.values():
            schema = each["content"]["application/problem+json"]["schema"]
            assert schema == {"$ref": "#/components/schemas/Problem"}


def test_every_reference_leads_somewhere(described: dict[str, Any]) -> None:
    def references(value: object) -> list[str]:
        if isinstance(value, dict):
            inner = [each for item in value.values() for each in references(item)]
            return [*inner, *([value["$ref"]] if isinstance(value.get("$ref"), str) else [])]
        return [each for item in value for each in references(item)] if isinstance(value, list) else []

    named = {reference.removeprefix("#/components/schemas/") for reference in references(described)}
    assert named <= described["components"]["schemas"].keys()
    assert not {"HTTPValidationError", "ValidationError"} & described["components"]["schemas"].keys()


def test_what_is_closed_says_that_it_takes_a_token(described: dict[str, Any]) -> None:
    scheme = described["components"]["securitySchemes"]["token"]
    assert (scheme["type"], scheme["scheme"]) == ("http", "bearer")
    for _, path, operation in operations(described):
        assert operation.get("security") == (None if path in {"/healthz", "/readyz"} else [{"token": []}])


def test_a_manifest_is_described_as_it_may_be_sent(described: dict[str, Any]) -> None:
    body = described["paths"]["/api/v1/runs"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    schema = described["components"]["schemas"][body["$ref"].rsplit("/", 1)[1]]
    assert set(schema["properties"]) == set(Manifest.model_fields)
    assert "nonce" in schema["required"]
    assert "q" not in schema["required"]
    assert schema["additionalProperties"] is False


def test_kinds_and_states_are_listed(described: dict[str, Any]) -> None:
    schemas = described["components"]["schemas"]
    assert schemas["FeedEventKind"]["enum"] == [kind.value for kind in FeedEventKind]
    assert schemas["RunView"]["properties"]["state"]["enum"] == [state.value for state in runs.State]
    assert schemas["RoundView"]["properties"]["state"]["enum"] == [state.value for state in rounds.State]
