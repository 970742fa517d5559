"""Export of a run: one JSON document, or tables as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from enum import StrEnum
from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Query, Response
from pydantic import BaseModel

from hubbub.rest import RoundView
from hubbub_coordinator.api.dependencies import Asked, RunPath, Turns
from hubbub_coordinator.api.openapi import NOT_MODIFIED, reading
from hubbub_coordinator.api.runs import RUNS
from hubbub_coordinator.api.views import (
    RunCost,
    RunDetail,
    view_costs,
    view_detail,
    view_parties,
    view_round,
)
from hubbub_coordinator.archive import SomeRound

Cell = str | int | float | None

# Spreadsheets take text that begins with these for a formula, and a reason may hold what a party wrote.
FORMULA_SIGNS = ("=", "+", "-", "@", "\t", "\r")


class Format(StrEnum):
    """Format of an export."""

    JSON = "json"
    CSV = "csv"


class TableName(StrEnum):
    """Table of a run that CSV can hold."""

    ROUNDS = "rounds"
    COSTS = "costs"


class RunExport(BaseModel):
    """All that the REST API tells about a run."""

    run: RunDetail
    rounds: list[RoundView]
    cost: RunCost


router = APIRouter(tags=["runs"])
EXPORTED = {
    "description": "The run.",
    "model": RunExport,
    "content": {"text/csv": {"schema": {"type": "string"}}},
    "headers": {"Content-Disposition": {"schema": {"type": "string"}}},
}


@router.get(
    f"{RUNS}/{{run}}/export",
    response_model=RunExport,
    **reading(
        HTTPStatus.NOT_FOUND, HTTPStatus.SERVICE_UNAVAILABLE, also={**NOT_MODIFIED, HTTPStatus.OK.value: EXPORTED}
    ),
)
async def export_run(
    coordinator: Asked,
    turns: Turns,
    run: RunPath,
    format: Annotated[Format, Query()] = Format.JSON,  # noqa: A002  (The parameter's name in the URL.)
    table: Annotated[TableName, Query(description="Of what, as CSV.")] = TableName.ROUNDS,
) -> Response:
    """Export a run."""
    known = await coordinator.look(run)

    def write() -> str:
        all_rounds = known.find_rounds()
        if format is Format.CSV:
            return write_table(table, all_rounds)
        return RunExport(
            run=view_detail(known, coordinator.runner.roster, coordinator.now_s()),
            rounds=[view_round(*each) for each in all_rounds],
            cost=view_costs(known.add_up(), all_rounds),
        ).model_dump_json(by_alias=True)

    name, media_type = f"{run[:12]}.json", "application/json"
    if format is Format.CSV:
        name, media_type = f"{run[:12]}-{table}.csv", "text/csv"
    headers = {"Content-Disposition": f'attachment; filename="hubbub-{name}"'}
    return Response(await turns.build(write), headers=headers, media_type=media_type)


def write_table(table: TableName, all_rounds: Sequence[SomeRound]) -> str:
    """Return one table of a run as CSV, with a header line."""
    text = io.StringIO()
    writer = csv.writer(text)
    rows = _list_rounds(all_rounds) if table is TableName.ROUNDS else _list_costs(all_rounds)
    for row in rows:
        writer.writerow(
            f"'{cell}" if isinstance(cell, str) and cell.startswith(FORMULA_SIGNS) else cell for cell in row
        )
    return text.getvalue()


ROUND_COLUMNS = (
    *("round", "state", "reason", "began_at_s", "ended_at_s", "members", "union_size"),
    *("payload_bits", "predicted_bits", "wire_bytes", "fedavg_bits"),
    *("all_wire_bytes", "fedavg_wire_bytes"),
)


def _list_rounds(all_rounds: Sequence[SomeRound]) -> Iterable[Sequence[Cell]]:
    """Return a row for each round; each metric is a column of its own after the others."""
    names = list(dict.fromkeys(metric.name for _, data in all_rounds for metric in data.manifest.metrics))
    yield (*ROUND_COLUMNS, *(f"metrics.{name}" for name in names))
    for each in all_rounds:
        view = view_round(*each)
        costs = view.cost.values()
        yield (
            *(view.round, view.state, view.reason, view.began_at_s, view.ended_at_s),
            *(" ".join(view.members), view.union_size),
            *(sum(cost.payload_bits for cost in costs), sum(cost.predicted_bits for cost in costs)),
            *(sum(cost.wire_bytes for cost in costs), view.fedavg_bits),
            *(view.all_wire_bytes, view.fedavg_wire_bytes),
            *(view.metrics.get(name) for name in names),
        )


COST_COLUMNS = ("round", "counts_as", "party", "direction", "payload_bits", "wire_bytes")


def _list_costs(all_rounds: Sequence[SomeRound]) -> Iterable[Sequence[Cell]]:
    yield COST_COLUMNS
    for row in view_parties(all_rounds):
        yield (row.round, row.counts_as, row.party, row.direction, row.payload_bits, row.wire_bytes)
