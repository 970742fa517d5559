"""The coordinator's interface, put together: routes, the gate before them, and one form for all problems."""

from __future__ import annotations

from fastapi import FastAPI

from hubbub import __version__
from hubbub_coordinator.api import events, export, pages, runs, system
from hubbub_coordinator.api.access import DESCRIPTION_PATH, Gate, Tokens
from hubbub_coordinator.api.body_limit import BodyLimit
from hubbub_coordinator.api.describing import describe_interface
from hubbub_coordinator.api.headers import SecurityHeaders
from hubbub_coordinator.api.problems import answer_with_problems
from hubbub_coordinator.api.remembering import Remembering
from hubbub_coordinator.api.round_views import RoundViews
from hubbub_coordinator.api.stream import Streams
from hubbub_coordinator.service import Coordinator

DESCRIPTION = (
    "Start runs, follow and steer them, and read what they cost. Every path under /api, and /metrics, needs the"
    " header `Authorization: Bearer TOKEN`: the read token or the change token to read, the change token for all"
    " else."
    " Times are seconds since 1970. What goes wrong is told as problem details (RFC 9457)."
)


def create_app(coordinator: Coordinator, tokens: Tokens) -> FastAPI:
    """Build the interface of one coordinator, open to who has a token."""
    app = FastAPI(
        title="Hubbub coordinator",
        description=DESCRIPTION,
        version=__version__,
        openapi_url=DESCRIPTION_PATH,
        docs_url=None,
        generate_unique_id_function=lambda route: route.name,
        redoc_url=None,
        # Our metrics are our own; nothing of a request goes to whatever else is set up in this process.
        telemetry={"tracing": False, "metrics": False, "logs": False},
    )
    app.state.coordinator = coordinator
    app.state.streams = Streams(coordinator.news)
    app.state.round_views = RoundViews()
    app.state.assets = pages.find_assets()
    for part in (runs, export, events, system, pages):
        app.include_router(part.router)
    describe_interface(app)
    answer_with_problems(app)
    # The last one is the outermost: headers on every answer, and no body is looked at before the token.
    app.add_middleware(BodyLimit)
    app.add_middleware(Remembering, coordinator=coordinator)
    app.add_middleware(Gate, tokens=tokens)
    app.add_middleware(SecurityHeaders)
    return app
