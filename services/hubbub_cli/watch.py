"""`hubbub run watch`: follows a run to its end, over lost connections and restarts of the coordinator.

Past events are read as a list; then the event stream goes on after the last one. A lost connection is opened
again with the id of the last event seen, so that none is missed and none comes twice. On a terminal a picture is
drawn from the run's status, which is read again after every event; elsewhere each event is a line.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain, repeat

from rich.console import Console
from rich.live import Live

from hubbub.rest import SHOWN_DIGITS, EventView, RoundView, RunWithParties
from hubbub_cli.client import Client, CoordinatorFailed, CoordinatorUnreachable, Endpoint, read
from hubbub_cli.formatting import show_date
from hubbub_cli.run_lookup import RUNS, ask
from hubbub_cli.watch_view import Picture, draw, name_place

EVENTS = "/api/v1/events"
PAGE = 200
FRAME_S = 0.25
REFRESH_S = 0.25
"""Shortest pause between two reads of a run's status."""
REST_S = 5.0
"""Longest wait for an event before the status is read again."""
PAUSES_S = (0.5, 1.0, 2.0, 4.0)
EXIT_COMPLETED = 0
EXIT_NOT_COMPLETED = 1
EXIT_INTERRUPTED = 130


@dataclass(frozen=True, slots=True)
class Lost:
    """The connection was lost and is being reopened."""

    why: str


@dataclass(frozen=True, slots=True)
class Back:
    """The connection is back; `gap` if the coordinator no longer has all events in between."""

    gap: bool = False


News = EventView | Lost | Back


def watch_run(endpoint: Endpoint, run: str, *, as_json: bool) -> int:
    """Show a run until it ends, and return the exit code."""
    try:
        state = show_run(endpoint, run, as_json=as_json)
    except KeyboardInterrupt:
        short = run[:SHOWN_DIGITS]
        sys.stderr.write(f"\nThe run goes on. `hubbub run watch {short}` shows it again.\n")
        return EXIT_INTERRUPTED
    return EXIT_COMPLETED if state == "completed" else EXIT_NOT_COMPLETED


def show_run(endpoint: Endpoint, run: str, *, as_json: bool) -> str:
    """Show a run until it ends, and return the state in which it did."""
    console = Console()
    is_picture = console.is_terminal and not as_json
    show = partial(_show_picture, console=console) if is_picture else partial(_show_lines, as_json=as_json)
    return ask(endpoint, lambda client: show(client, run))


async def follow(client: Client, run: str, last_id: int) -> AsyncIterator[News]:
    """Yield the events after `last_id`, and when the connection is lost or back."""
    lost, pauses_s = False, _pauses_s()
    while True:
        try:
            async with client.follow(run, last_id) as messages:
                if lost:
                    yield Back()
                lost, pauses_s = False, _pauses_s()
                async for message in messages:
                    if message.kind == "reset":
                        yield Back(gap=True)
                        continue
                    event = read(EventView, json.loads(message.data))
                    last_id = event.id
                    yield event
            why = "the coordinator ended the connection"
        except (CoordinatorUnreachable, CoordinatorFailed) as error:
            why = str(error)
        if not lost:
            yield Lost(why)
        lost = True
        await asyncio.sleep(next(pauses_s))


def _pauses_s() -> Iterator[float]:
    return chain(PAUSES_S, repeat(PAUSES_S[-1]))


async def _show_lines(client: Client, run: str, *, as_json: bool) -> str:
    """Print one event per line, from the run's first to its last; notices go to standard error."""

    def write(event: EventView) -> None:
        line = f"{show_date(event.at_s)}  {name_place(event):<8}  {event.text}"
        sys.stdout.write(f"{event.model_dump_json() if as_json else line}\n")
        sys.stdout.flush()

    before = read(RunWithParties, await client.get(f"{RUNS}/{run}"))
    last_id = 0
    async for event in _read_log(client, run):
        write(event)
        last_id = event.id
        if event.ends_the_run:
            # It may have ended since its status was read: nothing more would come.
            return event.kind.removeprefix("run-")
    if before.is_over:
        return before.state
    async for news in follow(client, run, last_id):
        if not isinstance(news, EventView):
            sys.stderr.write(f"hubbub: {_describe(news)}\n")
            continue
        write(news)
        if news.ends_the_run:
            return news.kind.removeprefix("run-")
    raise AssertionError("news never end")


async def _read_log(client: Client, run: str) -> AsyncIterator[EventView]:
    """All that happened in a run so far."""
    cursor: int | None = 0
    while cursor is not None:
        page = await client.get(EVENTS, {"run": run, "limit": PAGE, "after": cursor})
        for item in page["items"]:
            yield read(EventView, item)
        cursor = page["next"]


def _describe(news: Lost | Back) -> str:
    match news:
        case Lost(why):
            return f"{why}; trying again"
        case Back(gap=True):
            return "the coordinator has forgotten some of what happened; going on with what it has"
    return "connected again; nothing was missed"


async def _show_picture(client: Client, run: str, *, console: Console) -> str:
    """Redraw the run until it ends; the last picture stays."""
    picture = Picture(*await _look(client, run))
    await _read_last_events(client, run, picture)
    changed = asyncio.Event()
    tasks = [
        asyncio.create_task(_take_news(client, run, picture, changed)),
        asyncio.create_task(_keep_looking(client, run, picture, changed)),
    ]
    with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
        try:
            while not picture.run.is_over:
                live.update(draw(picture, console), refresh=True)
                done, _ = await asyncio.wait(tasks, timeout=FRAME_S, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    # These tasks end only with an error.
                    task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        # The stream may not have sent the last events when the status says that the run is over.
        await _read_last_events(client, run, picture)
        live.update(draw(picture, console), refresh=True)
    return picture.run.state


async def _look(client: Client, run: str) -> tuple[RunWithParties, RoundView | None]:
    """The run, and the round that is open or was last."""
    detail = read(RunWithParties, await client.get(f"{RUNS}/{run}"))
    # A round that was announced a moment ago may not be there yet.
    page = await client.get(f"{RUNS}/{run}/rounds", {"after": max(0, detail.round - 1), "limit": 1})
    return detail, next((read(RoundView, item) for item in page["items"]), None)


async def _read_last_events(client: Client, run: str, picture: Picture) -> None:
    page = await client.get(EVENTS, {"run": run, "limit": PAGE})
    picture.events.clear()
    picture.events.extend(read(EventView, item) for item in page["items"])


async def _take_news(client: Client, run: str, picture: Picture, changed: asyncio.Event) -> None:
    last_id = picture.events[-1].id if picture.events else 0
    async for news in follow(client, run, last_id):
        if isinstance(news, EventView):
            picture.events.append(news)
        else:
            picture.tell(_describe(news), is_lost=isinstance(news, Lost))
        changed.set()


async def _keep_looking(client: Client, run: str, picture: Picture, changed: asyncio.Event) -> None:
    while True:
        with suppress(TimeoutError):
            async with asyncio.timeout(REST_S):
                await changed.wait()
        changed.clear()
        # If the coordinator is away, `_take_news` says so; the last status stays.
        with suppress(CoordinatorUnreachable, CoordinatorFailed):
            picture.see(*await _look(client, run), ahead_s=client.ahead_s)
        await asyncio.sleep(REFRESH_S)
