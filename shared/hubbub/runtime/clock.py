"""Clock for event times, which never goes back and never jumps while a process runs."""

import logging
import time
from collections.abc import Callable
from typing import Protocol

log = logging.getLogger(__name__)

NOTICEABLE_S = 60.0
"""Difference between the machine's clock and ours that is logged."""


class Clock(Protocol):
    """Clock in seconds since 1970."""

    def now_s(self) -> float:
        """Return the current time."""

    def go_on_from(self, at_s: float) -> None:
        """Move forward to this time if it is later than now: an event of this time has happened."""

    def ahead_s(self) -> float:
        """Return by how much the machine's clock is ahead of this one."""


class SystemClock:
    """The machine's clock as it was at the start, plus the time that has passed since.

    If somebody sets the machine's clock, this one goes on as before, so that no deadline passes early or late.
    """

    def __init__(
        self, *, wall: Callable[[], float] = time.time, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._wall = wall
        self._monotonic = monotonic
        self._offset_s = wall() - monotonic()
        self._told_s = 0.0
        """Lead of the machine's clock over ours when it was last logged."""

    def now_s(self) -> float:
        """Return the current time; log a warning if the machine's clock was set."""
        now_s = self._tell()
        ahead_s = self._wall() - now_s
        if abs(ahead_s - self._told_s) > NOTICEABLE_S:
            log.warning(
                "the machine's clock was set by %+.0f s, or the machine slept: deadlines stay as they are, and "
                "this party goes on with its own time until it is started again",
                ahead_s - self._told_s,
            )
            self._told_s = ahead_s
        return now_s

    def _tell(self) -> float:
        return self._offset_s + self._monotonic()

    def ahead_s(self) -> float:
        """Return by how much the machine's clock is ahead of this one.

        It is not 0 if that clock was set, or if the newest event was later than it at the start.
        """
        return self._wall() - self._tell()

    def go_on_from(self, at_s: float) -> None:
        """Move forward to this time if it is later than now."""
        behind_s = at_s - self.now_s()
        if behind_s <= 0:
            return
        if behind_s > NOTICEABLE_S:
            log.warning(
                "the machine's clock is %.0f s behind the newest event in the store; time goes on from that event",
                behind_s,
            )
        self._offset_s += behind_s
        self._told_s -= behind_s
