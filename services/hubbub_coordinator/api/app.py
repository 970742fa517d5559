"""The coordinator's REST interface, enough to start a run and follow it."""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated

from fastapi import FastAPI, Path, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from hubbub import __version__
from hubbub.errors import ConfigurationError, TransportError
from hubbub.ids import RUN_ID_PATTERN, RunId
from hubbub.messages.manifest import read_manifest
from hubbub_coordinator.api.views import (
    RoundView,
    RunCost,
    RunDetail,
    RunView,
    view_detail,
    view_round,
    view_run,
    view_run_cost,
)
from hubbub_coordinator.service import Coordinator, RunExists, RunOver, UnknownRun

RunPath = Annotated[RunId, Path(pattern=RUN_ID_PATTERN)]
STATUS: dict[type[Exception], HTTPStatus] = {
    RunExists: HTTPStatus.CONFLICT,
    RunOver: HTTPStatus.CONFLICT,
    UnknownRun: HTTPStatus.NOT_FOUND,
    TransportError: HTTPStatus.SERVICE_UNAVAILABLE,
}
# Read from the bytes: a manifest is strict about types, and knows JSON's lists but not Python's.
MANIFEST_BODY = {
    "requestBody": {
        "required": True,
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Manifest"}}},
    }
}


def create_app(coordinator: Coordinator) -> FastAPI:  # noqa: C901  (One small function for each route.)
    """Build the interface of one coordinator."""
    app = FastAPI(title="Hubbub coordinator", version=__version__, docs_url=None, redoc_url=None)

    @app.post("/api/v1/runs", status_code=HTTPStatus.CREATED, openapi_extra=MANIFEST_BODY)
    async def submit_run(request: Request) -> RunView:
        """Begin a run."""
        run = await coordinator.submit(read_manifest(await request.body()))
        state, data = coordinator.find_run(run)
        return view_run(state, data, [])

    @app.get("/api/v1/runs")
    async def list_runs() -> list[RunView]:
        """All runs, oldest first."""
        return [
            view_run(*coordinator.find_run(run), coordinator.find_rounds(run)) for run in coordinator.list_runs()
        ]

    @app.get("/api/v1/runs/{run}")
    async def read_run(run: RunPath) -> RunDetail:
        """A run with its manifest and participants."""
        return view_detail(*coordinator.find_run(run), coordinator.find_rounds(run))

    @app.post("/api/v1/runs/{run}/cancel")
    async def cancel_run(run: RunPath) -> RunView:
        """End a run."""
        await coordinator.cancel(run)
        return view_run(*coordinator.find_run(run), coordinator.find_rounds(run))

    @app.get("/api/v1/runs/{run}/rounds")
    async def list_rounds(run: RunPath) -> list[RoundView]:
        """The rounds of a run with their phases: who has delivered, who is missing."""
        return [view_round(state, data) for state, data in coordinator.find_rounds(run)]

    @app.get("/api/v1/runs/{run}/rounds/{number}")
    async def read_round(run: RunPath, number: int) -> RoundView:
        """One round."""
        for state, data in coordinator.find_rounds(run):
            if data.number == number:
                return view_round(state, data)
        raise UnknownRun(f"run {run} has no round {number}")

    @app.get("/api/v1/runs/{run}/cost")
    async def read_cost(run: RunPath) -> RunCost:
        """Communication measured and predicted."""
        return view_run_cost(coordinator.find_rounds(run))

    @app.get("/healthz")
    async def health() -> dict[str, str]:
        """The process is there."""
        return {"status": "ok", "version": __version__}

    @app.get("/metrics")
    async def metrics() -> Response:
        """Counters for Prometheus."""
        return Response(generate_latest(coordinator.counters.registry), media_type=CONTENT_TYPE_LATEST)

    app.add_exception_handler(ConfigurationError, _refuse)
    app.add_exception_handler(TransportError, _refuse)
    app.add_exception_handler(RequestValidationError, _complain)
    return app


async def _refuse(request: Request, error: Exception) -> JSONResponse:
    status = STATUS.get(type(error), HTTPStatus.UNPROCESSABLE_ENTITY)
    return _problem(request, status, str(error))


async def _complain(request: Request, error: Exception) -> JSONResponse:
    complaints = error.errors() if isinstance(error, RequestValidationError) else []
    detail = "; ".join(
        f"{'.'.join(str(part) for part in item['loc'][1:]) or item['loc'][0]}: {item['msg']}"
        for item in complaints
    )
    return _problem(request, HTTPStatus.UNPROCESSABLE_ENTITY, detail)


def _problem(request: Request, status: HTTPStatus, detail: str) -> JSONResponse:
    """Problem details in the form of RFC 9457."""
    content = {"title": status.phrase, "status": status.value, "detail": detail, "instance": request.url.path}
    return JSONResponse(content, status, media_type="application/problem+json")
