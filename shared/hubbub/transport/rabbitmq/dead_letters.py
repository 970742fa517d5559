"""Dead letters: rejected messages, put aside with their reason.

A dead letter takes a confirmation, and would keep all behind it waiting: `DeadLetters` sends many at a time.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable

from aio_pika.abc import HeadersType

from hubbub.errors import TransportError
from hubbub.transport.base import (
    ASIDE_MAX_BYTES,
    ASIDE_MAX_LENGTH,
    ASIDE_PER_S,
    Address,
    TokenBucket,
    is_oversized,
)
from hubbub.transport.rabbitmq.connection import ANSWER_S
from hubbub.transport.topology import QueueSpec

log = logging.getLogger(__name__)

REASON_HEADER = "hubbub-reason"
QUEUE_HEADER = "hubbub-queue"
# Dead letters that are on their way to the broker at a time.
_ASIDE_AT_ONCE = 64


class DeadLetters:
    """Puts rejected messages aside, many at a time, while others are handled.

    They are acknowledged already. So the messages here are all that is lost if this process dies, and there is a
    limit to how many there may be; what is over it is dropped.
    """

    def __init__(self, publish: Callable[[Address, bytes, HeadersType], Awaitable[None]]) -> None:
        self._publish = publish
        self._waiting: deque[tuple[Address, bytes, HeadersType]] = deque()
        self._bytes = 0
        self._room = TokenBucket(ASIDE_MAX_LENGTH, ASIDE_PER_S)
        self._dropped = 0
        self._telling: asyncio.TimerHandle | None = None
        self._sending: asyncio.Task[None] | None = None

    def put(self, spec: QueueSpec, body: bytes, reason: str) -> None:
        """Send a rejected message, with its reason, to the dead letters of its queue, without waiting for it."""
        if spec.dead_letters is None:
            return
        if is_oversized(body):
            log.warning("a message of %s is rejected (%s) and dropped: %d bytes", spec.name, reason, len(body))
            return
        if not self._has_room(len(body)):
            self._dropped += 1
            if self._telling is None:
                self._telling = asyncio.get_running_loop().call_later(1.0, self._tell)
            return
        self._waiting.append((spec.dead_letters, body, {REASON_HEADER: reason, QUEUE_HEADER: spec.name}))
        self._bytes += len(body)
        if self._sending is None or self._sending.done():
            self._sending = asyncio.create_task(self._send(), name="put aside")

    async def finish(self) -> None:
        """Wait, not for long, until all is put aside."""
        if self._sending is not None:
            await asyncio.wait({self._sending}, timeout=ANSWER_S)

    async def stop(self) -> None:
        """Drop what is left."""
        if self._sending is not None:
            self._sending.cancel()
            await asyncio.gather(self._sending, return_exceptions=True)
        if self._telling is not None:
            self._telling.cancel()
            self._tell()

    def _has_room(self, size: int) -> bool:
        """Take room for one more, which comes back with time; a flood would have us do nothing else."""
        if len(self._waiting) >= ASIDE_MAX_LENGTH or self._bytes + size > ASIDE_MAX_BYTES:
            return False
        return self._room.take(1, asyncio.get_running_loop().time())

    def _tell(self) -> None:
        log.warning("%d rejected messages were dropped: too many at a time to put aside", self._dropped)
        self._dropped, self._telling = 0, None

    async def _send(self) -> None:
        while self._waiting:
            batch = [self._waiting.popleft() for _ in range(min(_ASIDE_AT_ONCE, len(self._waiting)))]
            await asyncio.gather(*(self._send_one(*each) for each in batch))

    async def _send_one(self, address: Address, body: bytes, headers: HeadersType) -> None:
        try:
            await self._publish(address, body, headers)
        except TransportError as error:
            log.warning("a rejected message (%s) is dropped: %s", headers[REASON_HEADER], error)
        finally:
            self._bytes -= len(body)
