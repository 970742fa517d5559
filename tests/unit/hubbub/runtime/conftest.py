"""Nobody waits between two attempts here."""

from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="package")
def _without_pauses() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hubbub.runtime.effects.PAUSE_S", 0.0)
        yield
