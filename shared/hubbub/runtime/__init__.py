"""Runtime of every service: the runner, its effects and recovery, settings, spool, logs and metrics.

This module has the signal handlers of a service that is still being imported, and imports nothing heavy. Process 1
of a container is not ended by a signal that it has no handler for, and the event loop sets its handlers only after
all imports. Until then SIGTERM would be lost, and whoever sent it would wait and then kill the process.
"""

from __future__ import annotations

import os
import signal
from types import FrameType


def leave_when_told() -> None:
    """End the process at once, with exit code 0, at SIGTERM and SIGINT, until another handler is set."""

    def leave(number: int, frame: FrameType | None) -> None:
        del number, frame
        # Nothing was begun that must be put in order. An exception could end in some library's `except`.
        os._exit(0)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, leave)
