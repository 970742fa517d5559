"""/healthz, /readyz and /metrics of a party that has no other web interface.

Alive means that the runner still takes events: a party that is not is best started again. Ready means that it is
connected, its queues were found, it receives, the broker takes its messages, and its log is replayed: one that is
not may be so in a moment, and the answer says what is missing. Nothing here is secret, and nobody is asked for a
token: listen where only those can come who may know.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus

from prometheus_client.exposition import choose_encoder
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from hubbub import __version__
from hubbub.runtime import serving
from hubbub.runtime.connections import find_limits
from hubbub.runtime.runner import Runner
from hubbub.runtime.telemetry import WebRefusal

log = logging.getLogger(__name__)

MOST_CONNECTIONS = 64
"""Whoever probes or collects metrics needs one."""


class Vitals:
    """How a party is: what its runner says, once there is one."""

    def __init__(self) -> None:
        self._runner: Runner | None = None

    def watch(self, runner: Runner) -> None:
        """Answer for this runner from now on."""
        self._runner = runner

    @property
    def runner(self) -> Runner | None:
        """Whom the answers are about; None while this party is still getting to the broker."""
        return self._runner

    def count_refusal(self, reason: WebRefusal) -> None:
        """Count a request that was refused; while there is no runner there are no metrics either."""
        if self._runner is not None:
            self._runner.counters.turned_away(reason)

    def find_problems(self) -> tuple[str, ...]:
        """What keeps this party from being ready."""
        if self._runner is None:
            return ("there is no connection to the broker yet",)
        return self._runner.find_problems()


def create_app(vitals: Vitals) -> Starlette:
    """Put the three pages together."""

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
        return Response(encode(vitals.runner.registry), headers={"content-type": media_type})

    return Starlette(
        routes=[Route("/healthz", tell_alive), Route("/readyz", tell_ready), Route("/metrics", tell_metrics)],
        exception_handlers={HTTPException: _pass_on},
    )


async def _pass_on(request: Request, error: Exception) -> Response:
    """Answer in the one form for errors when there is no such page."""
    status = error.status_code if isinstance(error, HTTPException) else HTTPStatus.INTERNAL_SERVER_ERROR
    return problem(request, status, "there are /healthz, /readyz and /metrics here, to GET")


def problem(request: Request, status: int, detail: str) -> Response:
    """Say what is wrong, as RFC 9457 has it."""
    body = {
        "title": HTTPStatus(status).phrase,
        "status": int(status),
        "detail": detail,
        "instance": request.url.path,
    }
    return JSONResponse(body, status, media_type="application/problem+json")


@asynccontextmanager
async def answering(vitals: Vitals, host: str, port: int, variable: str) -> AsyncIterator[None]:
    """Answer at an address for as long as this is open; `variable` is the setting that names the port."""
    listener = serving.listen(host, port, advice=f"set {variable} to a free port, or leave it out")
    app, limits = create_app(vitals), find_limits(MOST_CONNECTIONS)
    async with serving.answering(app, listener, limits=limits, count_refusal=vitals.count_refusal) as address:
        log.info("health and metrics at %s", address)
        yield
