"""What every route uses: the coordinator it speaks for, ids in paths, and answers that are written once.

Views that take long to build: in a thread and one at a time, because rounds go on meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Annotated, TypeVar

from fastapi import Depends, Path, Request, Response
from pydantic import BaseModel, StringConstraints
from pydantic.json_schema import SkipJsonSchema

from hubbub.ids import RUN_ID_PATTERN, RunId
from hubbub_coordinator.api.problems import Busy
from hubbub_coordinator.service import Coordinator

RunPath = Annotated[RunId, Path(pattern=RUN_ID_PATTERN, description="A run's id, the SHA-256 of its manifest.")]
RunName = Annotated[RunId, StringConstraints(pattern=RUN_ID_PATTERN)]


async def _find_coordinator(request: Request) -> Coordinator:
    coordinator: Coordinator = request.app.state.coordinator
    return coordinator


Absent = SkipJsonSchema[None]
"""What a parameter is that was not sent; nobody can send it, so the description does not name it."""
Asked = Annotated[Coordinator, Depends(_find_coordinator)]
"""The coordinator that is asked."""


def answer(
    view: BaseModel, status: HTTPStatus = HTTPStatus.OK, headers: Mapping[str, str] | None = None
) -> Response:
    """Write a view as JSON; it is right by its type, so nothing is checked a second time."""
    content = view.model_dump_json(by_alias=True)
    return Response(content, status, headers, media_type="application/json")


T = TypeVar("T")

WAIT_S = 2.0
"""How long a request waits for its turn before it is sent away."""


class Heavy:
    """Gives such views their turn; at least half of the time belongs to nobody, so that rounds have it."""

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


async def _find_heavy(request: Request) -> Heavy:
    heavy: Heavy = request.app.state.heavy
    return heavy


Turns = Annotated[Heavy, Depends(_find_heavy)]
"""Where a route has a large view built."""
