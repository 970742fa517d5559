"""Routes of the event feed: as a list, and live as server-sent events for hundreds of readers.

There is no queue per reader. Each reader has a position in the feed and, when it is woken, writes all events
after it. A slow reader waits for its own connection alone, and finds more events next time. Readers are woken
together, a moment after an event: all events of that moment are one write for each.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from functools import partial
from http import HTTPStatus
from itertools import islice
from typing import Annotated

from fastapi import APIRouter, Header, Query, Request, Response
from pydantic import BaseModel, Field, StringConstraints
from starlette.types import Receive, Scope, Send

from hubbub.ids import PARTY_ID_PATTERN
from hubbub.rest import EventView
from hubbub_coordinator.api.dependencies import Absent, Answered, Asked, RunName
from hubbub_coordinator.api.openapi import SCHEMAS, cached, reading
from hubbub_coordinator.event_feed import EventFeed, FeedEvent, FeedEventKind
from hubbub_coordinator.service import ANY_RUN

KEEP_ALIVE_S = 15.0
"""Silence after which a stream sends a keep-alive; up to half as much later, since one timer serves all."""
KEEP_ALIVE = b": keep-alive\n\n"
RESET = b"event: reset\ndata: {}\n\n"
MEDIA_TYPE = "text/event-stream"

WAKE_S = 0.05
WAKE_S_PER_READER = 0.004
"""Waking readers costs time: 10 are woken up to ten times a second, 500 every two seconds."""
WOKEN_AT_ONCE = 50
"""Readers woken in one turn of the event loop; rounds go on in between."""
MOST_AT_ONCE = 500
"""Events in one write, so that a reader with much to catch up on waits for its connection in between."""


MOST_SHARED = 64
"""Cached writes, by position; cleared by the next event."""


class Streams:
    """Readers of the live event stream."""

    def __init__(self, news: EventFeed) -> None:
        self.news = news
        self._readers: set[asyncio.Event] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._keeper: asyncio.TimerHandle | None = None
        self._written: dict[tuple[int, str], tuple[bytes, int]] = {}
        news.listen(self._note)

    def __len__(self) -> int:
        return len(self._readers)

    def admit(self) -> asyncio.Event:
        """Add a reader; its event is set at first, and whenever there may be something to write."""
        reader = asyncio.Event()
        reader.set()
        self._readers.add(reader)
        if self._keeper is None:
            self._keep_awake()
        return reader

    def _keep_awake(self) -> None:
        """Wake all readers for their keep-alive: one timer for all, and none without readers."""
        self._keeper = None
        if self._readers and not self.news.over:
            self._wake_some(list(self._readers))
            self._keeper = asyncio.get_running_loop().call_later(KEEP_ALIVE_S / 2, self._keep_awake)

    def dismiss(self, reader: asyncio.Event) -> None:
        """Remove a reader."""
        self._readers.discard(reader)

    def _note(self) -> None:
        """Schedule a wake-up of all readers after a new event."""
        self._written.clear()
        if self.news.over:
            self._wake()
        elif self._readers and self._timer is None:
            delay_s = WAKE_S + WAKE_S_PER_READER * len(self._readers)
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._wake)

    def _wake(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._wake_some(list(self._readers))

    def _wake_some(self, readers: list[asyncio.Event]) -> None:
        for reader in readers[:WOKEN_AT_ONCE]:
            reader.set()
        if len(readers) > WOKEN_AT_ONCE:
            asyncio.get_running_loop().call_soon(self._wake_some, readers[WOKEN_AT_ONCE:])

    def write(self, after: int, run: str) -> tuple[bytes, int]:
        """Return the encoded events after a position, of one run or (if empty) of all, and the next position.

        Readers that are woken together are mostly at the same position, so the bytes are cached.
        """
        found = self._written.get((after, run))
        if found is None:
            found = self._write(after, run)
            if len(self._written) < MOST_SHARED:
                self._written[after, run] = found
        return found

    def _write(self, after: int, run: str) -> tuple[bytes, int]:
        reset = b"" if self.news.knows(after) else RESET
        items = self.news.since(self.news.forgotten if reset else after)[:MOST_AT_ONCE]
        frames = b"".join(item.frame for item in items if not run or item.run == run)
        return reset + frames, items[-1].id if items else self.news.newest


class EventStream(Response):
    """Response that streams events until the reader disconnects or the coordinator ends."""

    media_type = MEDIA_TYPE

    def __init__(self, streams: Streams, *, after: int | None, run: str) -> None:
        self._streams = streams
        self._run = run
        self._place = streams.news.newest if after is None else after
        self._silent_since_s = 0.0
        self.status_code = HTTPStatus.OK
        self.background = None
        # The start position: a reader that is cut off before the first event can resume from there.
        self.init_headers({"Last-Event-ID": str(self._place), "X-Accel-Buffering": "no"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Stream until the end."""
        del scope
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        reader = self._streams.admit()
        gone = asyncio.create_task(_wait_until_gone(receive))
        gone.add_done_callback(partial(_let_go, reader))
        try:
            await self._send(send, KEEP_ALIVE)
            while not gone.done() and not self._streams.news.over:
                await self._send_next(reader, send)
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            self._streams.dismiss(reader)
            gone.cancel()

    async def _send_next(self, reader: asyncio.Event, send: Send) -> None:
        """Wait until woken, then send new events or, after a long silence, a keep-alive."""
        await reader.wait()
        reader.clear()
        text, self._place = self._streams.write(self._place, self._run)
        if self._place < self._streams.news.newest:
            reader.set()
        if text:
            await self._send(send, text)
        elif asyncio.get_running_loop().time() >= self._silent_since_s + KEEP_ALIVE_S:
            await self._send(send, KEEP_ALIVE)

    async def _send(self, send: Send, text: bytes) -> None:
        await send({"type": "http.response.body", "body": text, "more_body": True})
        self._silent_since_s = asyncio.get_running_loop().time()


async def _wait_until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _let_go(reader: asyncio.Event, gone: asyncio.Task[None]) -> None:
    """Wake a reader that has disconnected, or whose request can no longer be read."""
    if not gone.cancelled():
        gone.exception()
    reader.set()


MOST_EVENTS = 1_000
LARGEST_ID = 2**63

router = APIRouter(tags=["events"])

RunFilter = Annotated[RunName | Absent, Query(description="Only what happens in this run.")]
EventId = Annotated[int, Field(ge=0, le=LARGEST_ID)]
PartyName = Annotated[str, StringConstraints(pattern=PARTY_ID_PATTERN)]
WrittenId = Annotated[str, StringConstraints(pattern=r"^[0-9]{0,18}$")]
"""Last-Event-ID as text; empty if a browser has none yet."""


class EventPage(BaseModel):
    """Events, oldest first."""

    items: list[EventView]
    next: int | None
    """Send it as `after` to get the next page; null if there is none."""
    reset: bool
    """True if events before the first are missing: they are no longer held, or `after` is not known here."""


@router.get("/api/v1/events", response_model=EventPage, **cached(HTTPStatus.NOT_FOUND))
async def list_events(
    coordinator: Asked,
    answer: Answered,
    run: RunFilter = None,
    limit: Annotated[int, Query(ge=1, le=MOST_EVENTS)] = 200,
    after: Annotated[
        EventId | Absent, Query(description="Only what happened after this id; the newest if not given.")
    ] = None,
    kind: Annotated[list[FeedEventKind] | Absent, Query(description="Only events of these kinds.")] = None,
    party: Annotated[PartyName | Absent, Query(description="Only of this party.")] = None,
) -> Response:
    """Events: the newest, or those after a given one."""
    feed = coordinator.event_feed

    def find(items: Iterable[FeedEvent], most: int) -> list[EventView]:
        fitting = (
            EventView.model_validate(item)
            for item in items
            if run in {None, item.run} and party in {None, item.party} and (kind is None or item.kind in kind)
        )
        return list(islice(fitting, most))

    async def build() -> EventPage:
        if run is not None:
            coordinator.check_run(run)
        if after is None:
            return EventPage(items=find(feed.newest_first(run), limit)[::-1], next=None, reset=False)
        reset = not feed.knows(after)
        found = find(feed.since(feed.forgotten if reset else after), limit + 1)
        more = len(found) > limit
        return EventPage(items=found[:limit], next=found[limit - 1].id if more else None, reset=reset)

    return await answer(run or ANY_RUN, build)


SENT = {
    "type": "object",
    "required": ["event", "data"],
    "properties": {
        "id": {"type": "string", "pattern": "^[0-9]+$"},
        "event": {"type": "string", "enum": [*FeedEventKind, "reset"]},
        "data": {
            "type": "string",
            "contentMediaType": "application/json",
            "contentSchema": {
                "anyOf": [{"$ref": f"{SCHEMAS}/{EventView.__name__}"}, {"type": "object", "maxProperties": 0}]
            },
        },
    },
}
"""One event of a stream; `reset` alone has neither an id nor data."""
STREAMED = {
    "description": (
        "Events in the format of server-sent events: `id`, the event's kind and an EventView as its data. A"
        " comment comes every 15 seconds. `reset` says that something before was forgotten: read the lists again."
    ),
    "content": {MEDIA_TYPE: {"itemSchema": SENT}},
    "headers": {"Last-Event-ID": {"schema": {"type": "string"}, "description": "Where the stream begins."}},
}


@router.get(
    "/api/v1/events/stream",
    response_class=Response,
    **reading(HTTPStatus.NOT_FOUND, also={HTTPStatus.OK.value: STREAMED}),
)
async def stream_events(
    request: Request,
    coordinator: Asked,
    run: RunFilter = None,
    last_event_id: Annotated[
        WrittenId | Absent,
        Header(alias="Last-Event-ID", description="Go on after this event; from now on if not given."),
    ] = None,
) -> Response:
    """Stream events live until the reader disconnects."""
    if run is not None:
        coordinator.check_run(run)
    streams: Streams = request.app.state.streams
    return EventStream(streams, after=int(last_event_id) if last_event_id else None, run=run or "")
