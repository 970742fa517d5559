"""Worker of a subscription: calls a handler with one delivery at a time, in order.

Both transports pass the messages that they take from the broker to a `Worker`. It runs in a task of its own, so
that a handler outlives the connection its delivery came over. It keeps the promises about handlers: one at a time,
an exception means RETRY, and stopping waits for the running handler.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from hubbub.errors import LocalError
from hubbub.transport.base import RETRY, Delivery, Handler, Verdict

log = logging.getLogger(__name__)


class Taken(Protocol):
    """Message that was taken from the broker and is not settled yet."""

    @property
    def delivery(self) -> Delivery:
        """Delivery that is passed to the handler."""

    def is_stale(self) -> bool:
        """Say whether the connection it came over is gone, so that the broker will deliver it again."""

    async def settle(self, verdict: Verdict) -> None:
        """Tell the broker the verdict; a loss of the connection meanwhile is not an error."""


T = TypeVar("T", bound=Taken)


@dataclass(frozen=True, slots=True)
class RetryPause:
    """Pause before a message is delivered again: doubling, up to a limit."""

    first_s: float = 0.1
    longest_s: float = 5.0

    def after(self, deliveries: int) -> float:
        """Return the pause after so many deliveries, in seconds."""
        # The exponent is bounded because a float's is.
        return float(min(self.first_s * 2 ** min(deliveries - 1, 30), self.longest_s))


class Worker(Generic[T]):
    """Calls the handler with the messages from `put` until it is stopped."""

    def __init__(self, queue: str, handler: Handler) -> None:
        self._queue = queue
        self._handler = handler
        self._waiting: asyncio.Queue[T | None] = asyncio.Queue()
        self._stopping = False
        self._task = asyncio.create_task(self._run(), name=f"handle {queue}")

    def put(self, taken: T) -> None:
        """Queue a message. The broker's prefetch limit bounds how many there are."""
        self._waiting.put_nowait(taken)

    def is_caller(self) -> bool:
        """Say whether the handler itself is asking."""
        return asyncio.current_task() is self._task

    async def stop(self) -> None:
        """Handle nothing more; return when the running handler has finished and the broker has its verdict."""
        self._stopping = True
        self._waiting.put_nowait(None)
        try:
            await asyncio.wait({self._task})
        finally:
            # The task is still running only if this call was cancelled.
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while (taken := await self._waiting.get()) is not None and not self._stopping:
            if taken.is_stale():
                continue
            try:
                await taken.settle(await self._judge(taken.delivery))
            except Exception:
                # The message stays unsettled and comes again with the next connection; the others must not wait.
                log.exception("could not settle a message of %s", self._queue)

    async def _judge(self, delivery: Delivery) -> Verdict:
        task = asyncio.current_task()
        before = task.cancelling() if task else 0
        try:
            return await self._handler(delivery)
        except asyncio.CancelledError:
            # Something the handler waited for was cancelled; re-raise only if it is this task.
            if task and task.cancelling() > before:
                raise
            log.warning("a wait inside the handler of %s was cancelled; its message will be retried", self._queue)
        except Exception:
            log.exception("the handler of %s failed; its message will be retried", self._queue)
        return RETRY


def check_outside(workers: Iterable[Worker[T]]) -> None:
    """Raise `LocalError` if called from inside a handler, for which closing would wait."""
    if any(worker.is_caller() for worker in workers):
        raise LocalError("a transport cannot be closed from inside one of its handlers")


def describe_occupied(queue: str) -> str:
    """Return the error message for a queue that already has a consumer."""
    return (
        f"another instance of this party is running: it consumes {queue!r}, which one may do at a time. Stop it"
        " first; each party runs once"
    )
