"""Export of a run: the same as the interface shows, whole, and harmless to a spreadsheet."""

import csv
import io
from dataclasses import replace
from pathlib import Path

from hubbub.messages.rounds import ScoreClaim
from hubbub_coordinator.api.export import TableName, write_table
from hubbub_coordinator.phases import round as rounds
from support.builders import make_manifest
from support.coordinator_play import REGRESSED, make_round
from support.coordinator_scene import MANIFEST, client_of, running_scene

RUN = f"/api/v1/runs/{MANIFEST.run_id}"
SCORED = make_manifest(min_clients=2, metrics=REGRESSED)
EMPTY = make_round(SCORED)


def read_table(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


async def test_the_document_and_the_tables_are_all_that_the_interface_shows_of_a_run(tmp_path: Path) -> None:
    async with running_scene(tmp_path) as scene, client_of(scene.coordinator) as client:
        await scene.open_round()
        await scene.finish()
        answer = await client.get(f"{RUN}/export")
        tables = {name: await client.get(f"{RUN}/export?format=csv&table={name}") for name in ("rounds", "costs")}
        shown = {
            "run": (await client.get(RUN)).json(),
            "rounds": (await client.get(f"{RUN}/rounds")).json()["items"],
            "cost": (await client.get(f"{RUN}/cost")).json(),
        }
        for query in ("format=xml", "format=csv&table=models", "format="):
            assert (await client.get(f"{RUN}/export?{query}")).status_code == 422

    assert answer.json() == shown
    name = f'attachment; filename="hubbub-{MANIFEST.run_id[:12]}.json"'
    assert (answer.headers["content-type"], answer.headers["content-disposition"]) == ("application/json", name)
    for name, table in tables.items():
        assert table.headers["content-type"] == "text/csv; charset=utf-8"
        assert table.headers["content-disposition"].endswith(f'-{name}.csv"')
    (row,), (of_round,) = read_table(tables["rounds"].text), shown["rounds"]
    assert (row["round"], row["state"], row["members"]) == ("1", "released", " ".join(MANIFEST.clients))
    assert not any(name.startswith("metrics.") for name in row), "the run has none"
    for name in ("all_wire_bytes", "fedavg_bits", "fedavg_wire_bytes"):
        assert int(row[name]) == of_round[name]
    assert int(row["predicted_bits"]) == sum(cost["predicted_bits"] for cost in of_round["cost"].values())
    assert tables["costs"].text.splitlines()[0] == "round,counts_as,party,direction,payload_bits,wire_bytes"


def test_every_metric_is_a_column_which_is_empty_for_a_round_that_was_not_scored() -> None:
    claims = (ScoreClaim(name="r2", value=0.5), ScoreClaim(name="mse", value=4.0))
    second = replace(EMPTY, number=2, is_scored=True, reported=dict.fromkeys(SCORED.clients, claims))

    rows = read_table(write_table(TableName.ROUNDS, [(rounds.State.RELEASED, data) for data in (EMPTY, second)]))

    assert [(row["metrics.r2"], row["metrics.mse"]) for row in rows] == [("", ""), ("0.5", "4.0")]


def test_a_reason_that_a_spreadsheet_would_calculate_is_text() -> None:
    for reason in ("=1+1", "+1", "-1", "@x", "\t=1", '=HYPERLINK("x")'):
        (row,) = read_table(write_table(TableName.ROUNDS, [(rounds.State.VOID, replace(EMPTY, reason=reason))]))
        assert row["reason"] == f"'{reason}"
