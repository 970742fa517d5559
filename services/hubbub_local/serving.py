"""Dashboard of a federation in this process: the coordinator's own page, behind throw-away tokens."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import sys
import webbrowser
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from socket import socket

from hubbub.disk import create_file
from hubbub.runtime.web_server import listen
from hubbub_coordinator.api.access import Tokens
from hubbub_coordinator.api.app import answering
from hubbub_coordinator.service import Coordinator

HOST = "127.0.0.1"
"""Local only, even though there are tokens: other machines have no business here."""
TOKEN_BYTES = 32
TOKEN_FILE, PAGE_FILE = "change.token", "dashboard.html"
PRIVATE = 0o600
PAGE = """<!doctype html>
<meta charset="utf-8">
<meta name="referrer" content="no-referrer">
<meta http-equiv="refresh" content="0; url={link}">
<title>Hubbub</title>
<a href="{link}">Dashboard</a>
"""


@dataclass(frozen=True, slots=True)
class Dashboard:
    """URL and tokens of a dashboard."""

    url: str
    tokens: Tokens = field(repr=False)

    @property
    def link(self) -> str:
        """Address with the change token in its fragment, which a browser sends to nobody."""
        return f"{self.url}/#token={self.tokens.change}"

    def write_token(self, folder: Path) -> Path:
        """Write the change token to a private file, for `hubbub run --token-file`, and return its path."""
        path = folder / TOKEN_FILE
        create_file(path, f"{self.tokens.change}\n".encode(), PRIVATE)
        return path

    async def open_browser(self, folder: Path) -> bool:
        """Open the page in a browser, and return whether one was found.

        The browser is given a private file that leads there: all users of a machine see a program's arguments.
        """
        has_display = any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")))
        if sys.platform == "linux" and not has_display:
            return False  # One that runs in the terminal would take it over.
        path = folder / PAGE_FILE
        create_file(path, PAGE.format(link=self.link).encode(), PRIVATE)
        return await asyncio.to_thread(webbrowser.open, path.as_uri())


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
