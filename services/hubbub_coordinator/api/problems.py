"""Error responses of the REST API, as problem details (RFC 9457), and the security headers of every response."""

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
from hubbub.runtime.runner import RunnerStopped
from hubbub.runtime.web_server import RETRY_AFTER_S
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
    """Middleware that adds security headers to every response; headers that a route sets itself are kept.

    They tell a browser to do as little as possible with a response. A page, for example, sets its own policy.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and add the headers to its response."""

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = {name for name, _ in message["headers"]}
                message["headers"] = [*message["headers"], *(each for each in _RAW if each[0] not in own)]
            await send(message)

        await self._app(scope, receive, send_with_headers)


MEDIA_TYPE = "application/problem+json"


class NoPage(ConfigurationError):
    """No such page or file."""


class Busy(LocalError):
    """Too many requests for large views at once."""


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
    # The run went on or ended between the request and its turn.
    UnexpectedEvent: HTTPStatus.CONFLICT,
}
"""HTTP status by the exception that the coordinator raises; the first match counts."""


class Problem(BaseModel):
    """Problem details of RFC 9457."""

    title: str
    status: int
    detail: str
    instance: str


def problem(
    scope: Scope, status: HTTPStatus, detail: str, headers: Mapping[str, str] | None = None
) -> JSONResponse:
    """Return a problem response to a request."""
    # Not the path of `request.url`: that is built with the Host header, which may hold anything.
    content = {"title": status.phrase, "status": status.value, "detail": detail, "instance": scope["path"]}
    return JSONResponse(content, status, headers, media_type=MEDIA_TYPE)


def answer_with_problems(app: FastAPI) -> None:
    """Register exception handlers that answer every error with problem details."""
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
    """Handle a client that disconnects during its request: that is no bug of ours, and must not fill the log."""
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
    """Answer the router's errors, no such path or method, with problem details."""
    if not isinstance(error, HTTPException):
        raise error
    headers = error.headers
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        headers = {**(headers or {}), "Allow": ", ".join(_find_methods(request))}
    return problem(request.scope, HTTPStatus(error.status_code), error.detail, headers)


def _find_methods(request: Request) -> list[str]:
    """Return the methods that all routes of a path allow; the router names only those of the first."""
    routes: list[BaseRoute] = request.app.routes
    return [
        method.value
        for method in HTTPMethod
        if any(route.matches({**request.scope, "method": method.value})[0] is Match.FULL for route in routes)
    ]


async def _break(request: Request, error: Exception) -> JSONResponse:
    """Answer a bug without details; the server logs it. Starlette calls this outside the app's middleware."""
    del error
    detail = "the coordinator failed to answer; its log says why"
    return problem(request.scope, HTTPStatus.INTERNAL_SERVER_ERROR, detail, SECURITY_HEADERS)
