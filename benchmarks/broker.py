"""Private RabbitMQ node for a benchmark, started as the tests start it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_TESTS = Path(__file__).resolve().parent.parent / "tests"


@contextmanager
def start_broker() -> Iterator[str]:
    """Start a node and yield its URL.

    Raises FileNotFoundError if no rabbitmq-server is installed, RuntimeError if it does not start.
    """
    # The one place where the benchmarks import from the tests. pytest puts this folder on the path by itself.
    if str(_TESTS) not in sys.path:
        sys.path.insert(0, str(_TESTS))
    from support.private_node import PrivateNode  # noqa: PLC0415  (Only now can it be found.)

    with PrivateNode() as node:
        yield node.url
