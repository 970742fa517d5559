"""The pages: served from here and from installed packages, with a policy, packed, and open to all."""

import gzip
import re
from importlib.util import find_spec
from pathlib import Path
from typing import cast

import httpx
import pytest

from hubbub_coordinator.api import pages
from hubbub_coordinator.api.access import Tokens
from hubbub_coordinator.api.app import create_app
from hubbub_coordinator.api.problems import SECURITY_HEADERS
from hubbub_coordinator.event_feed import EventFeed
from hubbub_coordinator.service import Coordinator
from support.aio import aio

TOKENS = Tokens(read="r" * 32, change="c" * 32)
LIBRARIES = ["plotly.min.js", "swagger-ui-bundle.js", "swagger-ui.css"]


class Nobody:
    """A coordinator that no page asks anything."""

    event_feed = EventFeed()


def open_client() -> httpx.AsyncClient:
    """Somebody without a token."""
    transport = httpx.ASGITransport(create_app(cast("Coordinator", Nobody()), TOKENS))
    return httpx.AsyncClient(transport=transport, base_url="http://coordinator")


@pytest.mark.parametrize("path", ["/", "/docs"])
@aio
async def test_a_page_is_html_with_a_policy_that_lets_scripts_come_from_here_alone(path: str) -> None:
    async with open_client() as client:
        answer = await client.get(path)

    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    policy = dict(part.split(" ", 1) for part in answer.headers["content-security-policy"].split("; "))
    assert policy["default-src"] == policy["base-uri"] == policy["form-action"] == "'none'"
    assert policy["frame-ancestors"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert answer.headers["x-content-type-options"] == SECURITY_HEADERS["X-Content-Type-Options"]


@pytest.mark.parametrize("path", ["/", "/docs"])
@aio
async def test_a_page_names_only_files_that_there_are_and_no_other_host(path: str) -> None:
    async with open_client() as client:
        page = (await client.get(path)).text
        named = re.findall(r'(?:src|href)="([^"#]+)"', page)
        assert named
        for each in named:
            assert each.startswith("/"), each
            assert (await client.get(each)).status_code == 200, each
    assert not re.search(r"<script(?![^>]*\ssrc=)|<style|\son\w+=|\sstyle=", page), "nothing inline"


@aio
async def test_every_module_that_a_script_imports_is_served() -> None:
    async with open_client() as client:
        for path in pages.DASHBOARD.glob("*.js"):
            for name in re.findall(r'from "\./([\w.]+)"', path.read_text(encoding="utf-8")):
                assert (await client.get(f"/assets/{name}")).status_code == 200, f"{path.name} imports {name}"


@pytest.mark.parametrize("name", LIBRARIES)
@aio
async def test_a_library_comes_packed_out_of_an_installed_package(name: str) -> None:
    async with open_client() as client:
        packed = await client.get(f"/assets/{name}", headers={"accept-encoding": "br;q=1, gzip;q=0.8"})
        async with client.stream("GET", f"/assets/{name}", headers={"accept-encoding": "gzip;q=0"}) as answer:
            plain = await answer.aread()

    assert packed.headers["content-encoding"] == "gzip"
    assert "content-encoding" not in answer.headers
    assert packed.content == plain == pages.find_assets()[name].path.read_bytes()
    assert int(packed.headers["content-length"]) < len(plain) / 2
    assert packed.headers["vary"] == "Accept-Encoding"
    assert packed.headers["etag"] != answer.headers["etag"]


@aio
async def test_what_a_browser_has_already_is_not_sent_again() -> None:
    async with open_client() as client:
        first = await client.get("/assets/docs.js")
        again = await client.get("/assets/docs.js", headers={"if-none-match": first.headers["etag"]})
        other = await client.get("/assets/docs.js", headers={"if-none-match": '"another"'})

    assert (first.headers["cache-control"], again.status_code, again.content) == ("no-cache", 304, b"")
    assert again.headers["etag"] == first.headers["etag"]
    assert other.status_code == 200


@aio
async def test_a_file_is_packed_once_and_read_again_when_it_has_changed(tmp_path: Path) -> None:
    file = tmp_path / "x.js"
    file.write_text("old", encoding="utf-8")
    asset = pages.Asset(file)
    first = await asset.read()
    assert await asset.read() is first
    assert first.packed is not None
    assert gzip.decompress(first.packed) == b"old"

    file.write_text("new", encoding="utf-8")
    # Whatever the clock of the file system says.
    asset._content = pages.Content(first.plain, first.packed, first.tag, read_at_ns=0)
    assert (await asset.read()).plain == b"new"


@pytest.mark.parametrize("path", ["/", "/docs", "/assets/docs.js", "/favicon.ico", "/healthz"])
@aio
async def test_a_head_tells_the_same_without_the_body(path: str) -> None:
    async with open_client() as client:
        answer = await client.head(path)

    assert answer.status_code == (405 if path == "/healthz" else 200)
    assert answer.content == b""


@pytest.mark.parametrize("path", ["/", "/docs", "/assets/plotly.min.js", "/assets/style.css"])
@pytest.mark.parametrize("missing", ["plotly", "fastapi_offline"])
@aio
async def test_without_the_extra_pages_say_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, missing: str, path: str
) -> None:
    monkeypatch.setattr(pages, "find_spec", lambda name: None if name == missing else find_spec(name))
    async with open_client() as client:
        answer = await client.get(path)
        icon = await client.get("/favicon.ico")

    assert (answer.status_code, answer.headers["content-type"]) == (404, "application/problem+json")
    assert "pip install 'hubbub[dashboard]'" in answer.json()["detail"]
    assert icon.status_code == 204


@aio
async def test_whatever_else_is_asked_for_is_not_there() -> None:
    async with open_client() as client:
        for name in ("pages.py", "__init__.py", "index", "favicon.png", ""):
            assert (await client.get(f"/assets/{name}")).status_code == 404
