"""Where time comes from."""

import time
from typing import Protocol


class Clock(Protocol):
    """Tells the time in seconds since 1970."""

    def now_s(self) -> float:
        """Now."""


class SystemClock:
    """The machine's clock."""

    def now_s(self) -> float:
        """Now."""
        return time.time()
