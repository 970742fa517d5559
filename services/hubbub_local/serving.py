"""Dashboard of a federation in this process: the coordinator's own page, behind throw-away tokens."""

from __future__ import annotations

import asyncio
import secrets
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from socket import socket

from hubbub.runtime.web_server import listen
from hubbub_coordinator.api.access import Tokens
from hubbub_coordinator.api.app import answering
from hubbub_coordinator.service import Coordinator

HOST = "127.0.0.1"
"""Local only, even though there are tokens: other machines have no business here."""
TOKEN_BYTES = 32


@dataclass(frozen=True, slots=True)
class Dashboard:
    """URL and tokens of a dashboard."""

    url: str
    tokens: Tokens = field(repr=False)


def reserve_port(port: int) -> socket:
    """Bind a port before anything begins; 0 is any free one."""
    return listen(HOST, port, advice="choose another with --port, or --port 0 for any free one")


@asynccontextmanager
async def open_dashboard(coordinator: Coordinator, listener: socket) -> AsyncIterator[Dashboard]:
    """Serve the coordinator's page until the context closes."""
    tokens = Tokens(read=secrets.token_urlsafe(TOKEN_BYTES), change=secrets.token_urlsafe(TOKEN_BYTES))
    async with answering(coordinator, tokens, listener) as url:
        yield Dashboard(url, tokens)


async def wait_for_interrupt() -> None:
    """Return on Ctrl-C, which is no failure here."""
    enough = asyncio.Event()
    loop = asyncio.get_running_loop()
    signals = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.getsignal(number) for number in signals}
    for number in signals:
        loop.add_signal_handler(number, enough.set)
    try:
        await enough.wait()
    finally:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)
