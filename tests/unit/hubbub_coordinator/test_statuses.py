"""Which status the REST interface gives what the coordinator raises."""

from typing import cast

import httpx
import pytest

from hubbub.errors import (
    BrokerRefused,
    BrokerUnreachable,
    ConfigurationError,
    DataError,
    StorageFailed,
    TransportError,
    UnexpectedEvent,
    Unroutable,
)
from hubbub.messages.manifest import Manifest
from hubbub.runtime.runner import MachineOver, RunnerStopped
from hubbub_coordinator.api.access import Tokens
from hubbub_coordinator.api.app import create_app
from hubbub_coordinator.event_feed import EventFeed
from hubbub_coordinator.service import Coordinator, RunExists, RunOver, UnknownRun
from support.aio import aio
from support.builders import make_manifest

TOKENS = Tokens(read="r" * 32, change="c" * 32)


class FailingCoordinator:
    """Cannot begin any run, for one and the same reason."""

    def __init__(self, error: Exception) -> None:
        self.event_feed = EventFeed()
        self._error = error

    async def submit(self, manifest: Manifest) -> None:
        del manifest
        raise self._error


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        (ConfigurationError, 422),
        (DataError, 422),
        (RunExists, 409),
        (RunOver, 409),
        (UnknownRun, 404),
        (TransportError, 503),
        (BrokerUnreachable, 503),
        (BrokerRefused, 503),
        (Unroutable, 503),
        (StorageFailed, 503),
        (RunnerStopped, 503),
        (UnexpectedEvent, 409),
        (MachineOver, 409),
    ],
)
@aio
async def test_an_error_is_answered_with_the_status_of_its_kind(kind: type[Exception], status: int) -> None:
    app = create_app(cast("Coordinator", FailingCoordinator(kind("as things are"))), TOKENS)
    headers = {"authorization": f"Bearer {TOKENS.change}"}

    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://coordinator") as client:
        answer = await client.post("/api/v1/runs", content=make_manifest().model_dump_json(), headers=headers)

    assert (answer.status_code, answer.json()["detail"]) == (status, "as things are")
