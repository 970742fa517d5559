"""Answers that were given, held until something happens: many who look on ask for the same.

An answer about a run is as good as new until the next step of that run, and one about all runs until the next step
of any. Only that a party is called missing comes with time alone, so no answer is held for long.
"""

from __future__ import annotations

import asyncio
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
MOMENT_S = 0.2
"""How soon after another the same question is answered anew."""

_RUN = "[0-9a-f]{64}"
# Neither the stream nor an export, which are written piece by piece, nor what depends on whose token it is.
_PATH = re.compile(rf"/api/v1/(?:events|runs(?:/(?P<run>{_RUN})(?:/(?:rounds(?:/\d+)?|cost))?)?)")
_ABOUT_RUN = re.compile(rf"(?:^|&)run=({_RUN})(?=&|$)".encode())

Stamp = tuple[int, int]
"""How much had happened, and what was forgotten, when an answer was given."""


Question = tuple[str, bytes, RunId]
"""A path, its query, and the run that both are about."""


@dataclass(frozen=True, slots=True)
class Held:
    """An answer, and what it depends on."""

    stamp: Stamp
    at_s: float
    """By the coordinator's clock, which may be set."""
    made_s: float
    """By the event loop's, which only goes on."""
    start: Message
    body: Message


Promise = asyncio.Future[Held | None]


class Remembering:
    """Stands before the router and gives an answer again that still holds.

    While a run takes hundreds of steps a second no answer holds for long. Then whoever asks for the same within a
    moment waits for its end, and all share one answer: nobody is told what was true before they asked, and a crowd
    costs no more than a few who look on.
    """

    def __init__(self, app: ASGIApp, coordinator: Coordinator, *, moment_s: float = MOMENT_S) -> None:
        self._app = app
        self._coordinator = coordinator
        self._moment_s = moment_s
        self._held: dict[Question, Held] = {}
        self._promised: dict[Question, Promise] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer from memory, or pass the request on and remember what is said."""
        question = _find_question(scope)
        if question is None:
            await self._app(scope, receive, send)
            return
        known = self._recall(question)
        if known is None and question in self._promised:
            # Or what another made who waited with us, if the one that was to make it went away.
            known = await asyncio.shield(self._promised[question]) or self._recall(question)
        if known is not None:
            await send({**known.start})  # Others put headers on it on the way out.
            await send(known.body)
            return
        promise: Promise = asyncio.get_running_loop().create_future()
        try:
            await self._wait_for_turn(question, promise)
            await self._pass_on(question, promise, (scope, receive, send))
        finally:
            if not promise.done():
                # It is none to be held, or came to nothing: everybody asks for themselves.
                promise.set_result(None)

    def _recall(self, question: Question) -> Held | None:
        """The answer that was given last, if it still holds."""
        held = self._held.get(question)
        if held is None or held.stamp != self._stamp(question):
            return None
        return held if 0 <= self._coordinator.now_s() - held.at_s < GOOD_FOR_S else None

    async def _wait_for_turn(self, question: Question, promise: Promise) -> None:
        """Let a moment pass since the last answer; who asks meanwhile is promised the next."""
        held = self._held.pop(question, None)
        early_s = held.made_s + self._moment_s - asyncio.get_running_loop().time() if held else 0
        if early_s <= 0:
            return
        self._promised[question] = promise
        try:
            await asyncio.sleep(early_s)
        finally:
            # Who comes later than this may not be told what is seen now.
            del self._promised[question]

    async def _pass_on(self, question: Question, promise: Promise, request: tuple[Scope, Receive, Send]) -> None:
        # From before the answer is made: what happens meanwhile may be in it or not.
        stamp, at_s, made_s = self._stamp(question), self._coordinator.now_s(), asyncio.get_running_loop().time()
        scope, receive, send = request
        start: Message = {}

        async def send_and_hold(message: Message) -> None:
            nonlocal start
            if message["type"] == "http.response.start":
                start = {**message}
            elif message.get("more_body", False):
                start = {}
            elif start.get("status") == HTTPStatus.OK:
                answer = Held(stamp, at_s, made_s, start, message)
                self._hold(question, answer)
                promise.set_result(answer)
            await send(message)

        await self._app(scope, receive, send_and_hold)

    def _stamp(self, question: Question) -> Stamp:
        return self._coordinator.count_steps(question[2]), self._coordinator.event_feed.forgotten

    def _hold(self, question: Question, answer: Held) -> None:
        self._held.pop(question, None)
        if len(answer.body["body"]) > LONGEST:
            return
        self._held[question] = answer
        if len(self._held) > HELD:
            del self._held[next(iter(self._held))]


def _find_question(scope: Scope) -> Question | None:
    """What a request asks for, if the answer is one that can be held."""
    if scope["type"] != "http" or scope["method"] != "GET":
        return None
    path, query = scope["path"], scope["query_string"]
    found = _PATH.fullmatch(path)
    return (path, query, RunId(found["run"] or _find_run(query))) if found else None


def _find_run(query: bytes) -> str:
    """The run that is asked for beyond doubt; a query that names two, or may hide one, is about any."""
    named = _ABOUT_RUN.findall(query)
    return named[0].decode() if len(named) == 1 and b"%" not in query else ANY_RUN
