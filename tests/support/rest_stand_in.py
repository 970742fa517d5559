"""The REST interface over a stand-in for the coordinator, and requests as a server passes them on."""

import asyncio
from collections import Counter
from collections.abc import Collection
from typing import cast

import httpx
from starlette.types import Message, Receive, Scope, Send

from hubbub.ids import RunId
from hubbub.machine.effects import Key
from hubbub.messages.manifest import Manifest
from hubbub.runtime.runner import Transition
from hubbub.runtime.telemetry import Counters
from hubbub_coordinator.api.access import Tokens
from hubbub_coordinator.api.app import create_routes, guard
from hubbub_coordinator.event_feed import KEPT, EventFeed
from hubbub_coordinator.events import Began
from hubbub_coordinator.phases import run as runs
from hubbub_coordinator.service import Coordinator, Page, UnknownRun
from support.builders import make_manifest

MANIFEST = make_manifest()
TOKENS = Tokens(read="read-token-of-the-tests-0123456789", change="change-token-of-the-tests-9876543210")


class StandInCoordinator:
    """Knows some runs by name, has a feed, and remembers what it was told to cancel."""

    def __init__(self, *, runs: Collection[RunId] = (), kept: int = KEPT, error: Exception | None = None) -> None:
        self.counters = Counters()
        self.event_feed = EventFeed(kept)
        self.runner = self
        self.cancelled: list[RunId] = []
        self.steps: Counter[RunId] = Counter()
        self.time_s = 0.0
        self._runs = runs
        self._error = error
        self._sequence = 0

    def now_s(self) -> float:
        return self.time_s

    def count_steps(self, run: RunId) -> int:
        return self.steps[run]

    def page_runs(self, **_: object) -> Page:
        return Page((), more=False, total=0)

    def check_run(self, run: RunId) -> None:
        if run not in self._runs:
            raise UnknownRun(f"there is no run {run}")

    async def look(self, run: RunId) -> None:
        raise UnknownRun(f"there is no run {run}")

    def find_problems(self) -> tuple[str, ...]:
        return ("there is no connection to the broker",)

    def find_stall(self) -> str:
        return ""

    async def submit(self, manifest: Manifest) -> RunId:
        if self._error:
            raise self._error
        return manifest.run_id

    async def cancel(self, run: RunId) -> None:
        self.cancelled.append(run)

    def report(self, run: RunId, count: int = 1) -> None:
        """Let something happen; its ids are 100, 200 and so on."""
        for _ in range(count):
            self._sequence += 1
            tell_beginning(self.event_feed, run, self._sequence)

    def ids(self, run: RunId | None = None) -> list[int]:
        return [item.id for item in self.event_feed.since(0) if run in {None, item.run}]


def tell_beginning(feed: EventFeed, run: RunId, sequence: int) -> None:
    """Add the event that a run was submitted, as the step with this number."""
    data, state = runs.CoordinatorRun(manifest=MANIFEST), runs.State.ENROLLING
    feed.note(Transition(sequence, Key("run", run), state, Began(at_s=1.0), state, data, 0.0, data))


class Front:
    """The app of `create_app`, to which a test may add a route, or look behind the gate."""

    def __init__(self, coordinator: StandInCoordinator | Coordinator | None = None) -> None:
        self.routes = create_routes(cast("Coordinator", coordinator or StandInCoordinator()))
        self._app = guard(self.routes, TOKENS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)

    def open_client(self, token: str = "") -> httpx.AsyncClient:
        headers = {"authorization": f"Bearer {token}"} if token else {}
        transport = httpx.ASGITransport(self, raise_app_exceptions=False)
        return httpx.AsyncClient(transport=transport, base_url="http://coordinator", headers=headers)


class RawRequest:
    """A request to exactly this path; httpx would write methods in capitals and tidy paths up."""

    def __init__(self, method: str, path: str, token: str = "", query: str = "", **headers: str) -> None:
        fields = {**({"authorization": f"Bearer {token}"} if token else {}), **headers}
        self.scope: Scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "scheme": "http",
            "query_string": query.encode(),
            "headers": [(name.replace("_", "-").encode(), value.encode()) for name, value in fields.items()],
            "client": None,
            "server": None,
        }
        self.gone = asyncio.Event()
        self.sent: list[Message] = []
        self._asked = False

    async def receive(self) -> Message:
        """Give an empty body, and then wait until the client is gone."""
        if not self._asked:
            self._asked = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        self.sent.append(message)

    async def status(self, app: Front) -> int:
        await app(self.scope, self.receive, self.send)
        status: int = self.sent[0]["status"]
        return status
