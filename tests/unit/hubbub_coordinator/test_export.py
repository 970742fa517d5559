"""A run to take away: the same as the interface shows, whole, and harmless to a spreadsheet."""

import csv
import io
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from hubbub.machine.effects import Key
from hubbub.messages.manifest import MetricClaim
from hubbub.messages.rounds import ScoreClaim
from hubbub.protocol.metrics import regression
from hubbub_coordinator.api.export import TableName, write_table
from hubbub_coordinator.phases import round as rounds
from support.aio import aio
from support.builders import make_manifest
from support.coordinator_scene import MANIFEST, Scene, client_of, scene_of

RUN = f"/api/v1/runs/{MANIFEST.run_id}"
EXPORTS = ("format=json", "format=csv", "format=csv&table=rounds", "format=csv&table=costs")


@asynccontextmanager
async def finished(folder: Path) -> AsyncIterator[tuple[Scene, httpx.AsyncClient]]:
    async with scene_of(folder) as scene, scene.start() as coordinator:
        await scene.open_round()
        await scene.finish()
        async with client_of(coordinator) as client:
            yield scene, client


def read_table(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


@aio
async def test_the_document_is_all_that_the_interface_shows_of_a_run(tmp_path: Path) -> None:
    async with finished(tmp_path) as (_, client):
        answer = await client.get(f"{RUN}/export")
        assert answer.json() == {
            "run": (await client.get(RUN)).json(),
            "rounds": (await client.get(f"{RUN}/rounds")).json()["items"],
            "cost": (await client.get(f"{RUN}/cost")).json(),
        }

    name = f'attachment; filename="hubbub-{MANIFEST.run_id[:12]}.json"'
    assert (answer.headers["content-type"], answer.headers["content-disposition"]) == ("application/json", name)


@aio
async def test_the_tables_have_a_line_of_headings_and_what_the_interface_shows(tmp_path: Path) -> None:
    async with finished(tmp_path) as (_, client):
        tables = {name: await client.get(f"{RUN}/export?format=csv&table={name}") for name in ("rounds", "costs")}
        (shown,) = (await client.get(f"{RUN}/rounds")).json()["items"]

    for name, answer in tables.items():
        assert answer.headers["content-type"] == "text/csv; charset=utf-8"
        assert answer.headers["content-disposition"].endswith(f'-{name}.csv"')
    (row,) = read_table(tables["rounds"].text)
    assert (row["round"], row["state"], row["members"]) == ("1", "released", " ".join(MANIFEST.clients))
    assert not any(name.startswith("metrics.") for name in row), "the run has none"
    assert int(row["fedavg_bits"]) == shown["fedavg_bits"]
    assert int(row["predicted_bits"]) == sum(cost["predicted_bits"] for cost in shown["cost"].values())
    assert tables["costs"].text.splitlines()[0] == "round,counts_as,party,direction,payload_bits,wire_bytes"


def test_every_metric_is_a_column_which_is_empty_for_a_round_that_was_not_scored() -> None:
    manifest = make_manifest(min_clients=2, metrics=tuple(map(MetricClaim.of, regression(0.0, 10.0))))
    claims = (ScoreClaim(name="r2", value=0.5), ScoreClaim(name="mse", value=4.0))
    first = rounds.CoordinatorRound(run=Key("run", manifest.run_id), number=1, manifest=manifest)
    second = replace(first, number=2, is_scored=True, reported=dict.fromkeys(manifest.clients, claims))

    rows = read_table(write_table(TableName.ROUNDS, [(rounds.State.RELEASED, data) for data in (first, second)]))

    assert [(row["metrics.r2"], row["metrics.mse"]) for row in rows] == [("", ""), ("0.5", "4.0")]


@aio
async def test_after_a_restart_the_same_is_exported(tmp_path: Path) -> None:
    async with finished(tmp_path) as (scene, client):
        before = [(await client.get(f"{RUN}/export?{each}")).text for each in EXPORTS]
    async with scene_of(tmp_path) as scene, scene.start() as coordinator, client_of(coordinator) as client:
        after = [(await client.get(f"{RUN}/export?{each}")).text for each in EXPORTS]

    assert after == before


@pytest.mark.parametrize("query", ["format=xml", "format=csv&table=models", "format="])
@aio
async def test_there_is_no_other_format_or_table(tmp_path: Path, query: str) -> None:
    async with finished(tmp_path) as (_, client):
        assert (await client.get(f"{RUN}/export?{query}")).status_code == 422


@pytest.mark.parametrize("reason", ["=1+1", "+1", "-1", "@x", "\t=1", '=HYPERLINK("x")'])
@aio
async def test_a_reason_that_a_spreadsheet_would_calculate_is_text(tmp_path: Path, reason: str) -> None:
    async with finished(tmp_path) as (scene, _):
        ((_, data),) = scene.coordinator.find_rounds(MANIFEST.run_id)

    text = write_table(TableName.ROUNDS, [(rounds.State.VOID, replace(data, reason=reason))])

    (row,) = read_table(text)
    assert row["reason"] == f"'{reason}"
