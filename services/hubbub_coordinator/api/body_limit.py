"""How long a request may be: nobody, with a token or without, fills the coordinator's memory."""

from __future__ import annotations

from http import HTTPStatus

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hubbub_coordinator.api.problems import problem

MAX_BODY_BYTES = 4 * 2**20
"""A manifest of a hundred clients takes a small part of this."""

TOO_LONG = f"the request's body is longer than {MAX_BODY_BYTES} bytes"


class BodyLimit:
    """Refuses a body that says it is too long, unread, and stops reading one that turns out to be."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on if its body is not too long."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        declared = Headers(scope=scope).get("content-length", "")
        if declared.isdecimal() and int(declared) > MAX_BODY_BYTES:
            refusal = problem(scope, HTTPStatus.REQUEST_ENTITY_TOO_LARGE, TOO_LONG)
            await refusal(scope, receive, send)
            return
        await self._app(scope, _count(receive), send)


def _count(receive: Receive) -> Receive:
    total = 0

    async def receive_some() -> Message:
        nonlocal total
        message = await receive()
        total += len(message.get("body", b""))
        if total > MAX_BODY_BYTES:
            # This kind passes through whatever reads the body, and is answered as any other problem.
            raise HTTPException(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, TOO_LONG)
        return message

    return receive_some
