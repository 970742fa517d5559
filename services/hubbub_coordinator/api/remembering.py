"""Answers that were given, held until something happens: many who look on ask for the same.

An answer about a run is as good as new until the next step of that run, and one about all runs until the next step
of any. Only that a party is called missing comes with time alone, so no answer is held for long.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from http import HTTPStatus

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hubbub.ids import RunId
from hubbub_coordinator.service import ANY_RUN, Coordinator

HELD = 256
LONGEST = 2**18
"""Bytes of one that is held."""
GOOD_FOR_S = 1.0

_RUN = "[0-9a-f]{64}"
# Neither the stream nor an export, which are written piece by piece, nor what depends on whose token it is.
_PATH = re.compile(rf"/api/v1/(?:events|runs(?:/(?P<run>{_RUN})(?:/(?:rounds(?:/\d+)?|cost))?)?)")
_ABOUT_RUN = re.compile(rf"(?:^|&)run=({_RUN})(?=&|$)".encode())

Stamp = tuple[int, int]
"""How much had happened, and what was forgotten, when an answer was given."""


@dataclass(frozen=True, slots=True)
class _Held:
    stamp: Stamp
    at_s: float
    start: Message
    body: Message


class Remembering:
    """Stands before the router and gives an answer again that still holds."""

    def __init__(self, app: ASGIApp, coordinator: Coordinator) -> None:
        self._app = app
        self._coordinator = coordinator
        self._held: dict[tuple[str, bytes], _Held] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer from memory, or pass the request on and remember what is said."""
        found = _PATH.fullmatch(scope["path"]) if scope["type"] == "http" and scope["method"] == "GET" else None
        if found is None:
            await self._app(scope, receive, send)
            return
        query: bytes = scope["query_string"]
        run = RunId(found["run"] or _find_run(query))
        key, stamp, now_s = (scope["path"], query), self._stamp(run), self._coordinator.now_s()
        held = self._held.get(key)
        if held is not None and held.stamp == stamp and 0 <= now_s - held.at_s < GOOD_FOR_S:
            await send({**held.start})  # Others put headers on it on the way out.
            await send(held.body)
            return
        start: Message = {}

        async def send_and_hold(message: Message) -> None:
            nonlocal start
            if message["type"] == "http.response.start":
                start = {**message}
            elif message.get("more_body", False):
                start = {}
            elif start.get("status") == HTTPStatus.OK:
                self._hold(key, _Held(stamp, now_s, start, message))
            await send(message)

        await self._app(scope, receive, send_and_hold)

    def _stamp(self, run: RunId) -> Stamp:
        # From before the answer is made: what happens meanwhile may be in it or not.
        return self._coordinator.count_steps(run), self._coordinator.news.forgotten

    def _hold(self, key: tuple[str, bytes], answer: _Held) -> None:
        self._held.pop(key, None)
        if len(answer.body["body"]) > LONGEST:
            return
        self._held[key] = answer
        if len(self._held) > HELD:
            del self._held[next(iter(self._held))]


def _find_run(query: bytes) -> str:
    """The run that is asked for beyond doubt; a query that names two, or may hide one, is about any."""
    named = _ABOUT_RUN.findall(query)
    return named[0].decode() if len(named) == 1 and b"%" not in query else ANY_RUN
