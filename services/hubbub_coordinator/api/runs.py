"""Routes about runs and their rounds."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Header, Path, Query, Request, Response
from pydantic import StringConstraints

from hubbub.ids import RunId
from hubbub.messages.manifest import read_manifest
from hubbub.rest import RoundView, RunView
from hubbub_coordinator.api.dependencies import Absent, Answered, Asked, RunName, RunPath, Turns
from hubbub_coordinator.api.openapi import MANIFEST_BODY, cached, changing
from hubbub_coordinator.api.views import (
    RoundPage,
    RunCost,
    RunDetail,
    RunPage,
    view_costs,
    view_detail,
    view_round,
    view_run,
)
from hubbub_coordinator.archive import KnownRun
from hubbub_coordinator.labels import Label
from hubbub_coordinator.phases import run as runs
from hubbub_coordinator.service import ANY_RUN, Coordinator, UnknownRun

RUNS = "/api/v1/runs"
MOST_ROUNDS = 2**53

router = APIRouter(tags=["runs"])

IdempotencyKey = Annotated[
    Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.:-]{1,64}$")] | Absent,
    Header(
        alias="Idempotency-Key",
        description="Drawn by who submits: a request that is sent again under its key begins no second run.",
    ),
]
SUBMITTING = changing(HTTPStatus.CONFLICT)
REPLAYED = {
    "description": "This very request was made before, and this is its run.",
    "model": RunView,
    "headers": {"Idempotency-Replayed": {"schema": {"type": "string", "enum": ["true"]}}},
}
BEGUN = {
    "description": "The run has begun.",
    "headers": {"Location": {"schema": {"type": "string"}, "description": "Where the run is to be found."}},
}


@router.post(
    RUNS,
    status_code=HTTPStatus.CREATED,
    responses={**SUBMITTING["responses"], HTTPStatus.OK.value: REPLAYED, HTTPStatus.CREATED.value: BEGUN},
    openapi_extra={**SUBMITTING["openapi_extra"], **MANIFEST_BODY},
)
async def submit_run(
    request: Request, response: Response, coordinator: Asked, idempotency_key: IdempotencyKey = None
) -> RunView:
    """Begin a run."""
    # Parsed from the bytes: a manifest is strict about types, and takes JSON's lists but not Python's.
    manifest = read_manifest(await request.body())
    if idempotency_key is None:
        run, again = await coordinator.submit(manifest), False
    else:
        run, again = await coordinator.submit_once(manifest, idempotency_key)
    response.headers["Location"] = f"{RUNS}/{run}"
    if again:
        response.status_code = HTTPStatus.OK
        response.headers["Idempotency-Replayed"] = "true"
    return await _view_run(coordinator, run)


@router.get(RUNS, response_model=RunPage, **cached(HTTPStatus.NOT_FOUND))
async def list_runs(
    coordinator: Asked,
    answer: Answered,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    after: Annotated[RunName | Absent, Query(description="The `next` of the page before.")] = None,
    state: Annotated[list[runs.State] | Absent, Query(description="Only runs in these states.")] = None,
) -> Response:
    """Runs, newest first."""

    async def build() -> RunPage:
        page = coordinator.page_runs(limit=limit, after=after, states=frozenset(state or ()))
        return RunPage(
            items=[await _view_run(coordinator, run) for run in page.runs],
            next=page.runs[-1] if page.more else None,
            total=page.total,
        )

    return await answer(ANY_RUN, build)


@router.get(f"{RUNS}/{{run}}", response_model=RunDetail, **cached(HTTPStatus.NOT_FOUND))
async def read_run(coordinator: Asked, answer: Answered, run: RunPath) -> Response:
    """A run with its manifest and participants."""

    async def build() -> RunDetail:
        known = await coordinator.look(run)
        return await asyncio.to_thread(view_detail, known, coordinator.runner.roster, coordinator.now_s())

    return await answer(run, build)


STEERING = changing(HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT)


@router.post(f"{RUNS}/{{run}}/cancel", **STEERING)
async def cancel_run(coordinator: Asked, run: RunPath) -> RunView:
    """End a run."""
    await coordinator.cancel(run)
    return await _view_run(coordinator, run)


@router.post(f"{RUNS}/{{run}}/pause", **STEERING)
async def pause_run(coordinator: Asked, run: RunPath) -> RunView:
    """Open no further round of a run."""
    await coordinator.pause(run)
    return await _view_run(coordinator, run)


@router.post(f"{RUNS}/{{run}}/resume", **STEERING)
async def resume_run(coordinator: Asked, run: RunPath) -> RunView:
    """Resume a paused run."""
    await coordinator.resume(run)
    return await _view_run(coordinator, run)


@router.put(f"{RUNS}/{{run}}/label", **changing(HTTPStatus.NOT_FOUND))
async def label_run(coordinator: Asked, run: RunPath, label: Label) -> RunView:
    """Give a run a name and a note, in the place of those that it has."""
    await coordinator.put_label(run, label)
    return await _view_run(coordinator, run)


Limit = Annotated[int, Query(ge=1, le=500)]
After = Annotated[int, Query(ge=0, le=MOST_ROUNDS, description="Only rounds after this one.")]
LARGE = cached(HTTPStatus.NOT_FOUND, HTTPStatus.SERVICE_UNAVAILABLE)
FEW_ROUNDS = 5
"""So many that are in memory are viewed at once; more of them, or archived ones, take a turn as a large view."""


@router.get(f"{RUNS}/{{run}}/rounds", response_model=RoundPage, **LARGE)
async def list_rounds(
    coordinator: Asked, answer: Answered, turns: Turns, run: RunPath, *, limit: Limit = 100, after: After = 0
) -> Response:
    """The rounds of a run with their phases, oldest first: who has delivered, who is missing."""

    async def build() -> str:
        known = await coordinator.look(run)

        def write() -> str:
            return RoundPage(
                items=[view_round(*each) for each in known.find_rounds(after=after, limit=limit)],
                next=_find_next(known, after, limit),
                total=known.data.round,
            ).model_dump_json()

        numbers = range(after + 1, min(known.data.round, after + limit) + 1)
        if len(numbers) <= FEW_ROUNDS and known.held.keys() >= set(numbers):
            return write()
        return await turns.build(write)

    return await answer(run, build)


def _find_next(known: KnownRun, after: int, limit: int) -> int | None:
    return after + limit if after + limit < known.data.round else None


@router.get(f"{RUNS}/{{run}}/rounds/{{number}}", response_model=RoundView, **cached(HTTPStatus.NOT_FOUND))
async def read_round(
    coordinator: Asked, answer: Answered, run: RunPath, number: Annotated[int, Path(ge=1, le=MOST_ROUNDS)]
) -> Response:
    """One round."""

    async def build() -> RoundView:
        known = await coordinator.look(run)
        found = await asyncio.to_thread(known.find_round, number)
        if found is None:
            raise UnknownRun(f"run {run} has no round {number}")
        return view_round(*found)

    return await answer(run, build)


@router.get(f"{RUNS}/{{run}}/cost", response_model=RunCost, **LARGE)
async def read_cost(
    coordinator: Asked, answer: Answered, turns: Turns, run: RunPath, *, limit: Limit = 100, after: After = 0
) -> Response:
    """Communication measured and predicted, and what every strategy would have cost: in all, and by round."""

    async def build() -> str:
        known = await coordinator.look(run)

        def write() -> str:
            some = known.find_rounds(after=after, limit=limit)
            return view_costs(known.add_up(), some, _find_next(known, after, limit)).model_dump_json()

        return await turns.build(write)

    return await answer(run, build)


async def _view_run(coordinator: Coordinator, run: RunId) -> RunView:
    known = await coordinator.look(run)
    # An ended run's totals lack its last round only if that was broken off.
    wanted = known.state not in runs.OUTCOMES or known.data.round > known.data.ended
    last = known.data.round if wanted else 0
    found = known.held.get(last) or (await asyncio.to_thread(known.find_round, last) if last else None)
    return view_run(run, known.state, known.data, found, known.label)
