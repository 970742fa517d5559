"""The end of a service that is told to stop before it has begun.

The first process of a container is not ended by a signal that it has no handler for. Until the event loop has its
own, and that is after all imports, SIGTERM would be lost, and whoever sent it would wait, lose patience and kill.
"""

from __future__ import annotations

import os
import signal
from types import FrameType


def leave_when_told() -> None:
    """From now on end at once, and well, at SIGTERM and SIGINT; until something else is set to handle them."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _leave)


def _leave(number: int, frame: FrameType | None) -> None:
    del number, frame
    # Nothing was begun that must be put in order. An exception could end in some library's `except`.
    os._exit(0)
