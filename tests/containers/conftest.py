"""Tests with real containers: `make test-containers` builds the images and asks for these."""

import pytest

from support.containers import find_problem

WHAT_TO_DO = (
    "Build the images where a Docker API answers: make images. On a Debian machine without one, as root, first:\n"
    '  eval "$(tools/containers/engine.sh start)"'
)


@pytest.fixture(scope="session", autouse=True)
def engine() -> None:
    """Tell whoever asked for these tests what is missing: that nothing was tried is no success."""
    if problem := find_problem():
        pytest.exit(f"{problem}\n{WHAT_TO_DO}", returncode=1)
