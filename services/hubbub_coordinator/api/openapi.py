"""The interface's own description, OpenAPI: which problems each route may answer, and who may ask."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from hubbub.messages.manifest import Manifest
from hubbub_coordinator.api.problems import MEDIA_TYPE, Problem

Json = dict[str, Any]  # A piece of an OpenAPI document: JSON's values are of any type.
Responses = dict[int | str, Json]

SCHEMAS = "#/components/schemas"
SCHEME = "token"
BEARER = [{SCHEME: list[str]()}]
"""What a route says that is closed; the gate closes it whether it says so or not."""
MANIFEST_BODY = {
    "requestBody": {
        "required": True,
        "content": {"application/json": {"schema": {"$ref": f"{SCHEMAS}/ManifestToSubmit"}}},
    }
}

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
    """What may be wrong, for a route's description."""
    return {
        status.value: {
            "description": MEANINGS[status],
            "content": {MEDIA_TYPE: {"schema": {"$ref": f"{SCHEMAS}/{Problem.__name__}"}}},
        }
        for status in statuses
    }


def reading(*statuses: HTTPStatus) -> Json:
    """Describe a route that reads: it takes either token."""
    responses = problems(*ALWAYS, HTTPStatus.UNPROCESSABLE_ENTITY, *statuses)
    return {"responses": responses, "openapi_extra": {"security": BEARER}}


def cached(*statuses: HTTPStatus) -> Json:
    """Describe a route that reads through the response cache."""
    described = reading(*statuses)
    return {**described, "responses": {**NOT_MODIFIED, **described["responses"]}}


def changing(*statuses: HTTPStatus) -> Json:
    """Describe a route that changes something: it takes the change token, and what it asks must be kept."""
    more = (HTTPStatus.FORBIDDEN, HTTPStatus.SERVICE_UNAVAILABLE, *statuses)
    return reading(*more)


def describe_interface(app: FastAPI) -> None:
    """Have the description made as below, once."""

    def describe() -> Json:
        if app.openapi_schema is None:
            app.openapi_schema = _describe(app)
        return app.openapi_schema

    app.openapi = describe  # type: ignore[method-assign]  # (As FastAPI's manual has it.)


def _describe(app: FastAPI) -> Json:
    document = get_openapi(
        title=app.title, version=app.version, description=app.description, routes=app.routes, tags=app.openapi_tags
    )
    components = document.setdefault("components", {})
    components["securitySchemes"] = {
        SCHEME: {
            "type": "http",
            "scheme": "bearer",
            "description": "The read token reads; the change token reads and changes.",
        }
    }
    schemas = components.setdefault("schemas", {})
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    schemas[Problem.__name__] = Problem.model_json_schema()
    schemas |= _describe_manifest()
    return document


def _describe_manifest() -> Json:
    """A manifest as it may be sent: what has a default may be left out."""
    schema = Manifest.model_json_schema(mode="validation", ref_template=f"{SCHEMAS}/{{model}}")
    return {**schema.pop("$defs", {}), "ManifestToSubmit": schema}
