"""Which requests can be answered without being read: those that asked, in the same bytes, for what is held."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from http import HTTPStatus

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hubbub.runtime.repeats import DIGEST, Reply
from hubbub_coordinator.api.remembering import Held, Promise, Question, Remembering, find_question

KNOWN = 1024
"""Requests; each takes less than a kilobyte."""

_LENGTH = b"content-length"
_UNREPEATABLE = frozenset({_LENGTH, b"transfer-encoding", b"expect", b"upgrade"})
"""Headers of a request that is more than its head, or wants more than an answer."""


@dataclass(frozen=True, slots=True)
class _Known:
    question: Question
    headers: bytes
    """What all that stands before the router puts on the answer."""

    def write(self, held: Held) -> bytes:
        """All of an answer but its first line and the date."""
        body: bytes = held.body["body"]
        own = [each for each in held.start["headers"] if each[0] != _LENGTH]
        length = (_LENGTH, b"%d" % len(body))
        return b"".join((_write_headers([*own, length]), self.headers, b"\r\n", body))


class Repeating:
    """Stands before all else, and learns which requests were let in and what they asked for.

    A request is learnt when it was answered with what is held: it was read, its token was found right, and the
    same bytes will ask for the same. From then on it is answered with whatever is held at that time, or with what
    somebody who asks for the same has been promised.
    """

    def __init__(self, app: ASGIApp, remembering: Remembering) -> None:
        self._app = app
        self._remembering = remembering
        self._known: dict[bytes, _Known] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and learn it if it can be answered unread the next time."""
        digest = scope.get("state", {}).get(DIGEST)
        question = find_question(scope) if digest and _is_repeatable(scope) else None
        if question is None:
            await self._app(scope, receive, send)
            return
        start: Message = {}

        async def send_and_learn(message: Message) -> None:
            nonlocal start
            if message["type"] == "http.response.start":
                start = message
            elif not message.get("more_body", False):
                self._learn(digest, question, start)
            await send(message)

        await self._app(scope, receive, send_and_learn)

    def _learn(self, digest: bytes, question: Question, start: Message) -> None:
        held = self._remembering.recall(question)
        if held is None or start.get("status") != HTTPStatus.OK:
            return
        own = held.start["headers"]
        self._known[digest] = _Known(
            question, _write_headers(each for each in start["headers"] if each not in own)
        )
        if len(self._known) > KNOWN:
            del self._known[next(iter(self._known))]

    def repeat(self, digest: bytes, reply: Reply) -> bool:
        """Reply with what is held, or was promised to another who asked for the same; else it is to be read."""
        known = self._known.get(digest)
        if known is None:
            return False
        held = self._remembering.recall(known.question)
        if held is not None:
            reply(known.write(held))
            return True
        promise = self._remembering.find_promise(known.question)
        if promise is None:
            return False

        def tell(kept: Promise) -> None:
            made = kept.result()
            reply(known.write(made) if made else None)

        promise.add_done_callback(tell)
        return True


def _is_repeatable(scope: Scope) -> bool:
    """Whether the request is all in its head, and the connection stays open after the answer."""
    return scope["http_version"] == "1.1" and all(
        name not in _UNREPEATABLE and (name != b"connection" or value.lower() == b"keep-alive")
        for name, value in scope["headers"]
    )


def _write_headers(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    return b"".join(b"%b: %b\r\n" % each for each in headers)
