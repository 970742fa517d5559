"""Parts that the routes share: the coordinator, run ids in paths, the response cache and turns for large views."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from hashlib import sha256
from http import HTTPStatus
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Path, Request, Response
from pydantic import BaseModel, StringConstraints
from pydantic.json_schema import SkipJsonSchema

from hubbub.ids import RUN_ID_PATTERN, RunId
from hubbub_coordinator.api.problems import Busy
from hubbub_coordinator.service import Coordinator

T = TypeVar("T")
Build = Callable[[], Awaitable[BaseModel | str]]
Answer = Callable[[RunId, Build], Awaitable[Response]]

MOST_CACHED = 256
LARGEST_CACHED = 2**18
"""Bytes of one body; at most 64 MiB are cached."""
WAIT_S = 2.0
"""Longest wait of a request for its turn; then it is refused."""

RunPath = Annotated[RunId, Path(pattern=RUN_ID_PATTERN, description="A run's id, the SHA-256 of its manifest.")]
RunName = Annotated[RunId, StringConstraints(pattern=RUN_ID_PATTERN)]

Absent = SkipJsonSchema[None]
"""The default of a parameter that was not sent; no client can send it, so the description does not name it."""


class ResponseCache:
    """Response bodies by path and query, for requests that the gate has let in.

    A body is valid until the next step of its run, and for a second at most: a party becomes late without a step.
    """

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
        self._bodies: dict[tuple[str, bytes], tuple[tuple[int, int, int], bytes]] = {}

    async def answer(self, request: Request, run: RunId, build: Build) -> Response:
        """Send a view of a run (`ANY_RUN` for all), cached or built now, or 304 if the client has it already."""
        # Read before the body is built: a step taken meanwhile may be missing from it.
        steps, forgotten = self._coordinator.count_steps(run), self._coordinator.event_feed.forgotten
        version = steps, forgotten, int(self._coordinator.now_s())
        key = request.scope["path"], request.scope["query_string"]
        cached, body = self._bodies.pop(key, (None, b""))
        if cached != version:
            view = await build()
            body = (view if isinstance(view, str) else view.model_dump_json(by_alias=True)).encode()
        if len(body) <= LARGEST_CACHED:
            self._bodies[key] = version, body
        if len(self._bodies) > MOST_CACHED:
            del self._bodies[next(iter(self._bodies))]
        # Of the body, not of the count of steps, which begins anew when the coordinator restarts.
        tag = f'"{sha256(body).hexdigest()}"'
        if tag in request.headers.get("if-none-match", ""):
            return Response(status_code=HTTPStatus.NOT_MODIFIED, headers={"ETag": tag})
        return Response(body, headers={"ETag": tag}, media_type="application/json")


class Heavy:
    """Builds large views in a thread, one at a time; at least half of the time is left to the rounds."""

    def __init__(self, count_refusal: Callable[[], None] = lambda: None) -> None:
        self._turn = asyncio.Lock()
        self._count_refusal = count_refusal

    async def build(self, work: Callable[[], T]) -> T:
        """Have something built in a thread from what does not change, or raise `Busy`."""
        try:
            async with asyncio.timeout(WAIT_S):
                await self._turn.acquire()
        except TimeoutError:
            self._count_refusal()
            raise Busy("other large views are being built; ask again in a moment") from None
        # It keeps its turn until it is built, even if whoever asked has gone.
        return await asyncio.shield(asyncio.create_task(self._build(work)))

    async def _build(self, work: Callable[[], T]) -> T:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        try:
            return await asyncio.to_thread(work)
        finally:
            loop.call_later(loop.time() - began_s, self._turn.release)


def _from_state(name: str) -> Any:
    """Declare a parameter of a route whose value is in the state of the app."""

    async def find(request: Request) -> Any:
        return getattr(request.app.state, name)

    return Depends(find)


Asked = Annotated[Coordinator, _from_state("coordinator")]
"""The coordinator that is asked."""
Turns = Annotated[Heavy, _from_state("heavy")]
"""The turns in which a route has large views built."""


async def _bind_cache(request: Request) -> Answer:
    cache: ResponseCache = request.app.state.cache
    return partial(cache.answer, request)


Answered = Annotated[Answer, Depends(_bind_cache)]
"""Answers this request through the response cache."""
