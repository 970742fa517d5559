"""A request that was answered before, byte for byte the same, answered again before anybody reads it.

Reading a request, calling the application and writing its answer costs a third of a millisecond, and who looks on
asks for the same all the time: the same line, the same headers, the same token. Such a request is known by a
digest of its bytes, so that no token is kept; which of them may be answered unread is for the application to say.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from hashlib import blake2b
from http import HTTPStatus
from typing import Any, ClassVar, Protocol

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

DIGEST = "hubbub.request"
"""Where an application finds, in a request's state, by which digest it would be known if it came again."""

Reply = Callable[[bytes | None], None]
"""Told the headers and the body of an answer of 200, or nothing: the request is to be read after all."""

_METHOD = b"GET "
_END = b"\r\n\r\n"
_SALT = secrets.token_bytes(32)


class Repeater(Protocol):
    """Who knows requests by their digests."""

    def repeat(self, digest: bytes, reply: Reply) -> bool:
        """Call `reply` once, now or soon, or say that this request has to be read."""
        ...


class RepeatingProtocol(HttpToolsProtocol):
    """One connection, on which requests that are known are not read."""

    repeater: ClassVar[Repeater]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._digest = b""
        """Of the request that is about to be read, if it came in one piece."""
        self._amid = False
        """Whether a part of a request was read."""
        self._unread = b""
        """The request that waits for its reply."""
        self._later = b""
        """What came behind it."""
        self._leaves = False

    def data_received(self, data: bytes) -> None:
        """Answer a request that is known, and read any other."""
        if self._unread:
            self._later += data
            self.flow.pause_reading()
            return
        self._digest = self._recognise(data)
        if self._digest:
            self._unset_keepalive_if_required()
            self._unread = data
            if self.repeater.repeat(self._digest, self._reply):
                return
            self._unread = b""
        super().data_received(data)

    def _recognise(self, data: bytes) -> bytes:
        """The digest of one whole request without a body on a connection where nothing else is under way."""
        if self._amid or self.flow.write_paused or not (self.cycle is None or self.cycle.response_complete):
            return b""
        whole = data.startswith(_METHOD) and data.find(_END) == len(data) - len(_END)
        return blake2b(data, key=_SALT, digest_size=32).digest() if whole else b""

    def _reply(self, rest: bytes | None) -> None:
        data, self._unread = self._unread, b""
        later, self._later = self._later, b""
        if self.transport.is_closing():
            return
        if rest is None:
            self.flow.resume_reading()
            super().data_received(data)
        else:
            # One piece: each more would be a system call, and may be a packet.
            head = b"".join(b"%b: %b\r\n" % each for each in self.server_state.default_headers)
            self.transport.write(STATUS_LINE[HTTPStatus.OK] + head + rest)
            self.on_response_complete()
        if self._leaves:
            self.shutdown()
        elif later:
            self.data_received(later)

    def shutdown(self) -> None:
        """End the connection, when what was asked on it is answered."""
        self._leaves = True
        if not self._unread:
            super().shutdown()

    def on_message_begin(self) -> None:
        """Let the application know by what it can recognise the request."""
        super().on_message_begin()
        self._amid = True
        if self._digest:
            self.scope["state"][DIGEST] = self._digest
            self._digest = b""

    def on_message_complete(self) -> None:
        """Nothing is under way but the answer."""
        self._amid = False
        super().on_message_complete()


def repeating(repeater: Repeater) -> type[asyncio.Protocol]:
    """The protocol of a server whose requests somebody may know."""
    return type("BoundRepeatingProtocol", (RepeatingProtocol,), {"repeater": repeater})
