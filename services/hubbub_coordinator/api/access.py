"""Access control of the REST API: a gate with one bearer token for reading and one for changing, and a body limit.

The limit holds for requests with a token too: nobody may fill the coordinator's memory.
"""

from __future__ import annotations

import hmac
import logging
import os
import re
from dataclasses import dataclass, field
from enum import Enum
from hashlib import sha256
from http import HTTPStatus
from pathlib import Path

from starlette.datastructures import Headers, QueryParams
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocketClose

from hubbub.disk import is_open_to_others
from hubbub.errors import ConfigurationError
from hubbub.runtime.web_server import Tally
from hubbub_coordinator.api.problems import problem

log = logging.getLogger(__name__)

MAX_BODY_BYTES = 4 * 2**20
"""A manifest of a hundred clients takes a small part of this."""

TOO_LONG = f"the request's body is longer than {MAX_BODY_BYTES} bytes"

HEALTH_PATH = "/healthz"
READY_PATH = "/readyz"
PAGE_PATH = "/"
DOCS_PATH = "/docs"
DESCRIPTION_PATH = "/openapi.json"
ICON_PATH = "/favicon.ico"
OPEN_PATHS = frozenset({HEALTH_PATH, READY_PATH, PAGE_PATH, DOCS_PATH, DESCRIPTION_PATH, ICON_PATH})
"""Paths that are read without a token. They hold nothing of a run; a page asks its reader for a token."""
ASSETS_FOLDER = "/assets/"
"""The pages' files, which are the same for everybody, need no token either."""

MIN_TOKEN_LENGTH = 32
# RFC 6750, section 2.1: what may follow "Bearer" in the header.
TOKEN_PATTERN = re.compile(r"[A-Za-z0-9._~+/-]+=*")
HOW_TO_MAKE_ONE = "make one with `hubbub keys tokens`"

READING_METHODS = frozenset({"GET", "HEAD"})
URL_PARAMETERS = frozenset({"token", "access_token", "bearer_token", "api_key", "authorization", "bearer"})
"""Query parameters that may hold a token, which every log on the way would keep."""
_SUSPICIOUS = re.compile(rb"token|key|auth|bearer|%", re.IGNORECASE)
"""Quick test: a query without any of these has none of the names; "%" may encode the others."""


class BodyLimit:
    """Middleware that refuses a body whose declared length is too long, and stops reading one that is longer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it if its body is too long."""
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
            # Code that reads a body lets an HTTPException pass, and it is answered like any other problem.
            raise HTTPException(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, TOO_LONG)
        return message

    return receive_some


class Right(Enum):
    """Right that a token grants."""

    READ = "read"
    CHANGE = "change"
    """Includes reading."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """The two tokens of a coordinator; the read token cannot change anything."""

    read: str = field(repr=False)
    change: str = field(repr=False)
    _digests: tuple[bytes, bytes] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        for right, token in ((Right.READ, self.read), (Right.CHANGE, self.change)):
            if len(token) < MIN_TOKEN_LENGTH:
                raise ConfigurationError(
                    f"the {right.value} token is shorter than {MIN_TOKEN_LENGTH} characters; {HOW_TO_MAKE_ONE}"
                )
            if not TOKEN_PATTERN.fullmatch(token):
                raise ConfigurationError(
                    f"the {right.value} token has characters that cannot be in a header; {HOW_TO_MAKE_ONE}"
                )
        if self.read == self.change:
            raise ConfigurationError(
                f"the read token and the change token are the same; they must differ: {HOW_TO_MAKE_ONE}"
            )
        object.__setattr__(self, "_digests", (_digest(self.read), _digest(self.change)))

    def recognise(self, offered: str) -> Right | None:
        """Return the right of a token, in a time that tells nothing about the real tokens or their length."""
        digest = _digest(offered)
        may_read, may_change = (hmac.compare_digest(digest, each) for each in self._digests)
        if may_change:
            return Right.CHANGE
        return Right.READ if may_read else None


def _digest(token: str) -> bytes:
    return sha256(token.encode()).digest()


def read_tokens(read_file: Path, change_file: Path) -> Tokens:
    """Read each token from its file, which only its owner may read."""
    return Tokens(read=_read_token(read_file), change=_read_token(change_file))


def _read_token(path: Path) -> str:
    try:
        # Bytes that are not ASCII are replaced, and then refused like any other invalid character.
        with path.open(encoding="ascii", errors="replace") as file:
            if is_open_to_others(os.fstat(file.fileno())):
                raise ConfigurationError(f"{path} holds a token and is open to other users; chmod 600 {path}")
            return file.read().removesuffix("\n")
    except OSError as error:
        raise ConfigurationError(
            f"{path} should hold a token and cannot be read ({error.strerror}); {HOW_TO_MAKE_ONE}"
        ) from None


@dataclass(frozen=True, slots=True)
class Refusal:
    """Reason to refuse a request; `code` is RFC 6750's error code, if there is one."""

    status: HTTPStatus
    detail: str
    code: str = ""

    @property
    def challenge(self) -> str:
        """Value of the WWW-Authenticate header."""
        return 'Bearer realm="hubbub"' + (f', error="{self.code}"' if self.code else "")


NO_TOKEN = Refusal(
    HTTPStatus.UNAUTHORIZED, "no token was sent; send one in the header 'Authorization: Bearer TOKEN'"
)
WRONG_TOKEN = Refusal(HTTPStatus.UNAUTHORIZED, "this is no token of this coordinator", "invalid_token")
SEVERAL_TOKENS = Refusal(
    HTTPStatus.BAD_REQUEST, "several Authorization headers were sent; send one", "invalid_request"
)
TOKEN_IN_URL = Refusal(
    HTTPStatus.BAD_REQUEST,
    "a token must not be in a URL, where logs keep it; replace this token by a new one,"
    " and send that in the header 'Authorization: Bearer TOKEN'",
    "invalid_request",
)
ONLY_READING = Refusal(
    HTTPStatus.FORBIDDEN, "the read token changes nothing; use the change token", "insufficient_scope"
)


class Gate:
    """Middleware before the router: no path, with a route or without, is reached without the right token."""

    def __init__(self, app: ASGIApp, tokens: Tokens) -> None:
        self._app = app
        self._tokens = tokens
        self._tally = Tally(log)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer with the reason for refusing it."""
        if scope["type"] == "websocket":
            # No route uses WebSockets; one that did would bypass the checks below.
            await WebSocketClose()(scope, receive, send)
            return
        refusal = self._judge(scope) if scope["type"] == "http" else None
        if refusal is None:
            await self._app(scope, receive, send)
            return
        # Log neither the path nor the query: either may hold a token.
        client = scope.get("client")
        who = client[0] if client else "-"
        self._tally.warn(refusal.detail, f"refused a {scope['method']} from {who}: {refusal.detail}")
        answer = problem(scope, refusal.status, refusal.detail, {"WWW-Authenticate": refusal.challenge})
        await answer(scope, receive, send)

    def _judge(self, scope: Scope) -> Refusal | None:
        query: bytes = scope["query_string"]
        if _SUSPICIOUS.search(query) and any(name.lower() in URL_PARAMETERS for name in QueryParams(query)):
            return TOKEN_IN_URL
        reads = scope["method"] in READING_METHODS
        if reads and is_open(scope["path"]):
            return None
        offers = [value.decode("latin-1") for name, value in scope["headers"] if name == b"authorization"]
        if len(offers) > 1:
            return SEVERAL_TOKENS
        scheme, _, offered = "".join(offers).partition(" ")
        if scheme.lower() != "bearer":
            return NO_TOKEN
        right = self._tokens.recognise(offered.strip(" "))
        if right is None:
            return WRONG_TOKEN
        scope.setdefault("state", {})["right"] = right
        return None if reads or right is Right.CHANGE else ONLY_READING


def is_open(path: str) -> bool:
    """Return whether a path may be read without a token."""
    return path in OPEN_PATHS or path.startswith(ASSETS_FOLDER)
