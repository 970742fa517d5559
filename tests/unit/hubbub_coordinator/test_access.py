"""Access to the REST interface: tokens and their files, refusals, closed paths, and limits of bodies."""

import hmac
import logging
from collections.abc import AsyncIterator, Iterable
from itertools import product
from pathlib import Path

import httpx
import pytest
from fastapi import Request
from starlette.routing import Route, Router

from hubbub.errors import ConfigurationError
from hubbub_coordinator.api.access import MAX_BODY_BYTES, Right, Tokens, read_tokens
from support.rest_stand_in import TOKENS, Front, RawRequest, StandInCoordinator

READ, CHANGE = TOKENS.read, TOKENS.change
APP = Front()
RUNS = "/api/v1/runs"
UNKNOWN = f"{RUNS}/{'0' * 64}"
CANCEL = f"{UNKNOWN}/cancel"


async def ask(
    method: str,
    path: str,
    *offers: str,
    app: Front = APP,
    headers: dict[str, str] | None = None,
    content: AsyncIterator[bytes] | None = None,
) -> httpx.Response:
    """Send one request with these Authorization headers."""
    fields = [*((b"authorization", offer.encode("latin-1")) for offer in offers)]
    fields += [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
    async with app.open_client() as client:
        return await client.request(method, path, headers=fields, content=content)


def assert_problem(answer: httpx.Response, status: int, saying: str) -> None:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["status"] == status
    assert saying in answer.json()["detail"]


# The two tokens -------------------------------------------------------------------------------------------


async def test_either_token_reads_however_the_scheme_is_written(subtests: pytest.Subtests) -> None:
    for path, scheme, token in product(
        [RUNS, "/metrics", "/openapi.json"], ["Bearer", "bearer", "BEARER", "Bearer "], [READ, CHANGE]
    ):
        with subtests.test(path=path, scheme=scheme, token=token):
            assert (await ask("GET", path, f"{scheme} {token}")).status_code == 200


NO_TOKENS = [(), *((each,) for each in ("Basic cmVhZDpyZWFk", READ, f"Bearer{READ}", f"Token {READ}", ""))]
WRONG_TOKENS = [
    *("", READ[:-1], f"{READ}x", f"{READ} {CHANGE}", f'"{READ}"', READ.upper()),
    *(READ.replace("o", "ö"), "\xff" * 40, "x" * 100_000),
]
SEVERAL_TOKENS = [(READ, READ), (READ, CHANGE), ("wrong", CHANGE), (CHANGE, "")]
REFUSALS: list[tuple[int, str, str, list[tuple[str, ...]]]] = [
    (401, "Authorization: Bearer", "", [*NO_TOKENS]),
    (401, "no token of this coordinator", "invalid_token", [("Bearer",)]),
    (401, "no token of this coordinator", "invalid_token", [(f"Bearer {token}",) for token in WRONG_TOKENS]),
    (
        *(400, "several Authorization headers", "invalid_request"),
        [(f"Bearer {one}", f"Bearer {two}") for one, two in SEVERAL_TOKENS],
    ),
]


async def test_a_refusal_says_what_is_wrong_and_nothing_of_which_paths_there_are(
    subtests: pytest.Subtests,
) -> None:
    for status, saying, code, offers in REFUSALS:
        for offer, method in product(offers, ("GET", "POST")):
            with subtests.test(offer=[each[:40] for each in offer], method=method):
                known, unknown = await ask(method, RUNS, *offer), await ask(method, "/not/it", *offer)

                assert_problem(known, status, saying)
                challenge = 'Bearer realm="hubbub"' + (f', error="{code}"' if code else "")
                assert known.headers["www-authenticate"] == challenge
                assert (unknown.status_code, unknown.headers.keys()) == (status, known.headers.keys())
                assert {**known.json(), "instance": ""} == {**unknown.json(), "instance": ""}


async def test_whatever_is_not_reading_needs_the_change_token(subtests: pytest.Subtests) -> None:
    coordinator = StandInCoordinator()
    app = Front(coordinator)
    for path, method in product(
        [RUNS, CANCEL, "/healthz", "/nowhere"],
        ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND", "get"],
    ):
        with subtests.test(method=method, path=path):
            assert await RawRequest(method, path).status(app) == 401
            assert await RawRequest(method, path, READ).status(app) == 403
            assert coordinator.cancelled == []


async def test_the_change_token_changes_and_the_read_token_is_told_that_it_only_reads() -> None:
    coordinator = StandInCoordinator()
    app = Front(coordinator)

    answer = await ask("POST", CANCEL, f"Bearer {READ}", app=app)
    assert_problem(answer, 403, "use the change token")
    assert 'error="insufficient_scope"' in answer.headers["www-authenticate"]
    await ask("POST", CANCEL, f"Bearer {CHANGE}", app=app)

    assert coordinator.cancelled == ["0" * 64]


async def test_a_token_in_the_url_opens_nothing_and_is_told_where_it_belongs(subtests: pytest.Subtests) -> None:
    for offers, query, path in product(
        [(), (f"Bearer {CHANGE}",)],
        ["token={}", "access_token={}", "Access_Token={}", "a=b&%74oken={}", "token"],
        [RUNS, "/healthz", "/nowhere"],
    ):
        with subtests.test(path=path, query=query, offers=offers):
            answer = await ask("GET", f"{path}?{query.format(READ)}", *offers)

            assert_problem(answer, 400, "Authorization: Bearer")
            assert READ not in answer.text
    for query in [f"key={CHANGE}", CHANGE, f"a=Bearer+{CHANGE}"]:
        with subtests.test(query):
            assert (await ask("GET", f"{RUNS}?{query}")).status_code == 401


async def test_the_host_header_opens_nothing_and_breaks_nothing(subtests: pytest.Subtests) -> None:
    for host in ["x/healthz?", "[", "x#/healthz", "coordinator/healthz"]:
        with subtests.test(host):
            assert_problem(await ask("GET", RUNS, headers={"host": host}), 401, "no token was sent")


def test_the_real_tokens_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
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


# Logs of refusals ----------------------------------------------------------------------------------------


async def test_a_refusal_is_logged_without_what_was_offered(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    guess, app = "a-guess-that-nobody-should-read-again", Front()

    await ask("GET", RUNS, app=app)
    await ask("GET", RUNS, f"Bearer {guess}", app=app)
    await ask("POST", RUNS, f"Bearer {READ}", app=app)
    await ask("GET", f"/{guess}?token={guess}", app=app)

    lines = [record.getMessage() for record in caplog.records if record.name == "hubbub_coordinator.api.access"]
    reasons = ["no token was sent", "no token of this", "the read token", "must not be in a URL"]
    assert [reason in line for reason, line in zip(reasons, lines, strict=True)] == [True] * 4
    assert all("127.0.0.1" in line for line in lines)
    assert guess not in str(lines)
    assert READ not in caplog.text


async def test_a_flood_of_refused_requests_is_a_few_lines(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    app = Front()

    for _ in range(100):
        await ask("GET", RUNS, app=app)
    await ask("POST", CANCEL, f"Bearer {READ}", app=app)

    assert len(caplog.messages) == 8
    assert caplog.messages[-2].endswith("Authorization: Bearer TOKEN' (64 times so far)")
    assert "the read token changes nothing" in caplog.messages[-1], "another kind is counted on its own"


# Nothing is beside the gate ------------------------------------------------------------------------------


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


OPEN = {"/healthz", "/readyz", "/", "/docs", "/openapi.json", "/favicon.ico", "/assets/x"}


async def test_every_route_is_closed_but_those_that_hold_nothing_of_any_run() -> None:
    opened, closed = set[str](), set[str]()
    for route in find_routes(APP):
        path = route.path.replace("{run}", "0" * 64).replace("{number}", "1").replace("{name}", "x")
        assert "{" not in path, f"this test does not know what to put into {path}"
        for method in {"HEAD", "OPTIONS"} | (route.methods or set()):
            is_open = path in OPEN and method in {"GET", "HEAD"}
            assert (await RawRequest(method, path).status(APP) != 401) == is_open, (method, path)
            (opened if is_open else closed).add(path)
    assert opened == OPEN
    assert {RUNS, UNKNOWN, CANCEL, "/metrics", "/api/v1/about", "/api/v1/events/stream"} <= closed


async def test_a_route_that_is_added_later_is_closed_too() -> None:
    app = Front()
    app.routes.add_api_route("/later", lambda: "secret", methods=["GET", "POST"])

    assert [(await ask(method, "/later", app=app)).status_code for method in ("GET", "POST")] == [401, 401]
    assert (await ask("GET", "/later", f"Bearer {READ}", app=app)).json() == "secret"
    assert (await ask("POST", "/later", f"Bearer {READ}", app=app)).status_code == 403


async def test_no_websocket_is_opened_whatever_it_brings() -> None:
    app = Front()

    @app.routes.websocket("/live")
    async def live() -> None:
        pytest.fail("it was let in")

    request = RawRequest("GET", "/live", CHANGE)
    await app({**request.scope, "type": "websocket"}, request.receive, request.send)

    assert [message["type"] for message in request.sent] == ["websocket.close"]


async def test_only_the_very_paths_that_are_open_are_open(subtests: pytest.Subtests) -> None:
    """And under /assets/ there is a list of names, and no folder."""
    closed = [
        *("/healthz/", "//healthz", "/healthz/x", "/HEALTHZ", "/x/../healthz", "/healthz\n", "", "//", "/docs/"),
        *("/docs/oauth2-redirect", "/openapi.json/", "/assets", "/x/assets/x", "/Assets/x"),
    ]
    absent = ["../access.py", "..%2faccess.py", "/etc/passwd", "", "x/y", "pages.py", "index", "favicon.png"]
    statuses = {"/healthz": 200, **dict.fromkeys(closed, 401), **{f"/assets/{each}": 404 for each in absent}}
    for path, status in statuses.items():
        with subtests.test(path=path):
            assert await RawRequest("GET", path).status(APP) == status


# The length of a request ---------------------------------------------------------------------------------


def make_measuring_app() -> Front:
    app = Front()

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
TOO_LONG = {"content-length": str(MAX_BODY_BYTES + 1)}


async def test_a_body_is_taken_up_to_the_greatest_length_and_not_beyond(subtests: pytest.Subtests) -> None:
    """Not read at all if it says that it is too long, and no further if it turns out to be."""
    app, declared = make_measuring_app(), {"content-length": str(MAX_BODY_BYTES)}
    for path, headers, count, taken, status in [
        ("/measure", declared, ALLOWED_PIECES, ALLOWED_PIECES, 200),
        ("/measure", {}, ALLOWED_PIECES, ALLOWED_PIECES, 200),
        *((path, TOO_LONG, 1, 0, 413) for path in (RUNS, CANCEL, "/measure", "/parse", "/nowhere")),
        *((path, {}, 10 * ALLOWED_PIECES, ALLOWED_PIECES + 1, 413) for path in (RUNS, "/measure", "/parse")),
    ]:
        with subtests.test(path=path, headers=headers):
            pieces = Pieces(count)

            answer = await ask("POST", path, f"Bearer {CHANGE}", app=app, headers=headers, content=aiter(pieces))

            assert pieces.taken == taken
            if status == 200:
                assert answer.json() == MAX_BODY_BYTES
            else:
                assert_problem(answer, status, f"{MAX_BODY_BYTES} bytes")
                assert answer.headers["cache-control"] == "no-store"


async def test_without_the_change_token_no_body_is_looked_at() -> None:
    for headers, (offers, status) in product([{}, TOO_LONG], [((), 401), ((f"Bearer {READ}",), 403)]):
        pieces = Pieces(1)
        answer = await ask("POST", RUNS, *offers, headers=headers, content=aiter(pieces))
        assert (answer.status_code, pieces.taken) == (status, 0)


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

            assert "hubbub keys tokens" in str(caught.value)
            assert READ[:8] not in str(caught.value)
            assert CHANGE[:8] not in str(caught.value)


def test_tokens_do_not_print_themselves() -> None:
    for text in (repr(TOKENS), str(TOKENS), repr(vars(APP))):
        assert READ not in text
        assert CHANGE not in text


def write_tokens(folder: Path, read: bytes = READ.encode(), change: bytes = CHANGE.encode()) -> tuple[Path, Path]:
    paths = folder / "read.token", folder / "change.token"
    for path, content in zip(paths, (read, change), strict=True):
        path.write_bytes(content)
        path.chmod(0o600)
    return paths


def test_tokens_are_read_from_files_that_hold_nothing_else(tmp_path: Path) -> None:
    for end in (b"", b"\n", b"\r\n"):
        assert read_tokens(*write_tokens(tmp_path, READ.encode() + end, CHANGE.encode() + end)) == TOKENS
    for content in (f"{READ}\n\n", f" {READ}", f"{READ}é", f"{READ}\n{CHANGE}\n"):
        with pytest.raises(ConfigurationError, match="read token has characters"):
            read_tokens(*write_tokens(tmp_path, read=content.encode()))


@pytest.mark.parametrize("which", [0, 1])
def test_a_file_that_others_may_use_is_refused(tmp_path: Path, which: int) -> None:
    paths = write_tokens(tmp_path)

    for mode in (0o640, 0o620, 0o610, 0o604, 0o602, 0o601):
        paths[which].chmod(mode)
        with pytest.raises(ConfigurationError, match=f"chmod 600 {paths[which]}"):
            read_tokens(*paths)


def test_files_that_cannot_be_read_or_are_the_same_are_refused(tmp_path: Path) -> None:
    read, change = write_tokens(tmp_path)
    change.unlink()

    with pytest.raises(
        ConfigurationError, match=r"change\.token should hold a token .*No such file.*hubbub keys tokens"
    ):
        read_tokens(read, change)
    with pytest.raises(ConfigurationError, match="Is a directory"):
        read_tokens(tmp_path, read)
    with pytest.raises(ConfigurationError, match="must differ"):
        read_tokens(read, read)
