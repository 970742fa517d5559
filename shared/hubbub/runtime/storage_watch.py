"""Storage watch: pauses a party's queues while its disk or database fails.

Failed writes are retried until they succeed, and these retries are the probe: storage works again when all of them
have succeeded. A smaller probe could find room where a chunk finds none.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from hubbub.transport.base import Transport

log = logging.getLogger(__name__)


class StorageWatch:
    """Set of the writes that are failing."""

    def __init__(self, transport: Transport, queues: Sequence[str]) -> None:
        self._transport = transport
        self._queues = queues
        self._failing: dict[object, str] = {}
        self._closed = False

    @property
    def trouble(self) -> str:
        """Description of the storage failure for an operator; empty while storage works."""
        return next(iter(self._failing.values()), "")

    @contextmanager
    def attempts(self) -> Iterator[Callable[[Exception], None]]:
        """Enclose the retries of one write; yields the function that reports a failure."""
        attempt = object()
        try:
            yield partial(self.fail, attempt)
        finally:
            self.recover(attempt)

    def fail(self, attempt: object, error: Exception) -> None:
        """Note that an attempt failed; no messages are taken from now on."""
        if not self._failing:
            log.error("storage fails: no messages are taken, and it is tried again until it works: %s", error)
        self._failing[attempt] = str(error)
        # Each time, because a subscription may have begun since.
        for queue in self._queues:
            self._transport.pause(queue)

    def recover(self, attempt: object) -> None:
        """Note that an attempt is over; messages are taken again if it was the last that had failed."""
        if self._failing.pop(attempt, None) is not None and not self._failing and not self._closed:
            log.warning("storage works again: messages are taken again")
            for queue in self._queues:
                self._transport.resume(queue)

    def close(self) -> None:
        """Resume no queue any more: the party is stopping, and writes that end were given up, not done."""
        self._closed = True
