"""Routes of the pages and their files: the dashboard, the API's documentation, and two libraries.

The libraries come from installed packages (the extra `dashboard`), never from elsewhere. Files are served from
a list of names that is made at the start: no path is built from a request.
"""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from hashlib import sha256
from http import HTTPStatus
from importlib.util import find_spec
from pathlib import Path

from fastapi import APIRouter, Request, Response
from starlette.background import BackgroundTask

from hubbub_coordinator.api.access import ASSETS_FOLDER, DOCS_PATH, ICON_PATH, PAGE_PATH
from hubbub_coordinator.api.problems import NoPage

HERE = Path(__file__).parent
DASHBOARD = HERE.parent / "dashboard"
DOCS = HERE / "docs"

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Content-Security-Policy of a page: files from this server only, and nothing inline."""
MEDIA_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".ico": "image/vnd.microsoft.icon",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".woff2": "font/woff2",
}
PACKED = frozenset({".css", ".html", ".js", ".json", ".svg"})
GZIP_LEVEL = 6
CHARTS = "plotly.min.js"
KEPT_FOR_EVER = "public, max-age=31536000, immutable"
MOST_CACHED = 128
"""More than there are files; a file that changes takes a place for each of its versions."""
MISSING_EXTRA = (
    "this coordinator was installed without its pages; install them with: pip install 'hubbub[dashboard]'"
)


@dataclass(frozen=True)
class Content:
    """Content of a file as it is sent."""

    # No slots, because `packed` is cached.

    plain: bytes
    suffix: str
    tag: str

    @cached_property
    def packed(self) -> bytes | None:
        """The content compressed, once; None for a file that is compressed already."""
        return gzip.compress(self.plain, GZIP_LEVEL, mtime=0) if self.suffix in PACKED else None


@lru_cache(MOST_CACHED)
def read_content(path: Path, written_at_ns: int) -> Content:
    """Return a file's content, read once for each time of modification."""
    del written_at_ns
    return _make_content(path.read_bytes(), path.suffix)


@lru_cache(1)
def _address_charts(page: Content, library_tag: str) -> Content:
    """Return the dashboard with the charting library's address for this version, which browsers keep."""
    address = f"{ASSETS_FOLDER}{CHARTS}".encode()
    return _make_content(page.plain.replace(address, address + f"?v={library_tag}".encode()), page.suffix)


def _make_content(plain: bytes, suffix: str) -> Content:
    return Content(plain, suffix, sha256(plain).hexdigest()[:32])


def find_assets() -> dict[str, Path]:
    """Return every served file by name; empty if the extra is not installed."""
    swagger, plotly = _find_folder("fastapi_offline", "static"), _find_folder("plotly", "package_data")
    if swagger is None or plotly is None:
        return {}
    libraries = (swagger / "swagger-ui.css", swagger / "swagger-ui-bundle.js", plotly / CHARTS)
    own = (path for folder in (DASHBOARD, DOCS) for path in sorted(folder.iterdir()) if path.suffix in MEDIA_TYPES)
    return {path.name: path for path in (*own, *libraries) if path.is_file()}


def _find_folder(package: str, name: str) -> Path | None:
    """Return a folder of an installed package without importing it: one of them takes a second."""
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(spec.submodule_search_locations[0]) / name


router = APIRouter(include_in_schema=False)
READING = ["GET", "HEAD"]


@router.api_route(PAGE_PATH, methods=READING)
async def show_dashboard(request: Request) -> Response:
    """Send the dashboard, and compress the charting library, which it asks for later."""
    page, library = await _read(request, "index.html"), await _read(request, CHARTS)
    answer = await _answer(request, _address_charts(page, library.tag), {"Content-Security-Policy": POLICY})
    answer.background = BackgroundTask(lambda: library.packed)
    return answer


@router.api_route(DOCS_PATH, methods=READING)
async def show_docs(request: Request) -> Response:
    """Send the API's documentation, to read and to try."""
    return await _send(request, "docs.html", {"Content-Security-Policy": POLICY})


@router.api_route(ICON_PATH, methods=READING)
async def show_icon(request: Request) -> Response:
    """Send the icon that browsers ask for by themselves."""
    if "favicon.svg" not in request.app.state.assets:
        return Response(status_code=HTTPStatus.NO_CONTENT)
    return await _send(request, "favicon.svg")


@router.api_route(f"{ASSETS_FOLDER}{{name}}", methods=READING)
async def send_asset(request: Request, name: str) -> Response:
    """Send a file of a page."""
    return await _send(request, name)


async def _send(request: Request, name: str, headers: Mapping[str, str] | None = None) -> Response:
    return await _answer(request, await _read(request, name), headers)


async def _read(request: Request, name: str) -> Content:
    assets: Mapping[str, Path] = request.app.state.assets
    path = assets.get(name)
    if path is None:
        raise NoPage(f"there is no file {name}" if assets else MISSING_EXTRA)
    return await asyncio.to_thread(read_content, path, path.stat().st_mtime_ns)


async def _answer(request: Request, content: Content, headers: Mapping[str, str] | None = None) -> Response:
    accepted = [each.replace(" ", "") for each in request.headers.get("accept-encoding", "").lower().split(",")]
    takes_gzip = any(each.split(";")[0] == "gzip" and not each.endswith(";q=0") for each in accepted)
    packed = await asyncio.to_thread(lambda: content.packed) if takes_gzip else None
    tag = f'"{content.tag}-gzip"' if packed is not None else f'"{content.tag}"'
    # An address with the content's own tag never means anything else; any other is asked about before each use.
    cache = KEPT_FOR_EVER if request.query_params.get("v") == content.tag else "no-cache"
    fields = {**(headers or {}), "ETag": tag, "Cache-Control": cache, "Vary": "Accept-Encoding"}
    if content.tag in request.headers.get("if-none-match", ""):
        return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=fields)
    if packed is not None:
        fields["Content-Encoding"] = "gzip"
    return Response(packed or content.plain, headers=fields, media_type=MEDIA_TYPES[content.suffix])
