"""The pages: served from here and from installed packages, with a policy, packed, and open to all."""

import gzip
import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from hubbub_coordinator.api import pages
from hubbub_coordinator.api.problems import SECURITY_HEADERS
from support.rest_stand_in import Front

APP = Front()
PAGES = ["/", "/docs"]
LIBRARIES = ["plotly.min.js", "swagger-ui-bundle.js", "swagger-ui.css"]


@pytest.mark.parametrize("path", PAGES)
async def test_a_page_is_html_whose_scripts_and_styles_come_from_here_alone(path: str) -> None:
    async with APP.open_client() as client:
        answer = await client.get(path)
        named = re.findall(r'(?:src|href)="([^"#]+)"', answer.text)
        assert named
        for each in named:
            assert each.startswith("/"), each
            assert (await client.get(each)).status_code == 200, each

    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    policy = dict(part.split(" ", 1) for part in answer.headers["content-security-policy"].split("; "))
    assert policy["default-src"] == policy["base-uri"] == policy["form-action"] == "'none'"
    assert policy["frame-ancestors"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert answer.headers["x-content-type-options"] == SECURITY_HEADERS["X-Content-Type-Options"]
    assert not re.search(r"<script(?![^>]*\ssrc=)|<style|\son\w+=|\sstyle=", answer.text), "nothing inline"


async def test_a_library_comes_packed_out_of_an_installed_package() -> None:
    for name in LIBRARIES:
        async with APP.open_client() as client:
            packed = await client.get(f"/assets/{name}", headers={"accept-encoding": "br;q=1, gzip;q=0.8"})
            async with client.stream("GET", f"/assets/{name}", headers={"accept-encoding": "gzip;q=0"}) as answer:
                plain = await answer.aread()

        assert packed.headers["content-encoding"] == "gzip"
        assert "content-encoding" not in answer.headers
        assert packed.content == plain == pages.find_assets()[name].read_bytes()
        assert int(packed.headers["content-length"]) < len(plain) / 2
        assert packed.headers["vary"] == "Accept-Encoding"
        assert packed.headers["etag"] != answer.headers["etag"]


async def test_what_a_browser_has_already_is_not_sent_again() -> None:
    async with APP.open_client() as client:
        first = await client.get("/assets/docs.js")
        again = await client.get("/assets/docs.js", headers={"if-none-match": first.headers["etag"]})
        other = await client.get("/assets/docs.js", headers={"if-none-match": '"another"'})

    assert (first.headers["cache-control"], again.status_code, again.content) == ("no-cache", 304, b"")
    assert again.headers["etag"] == first.headers["etag"]
    assert other.status_code == 200


async def test_the_charting_library_is_kept_for_ever_at_the_address_of_its_version_alone() -> None:
    async with APP.open_client() as client:
        page = await client.get("/")
        (address,) = re.findall(r'content="(/assets/plotly[^"]+)"', page.text)
        versioned = await client.get(address)
        others = [await client.get(each) for each in ("/assets/plotly.min.js", address + "0", "/assets/app.js")]

    assert versioned.headers["cache-control"] == "public, max-age=31536000, immutable"
    assert versioned.content == pages.find_assets()["plotly.min.js"].read_bytes()
    assert [each.headers["cache-control"] for each in (page, *others)] == ["no-cache"] * 4


def test_a_file_is_packed_once_and_read_again_when_it_has_changed(tmp_path: Path) -> None:
    file = tmp_path / "x.js"
    file.write_text("old", encoding="utf-8")
    first = pages.read_content(file, 1)
    file.write_text("new", encoding="utf-8")

    assert pages.read_content(file, 1) is first
    assert first.packed is not None
    assert gzip.decompress(first.packed) == b"old"
    assert pages.read_content(file, 2).plain == b"new"


async def test_a_head_tells_the_same_without_the_body() -> None:
    async with APP.open_client() as client:
        for path in (*PAGES, "/assets/docs.js", "/favicon.ico", "/healthz"):
            answer = await client.head(path)
            assert (answer.status_code, answer.content) == (405 if path == "/healthz" else 200, b"")


@pytest.mark.parametrize("missing", ["plotly", "fastapi_offline"])
async def test_without_the_extra_pages_say_how_to_get_it(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    monkeypatch.setattr(pages, "find_spec", lambda name: None if name == missing else find_spec(name))
    async with Front().open_client() as client:
        for path in (*PAGES, "/assets/plotly.min.js", "/assets/style.css"):
            answer = await client.get(path)
            assert (answer.status_code, answer.headers["content-type"]) == (404, "application/problem+json")
            assert "pip install 'hubbub[dashboard]'" in answer.json()["detail"]
        assert (await client.get("/favicon.ico")).status_code == 204
