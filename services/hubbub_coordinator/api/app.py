"""The coordinator's REST API, assembled: routes, middleware, error handlers and the server."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from starlette.types import ASGIApp

from hubbub import __version__
from hubbub.runtime import web_server
from hubbub.runtime.telemetry import WebRefusal
from hubbub_coordinator.api import events, export, pages, plans, runs, system
from hubbub_coordinator.api.access import DESCRIPTION_PATH, BodyLimit, Gate, Tokens
from hubbub_coordinator.api.dependencies import Heavy, ResponseCache
from hubbub_coordinator.api.events import Streams
from hubbub_coordinator.api.openapi import DescribedApp
from hubbub_coordinator.api.problems import SecurityHeaders, answer_with_problems
from hubbub_coordinator.service import Coordinator

DESCRIPTION = (
    "Start runs, follow and steer them, and read what they cost. Every path under /api, and /metrics, needs the"
    " header `Authorization: Bearer TOKEN`: the read token or the change token to read, the change token for all"
    " else."
    " Times are seconds since 1970. What goes wrong is told as problem details (RFC 9457)."
)


@asynccontextmanager
async def answering(coordinator: Coordinator, tokens: Tokens, listener: socket.socket) -> AsyncIterator[str]:
    """Serve the REST API until the context closes; yields the address."""
    # `before_end` closes the event streams, whose readers the shutdown would wait for.
    async with web_server.answering(
        create_app(coordinator, tokens),
        listener,
        before_end=coordinator.event_feed.close,
        count_refusal=coordinator.counters.turned_away,
    ) as address:
        yield address


def create_app(coordinator: Coordinator, tokens: Tokens) -> ASGIApp:
    """Build the interface of one coordinator, open to who has a token."""
    return guard(create_routes(coordinator), tokens)


def guard(routes: ASGIApp, tokens: Tokens) -> ASGIApp:
    """Put all before the routes that every request passes: headers on any answer, and nothing before the token."""
    return SecurityHeaders(Gate(routes, tokens))


def create_routes(coordinator: Coordinator) -> FastAPI:
    """Build the application behind the gate."""
    app = DescribedApp(
        title="Hubbub coordinator",
        description=DESCRIPTION,
        version=__version__,
        openapi_url=DESCRIPTION_PATH,
        docs_url=None,
        generate_unique_id_function=lambda route: route.name,
        redoc_url=None,
        # We have our own metrics; no request data goes to other telemetry that this process may have.
        telemetry={"tracing": False, "metrics": False, "logs": False},
    )
    app.state.coordinator = coordinator
    app.state.streams = Streams(coordinator.event_feed)
    app.state.heavy = Heavy(lambda: coordinator.counters.turned_away(WebRefusal.BUSY))
    app.state.cache = ResponseCache(coordinator)
    app.state.assets = pages.find_assets()
    for part in (runs, plans, export, events, system, pages):
        app.include_router(part.router)
    answer_with_problems(app)
    app.add_middleware(BodyLimit)
    return app
