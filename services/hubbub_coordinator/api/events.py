"""Routes about what happens: as a list, and live."""

from __future__ import annotations

from functools import partial
from http import HTTPStatus
from itertools import islice
from typing import Annotated

from fastapi import APIRouter, Header, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from hubbub.ids import PARTY_ID_PATTERN
from hubbub_coordinator.api.answering import Absent, Asked, RunName, answer
from hubbub_coordinator.api.describing import SCHEMAS, reading
from hubbub_coordinator.api.stream import MEDIA_TYPE, EventStream, Streams
from hubbub_coordinator.telling import Item, NewsKind

MOST_EVENTS = 1_000
LARGEST_ID = 2**63

router = APIRouter(tags=["events"])

RunFilter = Annotated[RunName | Absent, Query(description="Only what happens in this run.")]
EventId = Annotated[int, Field(ge=0, le=LARGEST_ID)]
PartyName = Annotated[str, StringConstraints(pattern=PARTY_ID_PATTERN)]
WrittenId = Annotated[str, StringConstraints(pattern=r"^[0-9]{0,18}$")]
"""Empty where a browser has none yet."""


class EventView(BaseModel):
    """One thing that happened."""

    model_config = ConfigDict(from_attributes=True)

    id: int
    """Goes up, stays the same across restarts of the coordinator, and never means something else."""
    at_s: float
    run: str
    round: int
    """0 where it is about the run as a whole."""
    phase: str
    kind: NewsKind
    party: str
    """Who did it, or to whom it happened; empty where it is about nobody in particular."""
    text: str
    state: str
    """Of the run or the round, after it."""


class EventPage(BaseModel):
    """What happened, oldest first."""

    items: list[EventView]
    next: int | None
    """To be sent as `after` for what followed; null if nothing has yet."""
    reset: bool
    """Whether something is missing before the first: it was too long ago, or `after` is not known here."""


@router.get("/api/v1/events", response_model=EventPage, **reading(HTTPStatus.NOT_FOUND))
async def list_events(
    coordinator: Asked,
    run: RunFilter = None,
    limit: Annotated[int, Query(ge=1, le=MOST_EVENTS)] = 200,
    after: Annotated[
        EventId | Absent, Query(description="Only what happened after this id; the newest if not given.")
    ] = None,
    kind: Annotated[list[NewsKind] | Absent, Query(description="Only events of these kinds.")] = None,
    party: Annotated[PartyName | Absent, Query(description="Only of this party.")] = None,
) -> Response:
    """What happened: the newest, or what followed on an event."""
    news = coordinator.news
    if run is not None:
        coordinator.check_run(run)
    fits = partial(_fits, run=run, kinds=kind, party=party)
    if after is None:
        newest = list(islice(filter(fits, news.newest_first(run)), limit))
        return answer(EventPage(items=_view(newest[::-1]), next=None, reset=False))
    reset = not news.knows(after)
    found = list(islice(filter(fits, news.since(news.forgotten if reset else after)), limit + 1))
    more = len(found) > limit
    return answer(EventPage(items=_view(found[:limit]), next=found[limit - 1].id if more else None, reset=reset))


def _view(items: list[Item]) -> list[EventView]:
    return [EventView.model_validate(item) for item in items]


def _fits(item: Item, *, run: str | None, kinds: list[NewsKind] | None, party: str | None) -> bool:
    return (
        (run is None or item.run == run)
        and (kinds is None or item.kind in kinds)
        and (party is None or item.party == party)
    )


STREAMING = reading(HTTPStatus.NOT_FOUND)
SENT = {
    "type": "object",
    "required": ["event", "data"],
    "properties": {
        "id": {"type": "string", "pattern": "^[0-9]+$"},
        "event": {"type": "string", "enum": [*NewsKind, "reset"]},
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
    responses={**STREAMING["responses"], HTTPStatus.OK.value: STREAMED},
    openapi_extra=STREAMING["openapi_extra"],
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
    """What happens, as it happens, until the reader hangs up."""
    if run is not None:
        coordinator.check_run(run)
    streams: Streams = request.app.state.streams
    return EventStream(streams, after=int(last_event_id) if last_event_id else None, run=run or "")
