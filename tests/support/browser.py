"""A real Chromium to look at pages with: found or installed, and watched over what it complains of and asks for.

In this order: the program named by HUBBUB_TEST_CHROMIUM; one that is installed; Debian's package, as root.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Literal
from urllib.parse import urlsplit

from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Error, Page, Request, sync_playwright

from support import debian
from support.patience import HANG_S

PROGRAM_VARIABLE = "HUBBUB_TEST_CHROMIUM"
WAIT_MS = 1000 * HANG_S
LOOKS, LOOK_AGAIN_MS = 100, 50
PROGRAMS = ("/usr/bin/chromium", "chromium", "google-chrome")
FLAGS = (
    # Tests run as root in containers, where its sandbox cannot be set up; it sees no page but ours.
    "--no-sandbox",
    "--disable-gpu",
    # Whatever it would ask the internet of its own accord.
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
NETWORK_FAILURE = "Failed to load resource: net::ERR_"
"""Chromium's own note in the console that a server did not answer."""
WHAT_TO_DO = f"""
Tests of the pages need Chromium. Any one of these will do:
  - install it:            apt-get install chromium
  - name one you have:     {PROGRAM_VARIABLE}=/path/to/chrome make test
To leave these tests out:  make test ARGS="--ignore tests/browser"
"""

ColourScheme = Literal["light", "dark"]


class NoBrowserError(LookupError):
    """There is no browser; the message says why not and what to do."""


def find_chromium() -> str:
    """Return the path of a browser: the one that is named, an installed one, or Debian's."""
    named = os.environ.get(PROGRAM_VARIABLE)
    if named:
        return named
    if not any(map(shutil.which, PROGRAMS)):
        try:
            debian.install("chromium")
        except debian.UnavailableError as reason:
            raise NoBrowserError(f"no Chromium is installed: {reason}\n{WHAT_TO_DO}") from reason
    return next(filter(None, map(shutil.which, PROGRAMS)))


@contextmanager
def chromium() -> Iterator[Browser]:
    """Have a browser. Within this no event loop can be run in this thread: Playwright has one of its own."""
    program = find_chromium()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=[*FLAGS])
        try:
            yield browser
        finally:
            browser.close()


@dataclass
class Watch:
    """All that happened in a browser's context that nobody sees on the page."""

    host: str
    complaints: list[str] = field(default_factory=list)
    network_failures: list[str] = field(default_factory=list)
    strangers: list[str] = field(default_factory=list)

    def note_message(self, message: ConsoleMessage) -> None:
        if message.type not in {"error", "warning"}:
            return
        if message.text.startswith(NETWORK_FAILURE):
            self.network_failures.append(f"{message.text} {message.location['url']}")
        else:
            self.complaints.append(f"{message.type}: {message.text}")

    def note_error(self, error: Error) -> None:
        self.complaints.append(f"uncaught: {error.stack or error}")

    def note_request(self, request: Request) -> None:
        parts = urlsplit(request.url)
        if parts.scheme not in {"data", "blob"} and parts.netloc != self.host:
            self.strangers.append(request.url)

    def check(self, *, away: bool = False) -> None:
        """Nothing was complained of and nobody else was asked; `away` if the server was, for a while."""
        assert self.strangers == []
        assert self.complaints == []
        assert away or self.network_failures == []


@contextmanager
def watched_page(
    browser: Browser,
    url: str,
    *,
    colours: ColourScheme = "light",
    size: tuple[int, int] = (1280, 900),
    still: bool = True,
) -> Iterator[tuple[Page, Watch]]:
    """A page in a context of its own, empty yet, and what is seen of it; `still` asks it not to move things."""
    context = browser.new_context(
        base_url=url,
        color_scheme=colours,
        viewport={"width": size[0], "height": size[1]},
        locale="en-GB",
        timezone_id="UTC",
        reduced_motion="reduce" if still else "no-preference",
    )
    context.set_default_timeout(WAIT_MS)
    try:
        yield _open(context, watch := Watch(urlsplit(url).netloc)), watch
    finally:
        context.close()


def _open(context: BrowserContext, watch: Watch) -> Page:
    context.on("request", watch.note_request)
    context.on("console", watch.note_message)
    context.on("weberror", lambda event: watch.note_error(event.error))
    return context.new_page()


def axe(page: Page) -> list[str]:
    """List axe-core's complaints about a page as it is, one line for each rule and place.

    It is evaluated, not loaded: the page's policy lets no script in that is not the coordinator's.
    """
    page.evaluate(files("axe_playwright_python").joinpath("axe.min.js").read_text(encoding="utf-8"))
    found = page.evaluate("""async () => (await axe.run({ resultTypes: ["violations"] })).violations""")
    return [
        f"{rule['id']} ({rule['impact']}): {rule['help']}: {' '.join(map(str, node['target']))}"
        for rule in found
        for node in rule["nodes"]
    ]


def overflow(page: Page) -> int:
    """By how many pixels a page stays wider than its window: charts follow a window a moment after it changed."""
    for _ in range(LOOKS):
        wider = int(page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth"))
        if wider <= 0:
            break
        page.wait_for_timeout(LOOK_AGAIN_MS)
    return wider
