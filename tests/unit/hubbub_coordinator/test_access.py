"""The gate before the REST interface: who gets in, what a refusal says, and what no answer is without."""

import hmac
import logging
from collections.abc import AsyncIterator, Iterable
from itertools import product
from pathlib import Path
from typing import cast

import httpx
import pytest
from fastapi import Request, Response
from starlette.routing import Route, Router
from starlette.types import Message

from hubbub.errors import ConfigurationError
from hubbub.ids import RunId
from hubbub.messages.manifest import Manifest
from hubbub.runtime.telemetry import Counters
from hubbub_coordinator.api.access import MAX_BODY_BYTES, Right, Tokens, read_tokens
from hubbub_coordinator.api.problems import SECURITY_HEADERS
from hubbub_coordinator.event_feed import EventFeed
from hubbub_coordinator.service import Coordinator, Page, UnknownRun
from support.aio import aio
from support.front import Front

READ, CHANGE = "read-token-of-the-tests-0123456789", "change-token-of-the-tests-9876543210"
TOKENS = Tokens(read=READ, change=CHANGE)
RUNS = "/api/v1/runs"
UNKNOWN = f"{RUNS}/{'0' * 64}"
CANCEL = f"{UNKNOWN}/cancel"


class EmptyCoordinator:
    """Has no runs, and remembers what it was told to cancel."""

    def __init__(self) -> None:
        self.counters = Counters()
        self.event_feed = EventFeed()
        self.runner = self
        self.cancelled: list[RunId] = []

    def now_s(self) -> float:
        return 0.0

    def count_steps(self, run: RunId) -> int:
        del run
        return 0

    def page_runs(self, **_: object) -> Page:
        return Page((), more=False, total=0)

    async def look(self, run: RunId) -> None:
        raise UnknownRun(f"there is no run {run}")

    def find_problems(self) -> tuple[str, ...]:
        return ("there is no connection to the broker",)

    def find_stall(self) -> str:
        return ""

    async def submit(self, manifest: Manifest) -> RunId:
        return manifest.run_id

    async def cancel(self, run: RunId) -> None:
        self.cancelled.append(run)


def make_app(coordinator: EmptyCoordinator | None = None) -> Front:
    return Front(cast("Coordinator", coordinator or EmptyCoordinator()), TOKENS)


async def ask(
    method: str,
    path: str,
    *offers: str,
    app: Front | None = None,
    headers: dict[str, str] | None = None,
    content: bytes | AsyncIterator[bytes] | None = None,
) -> httpx.Response:
    """Send one request with these Authorization headers."""
    transport = httpx.ASGITransport(app or make_app(), raise_app_exceptions=False)
    fields = [*(("authorization", offer) for offer in offers), *(headers or {}).items()]
    async with httpx.AsyncClient(transport=transport, base_url="http://coordinator") as client:
        return await client.request(method, path, headers=fields, content=content)


def assert_problem(answer: httpx.Response, status: int, saying: str) -> None:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["status"] == status
    assert saying in answer.json()["detail"]


# The two tokens -------------------------------------------------------------------------------------------


@aio
async def test_without_a_token_the_answer_asks_for_one() -> None:
    answer = await ask("GET", RUNS)

    assert_problem(answer, 401, "Authorization: Bearer")
    assert answer.headers["www-authenticate"] == 'Bearer realm="hubbub"'


@aio
async def test_either_token_reads_however_the_scheme_is_written(subtests: pytest.Subtests) -> None:
    for path, scheme, token in product(
        [RUNS, "/metrics", "/openapi.json"], ["Bearer", "bearer", "BEARER", "Bearer "], [READ, CHANGE]
    ):
        with subtests.test(path=path, scheme=scheme, token=token):
            assert (await ask("GET", path, f"{scheme} {token}")).status_code == 200


@aio
async def test_a_wrong_token_is_refused_and_said_to_be_wrong(subtests: pytest.Subtests) -> None:
    for token in [
        "",
        READ[:-1],
        f"{READ}x",
        f"{READ} {CHANGE}",
        f'"{READ}"',
        READ.upper(),
        READ.replace("o", "ö"),
        "\xff" * 40,
        "x" * 100_000,
    ]:
        with subtests.test(token[:40]):
            transport = httpx.ASGITransport(make_app())
            async with httpx.AsyncClient(transport=transport, base_url="http://coordinator") as client:
                for method, path in (("GET", RUNS), ("POST", RUNS)):
                    headers = [(b"authorization", f"Bearer {token}".encode("latin-1"))]
                    answer = await client.request(method, path, headers=headers)
                    assert_problem(answer, 401, "no token of this coordinator")
                    assert answer.headers["www-authenticate"] == 'Bearer realm="hubbub", error="invalid_token"'


@aio
async def test_only_the_bearer_scheme_is_known(subtests: pytest.Subtests) -> None:
    for offer in ["Basic cmVhZDpyZWFk", READ, "Bearer", f"Bearer{READ}", f"Token {READ}", ""]:
        with subtests.test(offer):
            assert (await ask("GET", RUNS, offer)).status_code == 401


@aio
async def test_whatever_is_not_reading_needs_the_change_token(subtests: pytest.Subtests) -> None:
    for path, method in product(
        [RUNS, CANCEL, "/healthz", "/nowhere"],
        ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND", "get"],
    ):
        with subtests.test(method=method, path=path):
            coordinator = EmptyCoordinator()
            app = make_app(coordinator)

            # Not through httpx, which writes methods in capitals.
            for token, status in ((None, 401), (READ, 403)):
                start, _ = await call(app, method, path, token)
                assert start["status"] == status
            assert coordinator.cancelled == []


@aio
async def test_the_read_token_is_told_that_it_only_reads() -> None:
    answer = await ask("POST", CANCEL, f"Bearer {READ}")

    assert_problem(answer, 403, "use the change token")
    assert 'error="insufficient_scope"' in answer.headers["www-authenticate"]


@aio
async def test_a_flood_of_refused_requests_is_a_few_lines(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    app = make_app()

    for _ in range(100):
        await ask("GET", RUNS, app=app)
    await ask("POST", CANCEL, f"Bearer {READ}", app=app)

    assert len(caplog.messages) == 8
    assert caplog.messages[-2].endswith("Authorization: Bearer TOKEN' (64 times so far)")
    assert "the read token changes nothing" in caplog.messages[-1], "another kind is counted on its own"


@aio
async def test_the_change_token_changes() -> None:
    coordinator = EmptyCoordinator()

    await ask("POST", CANCEL, f"Bearer {CHANGE}", app=make_app(coordinator))

    assert coordinator.cancelled == ["0" * 64]


@aio
async def test_several_authorization_headers_are_refused(subtests: pytest.Subtests) -> None:
    for offers in [(READ, READ), (READ, CHANGE), ("wrong", CHANGE), (CHANGE, "")]:
        with subtests.test(offers=offers):
            answer = await ask("GET", RUNS, *(f"Bearer {offer}" for offer in offers))

            assert_problem(answer, 400, "several Authorization headers")


@aio
async def test_a_token_in_the_url_is_refused_and_told_where_it_belongs(subtests: pytest.Subtests) -> None:
    for offers, query, path in product(
        [(), (f"Bearer {CHANGE}",)],
        ["token={}", "access_token={}", "Access_Token={}", "a=b&%74oken={}", "token"],
        [RUNS, "/healthz", "/nowhere"],
    ):
        with subtests.test(path=path, query=query, offers=offers):
            answer = await ask("GET", f"{path}?{query.format(READ)}", *offers)

            assert_problem(answer, 400, "Authorization: Bearer")
            assert READ not in answer.text


@aio
async def test_a_url_never_opens_anything(subtests: pytest.Subtests) -> None:
    for query in [f"key={CHANGE}", CHANGE, f"a=Bearer+{CHANGE}"]:
        with subtests.test(query):
            assert (await ask("GET", f"{RUNS}?{query}")).status_code == 401


@aio
async def test_the_real_tokens_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[int, int]] = []
    compare = hmac.compare_digest

    def watch(left: bytes, right: bytes) -> bool:
        compared.append((len(left), len(right)))
        return compare(left, right)

    monkeypatch.setattr(hmac, "compare_digest", watch)
    for offered, right in ((READ, Right.READ), (CHANGE, Right.CHANGE), ("", None), ("ö" * 9_999, None)):
        compared.clear()
        assert TOKENS.recognise(offered) is right
        assert compared == [(32, 32), (32, 32)], "both, always, and digests, which all have one length"


# Nothing is beside the gate ------------------------------------------------------------------------------


async def call(app: Front, method: str, path: str, token: str | None = None) -> list[Message]:
    """What the application sends for exactly this method."""
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    headers = [(b"authorization", f"Bearer {token}".encode())] if token else []
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "scheme": "http",
        "query_string": b"",
        "headers": headers,
        "client": None,
        "server": None,
    }
    await app(scope, receive, send)
    return sent


def find_routes(app: Front) -> Iterable[Route]:
    """Every route, also of routers that were put into others."""
    waiting: list[object] = list(app.routes.routes)
    while waiting:
        route = waiting.pop()
        inner = getattr(route, "original_router", None) or getattr(route, "app", None)
        if isinstance(route, Route):
            yield route
        else:
            assert isinstance(inner, Router), f"this test does not know how to knock at {route}"
            waiting += inner.routes


def paths_and_methods(app: Front) -> Iterable[tuple[str, str]]:
    for route in find_routes(app):
        path = route.path.replace("{run}", "0" * 64).replace("{number}", "1").replace("{name}", "x")
        assert "{" not in path, f"this test does not know what to put into {path}"
        for method in {"HEAD", "OPTIONS"} | (route.methods or set()):
            yield path, method


OPEN = {"/healthz", "/readyz", "/", "/docs", "/openapi.json", "/favicon.ico", "/assets/x"}


@aio
async def test_every_route_is_closed_but_those_that_hold_nothing_of_any_run() -> None:
    app = make_app()
    closed: set[str] = set()
    opened: set[str] = set()
    for path, method in paths_and_methods(app):
        start, *_ = await call(app, method, path)
        is_open = path in OPEN and method in {"GET", "HEAD"}
        assert (start["status"] != 401) == is_open, (method, path)
        (opened if is_open else closed).add(path)
    assert opened == OPEN
    assert {RUNS, UNKNOWN, CANCEL, "/metrics", "/api/v1/about", "/api/v1/events/stream"} <= closed


@aio
async def test_a_route_that_is_added_later_is_closed_too() -> None:
    app = make_app()
    app.routes.add_api_route("/later", lambda: "secret", methods=["GET", "POST"])

    assert [(await ask(method, "/later", app=app)).status_code for method in ("GET", "POST")] == [401, 401]
    assert (await ask("GET", "/later", f"Bearer {READ}", app=app)).json() == "secret"
    assert (await ask("POST", "/later", f"Bearer {READ}", app=app)).status_code == 403


@aio
async def test_no_websocket_is_opened_whatever_it_brings() -> None:
    app = make_app()

    @app.routes.websocket("/live")
    async def live() -> None:
        pytest.fail("it was let in")

    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "websocket.connect"}

    async def send(message: Message) -> None:
        sent.append(message)

    headers = [(b"authorization", f"Bearer {CHANGE}".encode())]
    await app({"type": "websocket", "path": "/live", "query_string": b"", "headers": headers}, receive, send)

    assert [message["type"] for message in sent] == ["websocket.close"]


@aio
async def test_without_a_token_nobody_learns_which_paths_there_are(subtests: pytest.Subtests) -> None:
    for method, offers in product(["GET", "POST", "DELETE"], [(), ("Bearer wrong",)]):
        with subtests.test(method=method, offers=offers):
            known = await ask(method, RUNS, *offers)
            unknown = await ask(method, "/not/it", *offers)

            assert known.status_code == unknown.status_code == 401
            assert known.headers.keys() == unknown.headers.keys()
            assert {**known.json(), "instance": ""} == {**unknown.json(), "instance": ""}


@aio
async def test_only_the_very_paths_that_are_open_are_open(subtests: pytest.Subtests) -> None:
    for path in [
        *("/healthz/", "//healthz", "/healthz/x", "/HEALTHZ", "/x/../healthz", "/healthz\n"),
        *("", "//", "/docs/", "/docs/oauth2-redirect", "/openapi.json/", "/assets", "/x/assets/x", "/Assets/x"),
    ]:
        with subtests.test(path=path):
            # Not through httpx, which tidies paths up.
            for each, status in (("/healthz", 200), (path, 401)):
                start, _ = await call(make_app(), "GET", each)
                assert start["status"] == status


@aio
async def test_what_is_under_assets_is_a_list_of_names_and_no_folder(subtests: pytest.Subtests) -> None:
    for path in [
        "/assets/../access.py",
        "/assets/..%2faccess.py",
        "/assets//etc/passwd",
        "/assets/",
        "/assets/x/y",
    ]:
        with subtests.test(path):
            start, _ = await call(make_app(), "GET", path)

            assert start["status"] == 404


@aio
async def test_the_host_header_opens_nothing_and_breaks_nothing(subtests: pytest.Subtests) -> None:
    for host in ["x/healthz?", "[", "x#/healthz", "coordinator/healthz"]:
        with subtests.test(host):
            assert_problem(await ask("GET", RUNS, headers={"host": host}), 401, "no token was sent")


# What refusals leave behind ------------------------------------------------------------------------------


@aio
async def test_a_refusal_is_logged_without_what_was_offered(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    guess = "a-guess-that-nobody-should-read-again"

    await ask("GET", RUNS)
    await ask("GET", RUNS, f"Bearer {guess}")
    await ask("POST", RUNS, f"Bearer {READ}")
    await ask("GET", f"/{guess}?token={guess}")

    lines = [record.getMessage() for record in caplog.records if record.name == "hubbub_coordinator.api.access"]
    reasons = ["no token was sent", "no token of this", "the read token", "must not be in a URL"]
    assert [reason in line for reason, line in zip(reasons, lines, strict=True)] == [True] * 4
    assert all("127.0.0.1" in line for line in lines)
    assert guess not in str(lines)
    assert READ not in caplog.text


# Headers -------------------------------------------------------------------------------------------------


def make_breaking_app() -> Front:
    app = make_app()

    @app.routes.get("/broken")
    async def broken() -> None:
        raise RuntimeError("the secret detail of a bug")

    return app


ANY_ANSWER = [
    ("GET", "/healthz", (), 200),
    ("GET", RUNS, (f"Bearer {READ}",), 200),
    ("GET", "/metrics", (f"Bearer {READ}",), 200),
    ("GET", "/openapi.json", (), 200),
    ("GET", "/assets/nothing.js", (), 404),
    ("HEAD", RUNS, (f"Bearer {READ}",), 405),
    ("OPTIONS", RUNS, (f"Bearer {CHANGE}",), 405),
    ("GET", f"{RUNS}/", (f"Bearer {READ}",), 307),
    ("GET", f"{RUNS}?token=x", (), 400),
    ("GET", RUNS, (), 401),
    ("GET", RUNS, ("Bearer wrong",), 401),
    ("POST", RUNS, (f"Bearer {READ}",), 403),
    ("GET", "/nowhere", (f"Bearer {READ}",), 404),
    ("GET", UNKNOWN, (f"Bearer {READ}",), 404),
    ("GET", f"{RUNS}/nonsense", (f"Bearer {READ}",), 422),
    ("POST", RUNS, (f"Bearer {CHANGE}",), 422),
    ("GET", "/broken", (f"Bearer {READ}",), 500),
]


@aio
async def test_every_answer_has_the_security_headers(subtests: pytest.Subtests) -> None:
    for method, path, offers, status in ANY_ANSWER:
        with subtests.test(method=method, path=path, offers=offers):
            answer = await ask(
                method, path, *offers, app=make_breaking_app(), headers={"origin": "http://elsewhere"}
            )

            assert answer.status_code == status
            assert {name: answer.headers.get_list(name) for name in SECURITY_HEADERS} == {
                name: [value] for name, value in SECURITY_HEADERS.items()
            }
            assert not any(name.startswith("access-control-") for name in answer.headers)
            if status >= 400 and method != "HEAD":
                assert_problem(answer, status, "")


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


@aio
async def test_what_is_not_found_or_not_allowed_says_so_to_who_may_know() -> None:
    assert_problem(await ask("GET", "/nowhere", f"Bearer {READ}"), 404, "Not Found")
    answer = await ask("DELETE", RUNS, f"Bearer {CHANGE}")
    assert_problem(answer, 405, "Method Not Allowed")
    assert "GET" in answer.headers["allow"] or "POST" in answer.headers["allow"]


@aio
async def test_a_bug_shows_nothing_of_itself() -> None:
    answer = await ask("GET", "/broken", f"Bearer {READ}", app=make_breaking_app())

    assert_problem(answer, 500, "its log says why")
    assert "secret detail" not in answer.text


@aio
async def test_a_page_may_have_a_policy_of_its_own() -> None:
    app, policy = make_app(), "default-src 'none'; style-src 'self'"

    @app.routes.get("/page")
    async def page() -> Response:
        return Response("<p>", headers={"content-security-policy": policy}, media_type="text/html")

    answer = await ask("GET", "/page", f"Bearer {READ}", app=app)

    assert answer.headers.get_list("content-security-policy") == [policy]
    assert answer.headers["x-content-type-options"] == "nosniff"


# The length of a request ---------------------------------------------------------------------------------


def make_measuring_app() -> Front:
    app = make_app()

    @app.routes.post("/measure")
    async def measure(request: Request) -> int:
        return len(await request.body())

    @app.routes.post("/parse")
    async def parse(document: dict[str, str]) -> int:
        return len(document)

    return app


class Pieces:
    """A body of so many pieces of 64 KiB, of unknown length; counts how many were asked for."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.taken = 0

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for _ in range(self.count):
            self.taken += 1
            yield bytes(2**16)


ALLOWED_PIECES = MAX_BODY_BYTES // 2**16


@aio
async def test_a_body_of_the_greatest_length_is_taken() -> None:
    app, pieces = make_measuring_app(), Pieces(ALLOWED_PIECES)

    whole = await ask("POST", "/measure", f"Bearer {CHANGE}", app=app, content=bytes(MAX_BODY_BYTES))
    streamed = await ask("POST", "/measure", f"Bearer {CHANGE}", app=app, content=aiter(pieces))

    assert whole.json() == streamed.json() == MAX_BODY_BYTES


@aio
async def test_a_body_that_says_it_is_too_long_is_not_read(subtests: pytest.Subtests) -> None:
    for path in [RUNS, CANCEL, "/measure", "/parse", "/nowhere"]:
        with subtests.test(path):
            coordinator, pieces = EmptyCoordinator(), Pieces(1)
            app = make_app(coordinator)
            headers = {"content-length": str(MAX_BODY_BYTES + 1)}

            answer = await ask("POST", path, f"Bearer {CHANGE}", app=app, headers=headers, content=aiter(pieces))

            assert_problem(answer, 413, f"{MAX_BODY_BYTES} bytes")
            assert answer.headers["cache-control"] == "no-store"
            assert pieces.taken == 0
            assert coordinator.cancelled == []


@aio
async def test_a_body_that_turns_out_too_long_is_read_no_further(subtests: pytest.Subtests) -> None:
    for path in [RUNS, "/measure", "/parse"]:
        with subtests.test(path):
            app, pieces = make_measuring_app(), Pieces(10 * ALLOWED_PIECES)

            answer = await ask("POST", path, f"Bearer {CHANGE}", app=app, content=aiter(pieces))

            assert_problem(answer, 413, f"{MAX_BODY_BYTES} bytes")
            assert pieces.taken == ALLOWED_PIECES + 1


@pytest.mark.parametrize(("offers", "status"), [((), 401), ((f"Bearer {READ}",), 403)])
@pytest.mark.parametrize("headers", [{}, {"content-length": str(MAX_BODY_BYTES + 1)}])
@aio
async def test_without_the_change_token_no_body_is_looked_at(
    headers: dict[str, str], offers: tuple[str, ...], status: int
) -> None:
    pieces = Pieces(1)

    answer = await ask("POST", RUNS, *offers, headers=headers, content=aiter(pieces))

    assert answer.status_code == status
    assert pieces.taken == 0


# Tokens and their files ----------------------------------------------------------------------------------


def test_tokens_that_protect_nothing_are_refused_unseen(subtests: pytest.Subtests) -> None:
    for read, change, complaint in [
        (READ[:31], CHANGE, "read token is shorter than 32"),
        (READ, "", "change token is shorter than 32"),
        (READ, READ, "the same"),
        (f"{READ}\n", CHANGE, "read token has characters"),
        (READ, f"{CHANGE} ", "change token has characters"),
        (READ, f"{CHANGE[:9]} {CHANGE[9:]}", "change token has characters"),
        (READ, f"{CHANGE}ö", "change token has characters"),
        (f"{READ}\x00", CHANGE, "read token has characters"),
        (f"{READ},", CHANGE, "read token has characters"),
    ]:
        with subtests.test(complaint):
            with pytest.raises(ConfigurationError, match=complaint) as caught:
                Tokens(read=read, change=change)

            assert "secrets.token_urlsafe(32)" in str(caught.value)
            assert READ[:8] not in str(caught.value)
            assert CHANGE[:8] not in str(caught.value)


def test_tokens_do_not_print_themselves() -> None:
    app = make_app()

    for text in (repr(TOKENS), str(TOKENS), repr(vars(app))):
        assert READ not in text
        assert CHANGE not in text


def write_tokens(folder: Path, read: bytes = READ.encode(), change: bytes = CHANGE.encode()) -> tuple[Path, Path]:
    paths = folder / "read.token", folder / "change.token"
    for path, content in zip(paths, (read, change), strict=True):
        path.write_bytes(content)
        path.chmod(0o600)
    return paths


@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n"])
def test_tokens_are_read_from_files_with_or_without_a_last_newline(tmp_path: Path, end: bytes) -> None:
    assert read_tokens(*write_tokens(tmp_path, READ.encode() + end, CHANGE.encode() + end)) == TOKENS


@pytest.mark.parametrize("content", [f"{READ}\n\n", f" {READ}", f"{READ}é", f"{READ}\n{CHANGE}\n"])
def test_a_file_holds_a_token_and_nothing_else(tmp_path: Path, content: str) -> None:
    with pytest.raises(ConfigurationError, match="read token has characters"):
        read_tokens(*write_tokens(tmp_path, read=content.encode()))


@pytest.mark.parametrize("which", [0, 1])
def test_a_file_that_others_may_use_is_refused(tmp_path: Path, which: int) -> None:
    paths = write_tokens(tmp_path)

    for mode in (0o640, 0o620, 0o610, 0o604, 0o602, 0o601):
        paths[which].chmod(mode)
        with pytest.raises(ConfigurationError, match=f"chmod 600 {paths[which]}"):
            read_tokens(*paths)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    read, change = write_tokens(tmp_path)
    change.unlink()

    with pytest.raises(
        ConfigurationError, match=r"change\.token should hold a token .*No such file.*token_urlsafe"
    ):
        read_tokens(read, change)
    with pytest.raises(ConfigurationError, match="Is a directory"):
        read_tokens(tmp_path, read)


def test_one_file_for_both_is_refused(tmp_path: Path) -> None:
    read, _ = write_tokens(tmp_path)

    with pytest.raises(ConfigurationError, match="must differ"):
        read_tokens(read, read)
