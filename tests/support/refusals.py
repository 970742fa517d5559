"""A block of a test in which a peer is refused."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from hubbub.errors import PeerError, RejectReason


@contextmanager
def refusing(reason: RejectReason, match: str | None = None) -> Iterator[None]:
    """The block raises a `PeerError` for this reason."""
    with pytest.raises(PeerError, match=match) as caught:
        yield
    assert caught.value.reason is reason
