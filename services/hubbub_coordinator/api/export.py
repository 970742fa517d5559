"""Export of a run: one JSON document, or tables as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from enum import StrEnum
from functools import partial
from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Query, Response
from pydantic import BaseModel

from hubbub.rest import RoundView
from hubbub_coordinator.api.costs import RunCost, view_costs, view_parties
from hubbub_coordinator.api.dependencies import Asked, RunPath, Turns
from hubbub_coordinator.api.runs import LARGE, RUNS, show_detail
from hubbub_coordinator.api.views import RunDetail, view_round
from hubbub_coordinator.archive import KnownRun, SomeRound
from hubbub_coordinator.service import Coordinator

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
DISPOSITION = {"Content-Disposition": {"schema": {"type": "string"}}}
EXPORTED = {
    "description": "The run.",
    "model": RunExport,
    "content": {"text/csv": {"schema": {"type": "string"}}},
    "headers": DISPOSITION,
}


@router.get(
    f"{RUNS}/{{run}}/export",
    response_model=RunExport,
    responses={**LARGE["responses"], HTTPStatus.OK.value: EXPORTED},
    openapi_extra=LARGE["openapi_extra"],
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
    if format is Format.CSV:
        write, name = partial(_write_table_of, known, table), f"{run[:12]}-{table}.csv"
    else:
        write, name = partial(_write_document, coordinator, known), f"{run[:12]}.json"
    content = await turns.build(write)
    headers = {"Content-Disposition": f'attachment; filename="hubbub-{name}"'}
    media_type = "text/csv" if format is Format.CSV else "application/json"
    return Response(content, headers=headers, media_type=media_type)


def _write_document(coordinator: Coordinator, known: KnownRun) -> str:
    all_rounds = known.find_rounds()
    return RunExport(
        run=show_detail(coordinator, known),
        rounds=[view_round(*each) for each in all_rounds],
        cost=view_costs(known.add_up(), all_rounds),
    ).model_dump_json(by_alias=True)


def _write_table_of(known: KnownRun, table: TableName) -> str:
    return write_table(table, known.find_rounds())


def write_table(table: TableName, all_rounds: Sequence[SomeRound]) -> str:
    """Return one table of a run as CSV, with a header line."""
    text = io.StringIO()
    writer = csv.writer(text)
    rows = _list_rounds(all_rounds) if table is TableName.ROUNDS else _list_costs(all_rounds)
    for row in rows:
        writer.writerow([_tame(cell) for cell in row])
    return text.getvalue()


def _tame(cell: Cell) -> Cell:
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(FORMULA_SIGNS) else cell


ROUND_COLUMNS = (
    *("round", "state", "reason", "began_at_s", "ended_at_s", "members", "union_size"),
    *("payload_bits", "predicted_bits", "wire_bytes", "fedavg_bits"),
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
            *(view.metrics.get(name) for name in names),
        )


COST_COLUMNS = ("round", "counts_as", "party", "direction", "payload_bits", "wire_bytes")


def _list_costs(all_rounds: Sequence[SomeRound]) -> Iterable[Sequence[Cell]]:
    yield COST_COLUMNS
    for row in view_parties(all_rounds):
        yield (row.round, row.counts_as, row.party, row.direction, row.payload_bits, row.wire_bytes)
