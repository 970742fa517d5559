"""OpenAPI description of the REST API: each route's problem responses and the token that it takes."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, get_args

from fastapi import FastAPI
from pydantic import BaseModel

from hubbub.ids import WireMode
from hubbub.messages.manifest import Manifest
from hubbub.rest import EventView, ParticipantView, PhaseView, RoundView, RunView
from hubbub_coordinator.api.problems import MEDIA_TYPE, Problem
from hubbub_coordinator.api.views import PhaseState, RunDetail
from hubbub_coordinator.event_feed import FeedEventKind
from hubbub_coordinator.phases import round as rounds
from hubbub_coordinator.phases import run as runs
from hubbub_coordinator.progress import PartyState

Json = dict[str, Any]  # A piece of an OpenAPI document: JSON's values are of any type.
Responses = dict[int | str, Json]

SCHEMAS = "#/components/schemas"
SCHEME = "token"
BEARER = [{SCHEME: list[str]()}]
"""Security requirement of a route that needs a token; the gate enforces it even without this."""
MANIFEST_BODY = {
    "requestBody": {
        "required": True,
        "content": {"application/json": {"schema": {"$ref": f"{SCHEMAS}/ManifestToSubmit"}}},
    }
}

RUN_VALUES = {"state": [each.value for each in runs.State], "wire": [*get_args(WireMode)]}
VALUES: Mapping[type[BaseModel], Mapping[str, list[str]]] = {
    RunView: RUN_VALUES,
    RunDetail: RUN_VALUES,
    RoundView: {"state": [each.value for each in rounds.State]},
    PhaseView: {"state": [*get_args(PhaseState)]},
    ParticipantView: {"state": [*PartyState]},
    EventView: {"kind": [*FeedEventKind]},
}
"""Values of fields that the models leave open for older clients."""

MEANINGS = {
    HTTPStatus.BAD_REQUEST: "A token is in the URL, or there are several Authorization headers.",
    HTTPStatus.UNAUTHORIZED: "There is no token, or it is none of this coordinator's.",
    HTTPStatus.FORBIDDEN: "This takes the change token.",
    HTTPStatus.NOT_FOUND: "There is no such run, round or table.",
    HTTPStatus.CONFLICT: "The run exists already, or is not in a state in which this can be done.",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "The request's body is too long.",
    HTTPStatus.UNPROCESSABLE_ENTITY: "A parameter, a header or the manifest is wrong; the detail says which.",
    HTTPStatus.SERVICE_UNAVAILABLE: "Not now: the detail says what is missing, or that too much is asked for.",
}
NOT_MODIFIED: Responses = {
    HTTPStatus.NOT_MODIFIED.value: {
        "description": "The answer is still the one whose `ETag` the request has in `If-None-Match`.",
        "headers": {"ETag": {"schema": {"type": "string"}}},
    }
}
ALWAYS = (HTTPStatus.BAD_REQUEST, HTTPStatus.UNAUTHORIZED, HTTPStatus.REQUEST_ENTITY_TOO_LARGE)


def problems(*statuses: HTTPStatus) -> Responses:
    """Return the problem responses of a route's description."""
    return {
        status.value: {
            "description": MEANINGS[status],
            "content": {MEDIA_TYPE: {"schema": {"$ref": f"{SCHEMAS}/{Problem.__name__}"}}},
        }
        for status in statuses
    }


def reading(*statuses: HTTPStatus, also: Responses | None = None) -> Json:
    """Describe a route that reads: it takes either token, and has `also` responses that are no problems."""
    responses = problems(*ALWAYS, HTTPStatus.UNPROCESSABLE_ENTITY, *statuses)
    return {"responses": {**responses, **(also or {})}, "openapi_extra": {"security": BEARER}}


def cached(*statuses: HTTPStatus) -> Json:
    """Describe a route that reads through the response cache."""
    return reading(*statuses, also=NOT_MODIFIED)


def changing(*statuses: HTTPStatus) -> Json:
    """Describe a route that changes something: it takes the change token, and the store may be unavailable."""
    return reading(HTTPStatus.FORBIDDEN, HTTPStatus.SERVICE_UNAVAILABLE, *statuses)


class DescribedApp(FastAPI):
    """App whose description also has the token, the form of problems, and the manifest that may be submitted."""

    def openapi(self) -> Json:
        """Return the description, which is built once."""
        if self.openapi_schema is not None:
            return self.openapi_schema
        document: Json = super().openapi()
        document["components"]["securitySchemes"] = {
            SCHEME: {
                "type": "http",
                "scheme": "bearer",
                "description": "The read token reads; the change token reads and changes.",
            }
        }
        schemas = document["components"]["schemas"]
        for unused in ("HTTPValidationError", "ValidationError"):
            schemas.pop(unused, None)
        for model, fields in VALUES.items():
            for name, values in fields.items():
                schemas[model.__name__]["properties"][name]["enum"] = values
        schemas[Problem.__name__] = Problem.model_json_schema()
        # As it may be submitted: fields with a default may be left out.
        manifest = Manifest.model_json_schema(mode="validation", ref_template=f"{SCHEMAS}/{{model}}")
        schemas |= {**manifest.pop("$defs", {}), "ManifestToSubmit": manifest}
        return document
