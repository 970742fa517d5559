"""Problem responses: the status of each error, and the headers that every answer has."""

import httpx
import pytest
from fastapi import Response

from hubbub.errors import (
    BrokerRefused,
    BrokerUnreachable,
    ConfigurationError,
    DataError,
    StorageFailed,
    TransportError,
    UnexpectedEvent,
    Unroutable,
)
from hubbub.runtime.runner import MachineOver, RunnerStopped
from hubbub_coordinator.api.problems import SECURITY_HEADERS
from hubbub_coordinator.service import RunExists, RunOver, UnknownRun
from support.rest_stand_in import MANIFEST, TOKENS, Front, StandInCoordinator

RUNS = "/api/v1/runs"

STATUSES: dict[type[Exception], int] = {
    **dict.fromkeys((ConfigurationError, DataError), 422),
    **dict.fromkeys((RunExists, RunOver, UnexpectedEvent, MachineOver), 409),
    UnknownRun: 404,
    **dict.fromkeys((TransportError, BrokerUnreachable, BrokerRefused, Unroutable), 503),
    **dict.fromkeys((StorageFailed, RunnerStopped), 503),
}


async def test_an_error_is_answered_with_the_status_of_its_kind(subtests: pytest.Subtests) -> None:
    for kind, status in STATUSES.items():
        with subtests.test(kind.__name__):
            app = Front(StandInCoordinator(error=kind("as things are")))
            async with app.open_client(TOKENS.change) as client:
                answer = await client.post(RUNS, content=MANIFEST.model_dump_json())

            assert (answer.status_code, answer.json()["detail"]) == (status, "as things are")
            assert answer.headers.get("retry-after") == ("2" if status == 503 else None)


def make_app() -> Front:
    app = Front()

    @app.routes.get("/broken")
    async def broken() -> None:
        raise RuntimeError("the secret detail of a bug")

    @app.routes.get("/page")
    async def page() -> Response:
        return Response("<p>", headers={"content-security-policy": "style-src 'self'"}, media_type="text/html")

    return app


APP = make_app()


async def ask(method: str, path: str, token: str) -> httpx.Response:
    async with APP.open_client(token) as client:
        return await client.request(method, path, headers={"origin": "http://elsewhere"})


ANSWERS = [
    ("GET", "/healthz", "", 200, ""),
    ("GET", RUNS, TOKENS.read, 200, ""),
    ("GET", "/metrics", TOKENS.read, 200, ""),
    ("GET", "/openapi.json", "", 200, ""),
    ("GET", f"{RUNS}/", TOKENS.read, 307, ""),
    ("GET", f"{RUNS}?token=x", "", 400, "must not be in a URL"),
    ("GET", RUNS, "", 401, "no token was sent"),
    ("GET", RUNS, "wrong", 401, "no token of this coordinator"),
    ("POST", RUNS, TOKENS.read, 403, "use the change token"),
    ("GET", "/assets/nothing.js", "", 404, "there is no file nothing.js"),
    ("GET", "/nowhere", TOKENS.read, 404, "Not Found"),
    ("GET", f"{RUNS}/{'0' * 64}", TOKENS.read, 404, "there is no run"),
    ("HEAD", RUNS, TOKENS.read, 405, ""),
    ("OPTIONS", RUNS, TOKENS.change, 405, "Method Not Allowed"),
    ("DELETE", RUNS, TOKENS.change, 405, "Method Not Allowed"),
    ("GET", f"{RUNS}/nonsense", TOKENS.read, 422, "run: "),
    ("POST", RUNS, TOKENS.change, 422, "not a manifest"),
    ("GET", "/broken", TOKENS.read, 500, "its log says why"),
]


async def test_every_answer_has_the_security_headers_and_every_problem_its_details(
    subtests: pytest.Subtests,
) -> None:
    for method, path, token, status, detail in ANSWERS:
        with subtests.test(method=method, path=path, token=token):
            answer = await ask(method, path, token)

            assert answer.status_code == status
            assert {name: answer.headers.get_list(name) for name in SECURITY_HEADERS} == {
                name: [value] for name, value in SECURITY_HEADERS.items()
            }
            assert not any(name.startswith("access-control-") for name in answer.headers)
            assert "secret detail" not in answer.text
            if status >= 400 and method != "HEAD":
                assert answer.headers["content-type"] == "application/problem+json"
                assert (answer.json()["status"], answer.json()["instance"]) == (status, path.partition("?")[0])
                assert detail in answer.json()["detail"]
            if status == 405:
                assert answer.headers["allow"] == "GET, POST"


def test_the_security_headers_allow_nothing() -> None:
    assert SECURITY_HEADERS["Content-Security-Policy"].split("; ") == [
        *("default-src 'none'", "frame-ancestors 'none'", "base-uri 'none'", "form-action 'none'")
    ]
    assert SECURITY_HEADERS["X-Content-Type-Options"] == "nosniff"
    assert SECURITY_HEADERS["Referrer-Policy"] == "no-referrer"
    assert SECURITY_HEADERS["Cross-Origin-Opener-Policy"] == "same-origin"
    assert SECURITY_HEADERS["Cross-Origin-Resource-Policy"] == "same-origin"
    assert SECURITY_HEADERS["Cache-Control"] == "no-store"
    assert all(part.endswith("=()") for part in SECURITY_HEADERS["Permissions-Policy"].split(", "))


async def test_a_page_may_have_a_policy_of_its_own() -> None:
    answer = await ask("GET", "/page", TOKENS.read)

    assert answer.headers.get_list("content-security-policy") == ["style-src 'self'"]
    assert answer.headers["x-content-type-options"] == "nosniff"
