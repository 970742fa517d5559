"""Suppresses log lines of libraries on a command's terminal."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_log_lines() -> Iterator[None]:
    """Suppress libraries' log lines within the block: what matters is raised as an error."""
    silence = logging.NullHandler()
    logging.getLogger().addHandler(silence)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(silence)
