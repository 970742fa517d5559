"""A RabbitMQ for the length of a benchmark: the private node that the tests start, too."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_TESTS = Path(__file__).resolve().parent.parent / "tests"


@contextmanager
def start_broker() -> Iterator[str]:
    """Give the URL of a node of our own.

    Raises FileNotFoundError where no rabbitmq-server is installed, RuntimeError where it does not start.
    """
    # The one place where the benchmarks reach into the tests. pytest puts this folder on the path by itself.
    if str(_TESTS) not in sys.path:
        sys.path.insert(0, str(_TESTS))
    from support.private_node import PrivateNode  # noqa: PLC0415  (Only now can it be found.)

    with PrivateNode() as node:
        yield node.url
