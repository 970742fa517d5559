"""Health and metrics endpoints of a party without a web interface: /healthz, /readyz and /metrics.

Alive means that the runner still takes events; a party that is not alive should be restarted. Ready means that the
party is connected, its queues were found, it receives, the broker takes its messages, and its log is replayed. A
party that is not ready may be so in a moment, and the answer says what is missing. Nothing here is secret and no
token is asked for: listen on an address that only those can reach who may read it.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus

from prometheus_client.exposition import choose_encoder
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from hubbub import __version__
from hubbub.runtime import web_server
from hubbub.runtime.runner import Runner
from hubbub.runtime.telemetry import WebRefusal

log = logging.getLogger(__name__)

MOST_CONNECTIONS = 64
"""A probe or a metrics collector needs one."""


@dataclass(slots=True)
class Vitals:
    """Health of a party, as its runner reports it once there is one."""

    runner: Runner | None = None
    """None while this party is still connecting to the broker."""

    def count_refusal(self, reason: WebRefusal) -> None:
        """Count a request that was refused; while there is no runner there are no metrics either."""
        if self.runner is not None:
            self.runner.counters.turned_away(reason)

    def find_problems(self) -> tuple[str, ...]:
        """Return the reasons why this party is not ready."""
        return self.runner.find_problems() if self.runner else ("there is no connection to the broker yet",)


def create_app(vitals: Vitals) -> Starlette:
    """Return the app with the three endpoints."""

    async def tell_alive(request: Request) -> Response:
        stall = vitals.runner.find_stall() if vitals.runner else ""
        if stall:
            return problem(request, HTTPStatus.SERVICE_UNAVAILABLE, stall)
        return JSONResponse({"status": "ok", "version": __version__})

    async def tell_ready(request: Request) -> Response:
        problems = vitals.find_problems()
        if problems:
            return problem(request, HTTPStatus.SERVICE_UNAVAILABLE, "; ".join(problems))
        return JSONResponse({"status": "ready"})

    async def tell_metrics(request: Request) -> Response:
        if vitals.runner is None:
            return problem(request, HTTPStatus.SERVICE_UNAVAILABLE, "; ".join(vitals.find_problems()))
        encode, media_type = choose_encoder(request.headers.get("accept", ""))
        # Not through `media_type`, to which Starlette would add a second charset.
        return Response(encode(vitals.runner.counters.registry), headers={"content-type": media_type})

    return Starlette(
        routes=[Route("/healthz", tell_alive), Route("/readyz", tell_ready), Route("/metrics", tell_metrics)],
        exception_handlers={HTTPException: _pass_on},
    )


async def _pass_on(request: Request, error: Exception) -> Response:
    """Answer with problem details when there is no such page."""
    status = error.status_code if isinstance(error, HTTPException) else HTTPStatus.INTERNAL_SERVER_ERROR
    return problem(request, status, "there are /healthz, /readyz and /metrics here, to GET")


def problem(request: Request, status: int, detail: str) -> Response:
    """Return a response with problem details (RFC 9457)."""
    body = {
        "title": HTTPStatus(status).phrase,
        "status": int(status),
        "detail": detail,
        "instance": request.url.path,
    }
    return JSONResponse(body, status, media_type="application/problem+json")


@asynccontextmanager
async def answering(vitals: Vitals, host: str, port: int, variable: str) -> AsyncIterator[None]:
    """Serve the endpoints while this is open; `variable` is the setting that names the port."""
    listener = web_server.listen(host, port, advice=f"set {variable} to a free port, or leave it out")
    app, limits = create_app(vitals), web_server.find_limits(MOST_CONNECTIONS)
    async with web_server.answering(app, listener, limits=limits, count_refusal=vitals.count_refusal) as address:
        log.info("health and metrics at %s", address)
        yield
