"""What `make test` takes a part of, and `make soak` takes whole."""

import os
from collections.abc import Sequence
from typing import TypeVar

import pytest

T = TypeVar("T")

THOROUGH = bool(os.environ.get("HUBBUB_THOROUGH"))


def part_of(everything: Sequence[T], *places: int) -> list[T]:
    """Those at these places, or all if somebody has the time."""
    return list(everything) if THOROUGH else [everything[place] for place in places]


only_thorough = pytest.mark.skipif(not THOROUGH, reason="takes a minute, or many processes: make soak")
