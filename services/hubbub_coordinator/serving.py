"""HTTP server of the coordinator's REST API, in its own process or the demo's."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from hubbub.runtime import serving
from hubbub_coordinator.api.access import Tokens
from hubbub_coordinator.api.app import create_app
from hubbub_coordinator.service import Coordinator


@asynccontextmanager
async def answering(coordinator: Coordinator, tokens: Tokens, listener: socket.socket) -> AsyncIterator[str]:
    """Serve the REST API until the context closes; yields the address."""
    app = create_app(coordinator, tokens)
    # `before_end` closes the event streams, whose readers the shutdown would wait for.
    async with serving.answering(
        app,
        listener,
        before_end=coordinator.event_feed.close,
        count_refusal=coordinator.counters.turned_away,
    ) as address:
        yield address
