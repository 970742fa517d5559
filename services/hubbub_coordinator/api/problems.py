"""The headers that tell a browser to do as little as possible with what the interface answers.

How the interface says that something went wrong: problem details in the form of RFC 9457.
"""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPMethod, HTTPStatus
from types import MappingProxyType

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hubbub.errors import ConfigurationError, LocalError, StorageFailed, TransportError, UnexpectedEvent
from hubbub.runtime.connections import RETRY_AFTER_S
from hubbub.runtime.runner import RunnerStopped
from hubbub_coordinator.service import RunExists, RunOver, UnknownRun

SECURITY_HEADERS: Mapping[str, str] = MappingProxyType(
    {
        "Content-Security-Policy": (
            "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
        ),
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Cache-Control": "no-store",
        "Permissions-Policy": "camera=(), display-capture=(), geolocation=(), microphone=(), payment=(), usb=()",
    }
)


_RAW = [(name.lower().encode(), value.encode()) for name, value in SECURITY_HEADERS.items()]


class SecurityHeaders:
    """Puts them on every answer; a route that sets one itself, as a page does with its policy, keeps its own."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and add to its answer."""

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = {name for name, _ in message["headers"]}
                message["headers"] = [*message["headers"], *(each for each in _RAW if each[0] not in own)]
            await send(message)

        await self._app(scope, receive, send_with_headers)


MEDIA_TYPE = "application/problem+json"


class NoPage(ConfigurationError):
    """There is no such page or file."""


class Busy(LocalError):
    """Too much is asked for at once."""


STATUS: dict[type[Exception], HTTPStatus] = {
    RunExists: HTTPStatus.CONFLICT,
    RunOver: HTTPStatus.CONFLICT,
    UnknownRun: HTTPStatus.NOT_FOUND,
    NoPage: HTTPStatus.NOT_FOUND,
    ConfigurationError: HTTPStatus.UNPROCESSABLE_ENTITY,
    TransportError: HTTPStatus.SERVICE_UNAVAILABLE,
    StorageFailed: HTTPStatus.SERVICE_UNAVAILABLE,
    RunnerStopped: HTTPStatus.SERVICE_UNAVAILABLE,
    Busy: HTTPStatus.SERVICE_UNAVAILABLE,
    # The run went on, or came to its end, between the question and its turn.
    UnexpectedEvent: HTTPStatus.CONFLICT,
}
"""What is answered to what the coordinator raises: of several that fit, the first."""


class Problem(BaseModel):
    """What was wrong with a request, in the form of RFC 9457."""

    title: str
    status: int
    detail: str
    instance: str


def problem(
    scope: Scope, status: HTTPStatus, detail: str, headers: Mapping[str, str] | None = None
) -> JSONResponse:
    """Answer a request with what was wrong with it."""
    # Not the path of the request's URL: that is put together with the Host header, which may hold anything.
    content = {"title": status.phrase, "status": status.value, "detail": detail, "instance": scope["path"]}
    return JSONResponse(content, status, headers, media_type=MEDIA_TYPE)


def answer_with_problems(app: FastAPI) -> None:
    """Have everything that goes wrong answered in one form."""
    for kind in STATUS:
        app.add_exception_handler(kind, _refuse)
    app.add_exception_handler(RequestValidationError, _complain)
    app.add_exception_handler(HTTPException, _pass_on)
    app.add_exception_handler(ClientDisconnect, _let_go)
    app.add_exception_handler(Exception, _break)


async def _refuse(request: Request, error: Exception) -> JSONResponse:
    status = next(status for kind, status in STATUS.items() if isinstance(error, kind))
    again = {"Retry-After": str(RETRY_AFTER_S)} if status is HTTPStatus.SERVICE_UNAVAILABLE else None
    return problem(request.scope, status, str(error), again)


async def _let_go(request: Request, error: Exception) -> JSONResponse:
    """Answer nobody: who hangs up in the middle of a request is no bug of ours, and must not fill the log."""
    del error
    return problem(request.scope, HTTPStatus.BAD_REQUEST, "the request ended before its body did")


async def _complain(request: Request, error: Exception) -> JSONResponse:
    complaints = error.errors() if isinstance(error, RequestValidationError) else []
    detail = "; ".join(
        f"{'.'.join(str(part) for part in item['loc'][1:]) or item['loc'][0]}: {item['msg']}"
        for item in complaints
    )
    return problem(request.scope, HTTPStatus.UNPROCESSABLE_ENTITY, detail)


async def _pass_on(request: Request, error: Exception) -> JSONResponse:
    """Say in our form what the router says: no such path, no such method."""
    if not isinstance(error, HTTPException):
        raise error
    headers = error.headers
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        headers = {**(headers or {}), "Allow": ", ".join(_find_methods(request))}
    return problem(request.scope, HTTPStatus(error.status_code), error.detail, headers)


def _find_methods(request: Request) -> list[str]:
    """What may be done at a path, by all of its routes; the router names those of the first alone."""
    routes: list[BaseRoute] = request.app.routes
    return [
        method.value
        for method in HTTPMethod
        if any(route.matches({**request.scope, "method": method.value})[0] is Match.FULL for route in routes)
    ]


async def _break(request: Request, error: Exception) -> JSONResponse:
    """Tell nothing of a bug but that there is one; the server logs it. This answer is made outside all else."""
    del error
    detail = "the coordinator failed to answer; its log says why"
    return problem(request.scope, HTTPStatus.INTERNAL_SERVER_ERROR, detail, SECURITY_HEADERS)
