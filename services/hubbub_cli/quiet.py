"""Keeping log lines of libraries off the terminal of a command."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_log_lines() -> Iterator[None]:
    """Keep warnings of libraries off the terminal: what matters comes as an error."""
    silence = logging.NullHandler()
    logging.getLogger().addHandler(silence)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(silence)
