"""What every route uses: the coordinator it speaks for, ids in paths, and answers that are written once."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Annotated

from fastapi import Depends, Path, Request, Response
from pydantic import BaseModel, StringConstraints
from pydantic.json_schema import SkipJsonSchema

from hubbub.ids import RUN_ID_PATTERN, RunId
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
