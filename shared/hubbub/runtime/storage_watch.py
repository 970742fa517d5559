"""Tracks whether a party's disk or database fails, and stops it from taking messages while it does.

What cannot be written is tried again until it can, and these attempts are the probe: storage works again when all
that it kept from succeeding has succeeded. A smaller probe could find room where a chunk finds none.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from hubbub.transport.base import Transport

log = logging.getLogger(__name__)


class StorageWatch:
    """The attempts that storage keeps from succeeding."""

    def __init__(self, transport: Transport, queues: Sequence[str]) -> None:
        self._transport = transport
        self._queues = queues
        self._failing: dict[object, str] = {}
        self._closed = False

    @property
    def trouble(self) -> str:
        """What is wrong with storage, in words for an operator; empty while it works."""
        return next(iter(self._failing.values()), "")

    @contextmanager
    def attempts(self) -> Iterator[Callable[[Exception], None]]:
        """Make attempts inside until one succeeds, and report each that storage keeps from it."""
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
        """Take attempts for given up from now on: the party is being stopped, and nothing is known of its disk."""
        self._closed = True
