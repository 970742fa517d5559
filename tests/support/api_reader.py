"""Somebody with the change token who asks a coordinator's interface for everything, all through a run.

Every byte of every answer is kept, as it comes over the network, and so is the stream of events from before the
run to its end.
"""

import asyncio
import json
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from hubbub.messages.manifest import Manifest
from hubbub.runtime.web_server import listen
from hubbub_coordinator.api.access import ASSETS_FOLDER, DESCRIPTION_PATH, DOCS_PATH, ICON_PATH, PAGE_PATH, Tokens
from hubbub_coordinator.api.app import answering
from hubbub_coordinator.api.pages import find_assets
from hubbub_coordinator.event_feed import EventFeed
from hubbub_coordinator.service import Coordinator

STREAM_PATH = "/api/v1/events/stream"
WAYS = {
    "/api/v1/runs/{run}/export": ["?format=json", "?format=csv&table=rounds", "?format=csv&table=costs"],
    "/api/v1/plan": ["?strategy=sec-union&parameters=61706&clients=5&servers=2"],
    "/api/v1/events": ["?limit=1000", "?after=0&limit=1000", "?run={run}&limit=1000"],
}
"""Queries of routes that need some, or answer in several ways."""
OPEN_METRICS = "application/openmetrics-text"


@dataclass(slots=True)
class ApiReader:
    """All answers, route by route, and all that came on the stream."""

    url: str
    tokens: Tokens
    manifest: Manifest
    answers: dict[str, set[bytes]] = field(default_factory=lambda: defaultdict(set))
    stream: bytearray = field(default_factory=bytearray)
    statuses: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    pages: dict[str, list[bytes]] = field(default_factory=lambda: defaultdict(list))
    """Pages and the files that they are made of: before the run, and after it."""

    def everything(self) -> Iterator[bytes]:
        """All that was ever answered, but for the pages."""
        for route in self.answers.values():
            yield from route
        yield bytes(self.stream)

    async def look_at_pages(self) -> None:
        """Take down what is there for everybody."""
        for path in (PAGE_PATH, DOCS_PATH, ICON_PATH, *(f"{ASSETS_FOLDER}{name}" for name in find_assets())):
            head, _, body = (await self._get(path)).partition(b"\r\n\r\n")
            self._note_status(path, head)
            self.pages[path].append(body)

    async def ask_everything(self) -> None:
        """Ask every route that reads, in every way that it can be asked."""
        description = await self._get(DESCRIPTION_PATH)
        self._note(DESCRIPTION_PATH, description)
        for route, methods in json.loads(description.partition(b"\r\n\r\n")[2])["paths"].items():
            if "get" in methods and route != STREAM_PATH:
                for way in self._list_ways(route):
                    self._note(route, await self._get(way))
        self._note("/metrics", await self._get("/metrics", accept=OPEN_METRICS))

    def _list_ways(self, route: str) -> Iterator[str]:
        for way in WAYS.get(route, [""]):
            path = f"{route}{way}".replace("{run}", self.manifest.run_id)
            numbers = range(1, self.manifest.rounds + 1) if "{number}" in path else [0]
            yield from (path.replace("{number}", str(number)) for number in numbers)

    def _note(self, route: str, answer: bytes) -> None:
        self._note_status(route, answer)
        self.answers[route].add(answer)

    def _note_status(self, route: str, answer: bytes) -> None:
        self.statuses[route].add(int(answer.split(maxsplit=2)[1]))

    async def keep_asking(self, news: EventFeed) -> None:
        """Ask for everything whenever something has happened."""
        happened = asyncio.Event()
        news.listen(happened.set)
        while True:
            await happened.wait()
            happened.clear()
            await self.ask_everything()

    async def follow(self, opened: asyncio.Event) -> None:
        """Read the stream until the coordinator ends it."""
        reader, writer = await self._send(STREAM_PATH, "text/event-stream")
        try:
            while data := await reader.read(2**16):
                self.stream += data
                opened.set()
        finally:
            writer.close()

    async def _get(self, path: str, *, accept: str = "*/*") -> bytes:
        reader, writer = await self._send(path, accept)
        try:
            return await reader.read()
        finally:
            writer.close()
            await writer.wait_closed()

    async def _send(self, path: str, accept: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        where = urlsplit(self.url)
        reader, writer = await asyncio.open_connection(where.hostname, where.port)
        lines = (
            f"GET {path} HTTP/1.1",
            f"Host: {where.netloc}",
            f"Authorization: Bearer {self.tokens.change}",
            f"Accept: {accept}",
            "Connection: close",
        )
        writer.write("".join(f"{line}\r\n" for line in (*lines, "")).encode())
        return reader, writer


@asynccontextmanager
async def reading_api(coordinator: Coordinator, manifest: Manifest, tokens: Tokens) -> AsyncIterator[ApiReader]:
    """Look on for as long as this is open, and once more at its end; then the stream is there to its end."""
    listener = listen("127.0.0.1", 0, advice="take another")
    opened = asyncio.Event()
    async with answering(coordinator, tokens, listener) as url:
        reader = ApiReader(url, tokens, manifest)
        await reader.look_at_pages()
        following = asyncio.create_task(reader.follow(opened))
        await opened.wait()
        asking = asyncio.create_task(reader.keep_asking(coordinator.event_feed))
        try:
            yield reader
        finally:
            asking.cancel()
            with suppress(asyncio.CancelledError):
                await asking
        await reader.ask_everything()
        await reader.look_at_pages()
    await following
