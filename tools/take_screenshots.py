"""Take the screenshots of the dashboard for the documentation.

`python tools/take_screenshots.py [FOLDER]` runs a federation in this process, serves its page as the demo does,
and writes docs/img/dashboard-*.png: a coordinator without runs, a running run, a failed one, a finished one with
another drawn beside it and the form that requests a run, each light and dark, and the running one on a phone.
"""

from __future__ import annotations

import asyncio
import io
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, Page, expect

from hubbub.ids import PartyId, RunId
from hubbub.messages.manifest import Manifest
from hubbub_coordinator.progress import LATE_S
from hubbub_local.demo import draw_up
from hubbub_local.federation import Federation, start_federation
from hubbub_local.options import DemoOptions
from hubbub_local.serving import Dashboard, open_dashboard, reserve_port
from hubbub_trainer.learning.registry import load_task
from hubbub_trainer.planning import draw_up_manifest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))
from support.browser import ColourScheme, chromium, watched_page  # noqa: E402  (It is where tests are.)

LAPTOP, PHONE = (1280, 900), (390, 844)
LARGEST_BYTES = 300_000
COLOURS = 256
"""Colours of a picture; more than a page has, but for the edges of its letters."""
THEMES: tuple[ColourScheme, ...] = ("light", "dark")
WAIT_S = 300
PATIENCE_MS = 60_000
"""Timeout of the page, while a whole federation trains in this process."""
OPTIONS = DemoOptions(strategy="sec-union", data="digits", clients=5, rounds=10, local_steps=30, q=3)
HELD_ROUND = 6
BROKEN_ROUND = LATE_ROUND = 4
LATE = "Late: waiting for"


@dataclass
class Accident:
    """Action on a run when the last of its clients trains for a given round."""

    number: int
    strike: Callable[[], object]
    _begun: set[PartyId] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def watch(self, client: PartyId, number: int) -> None:
        """Note that a client trains for a round."""
        with self._lock:
            is_new = number == self.number and client not in self._begun
            if is_new:
                self._begun.add(client)
            is_last = is_new and len(self._begun) == OPTIONS.clients
        if is_last:
            self.strike()


class Show:
    """Federation and its page, in a thread with its own event loop: the browser needs the main thread's."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._task = load_task("lenet", data=OPTIONS.data)
        first, self._parties = draw_up(OPTIONS, self._task)
        self._manifest = first
        self._accident = Accident(0, lambda: None)
        self._ready: Future[tuple[asyncio.AbstractEventLoop, Federation, Dashboard]] = Future()
        self._over: asyncio.Event
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="federation")

    async def _serve(self) -> None:
        self._over = asyncio.Event()
        with reserve_port(0) as listener:
            async with (
                start_federation(
                    self._manifest,
                    parties=self._parties,
                    folder=self._folder,
                    load_task=lambda _: self._task,
                    demo_seed=OPTIONS.seed,
                    progress=self._note,
                ) as federation,
                open_dashboard(federation.coordinator, listener) as dashboard,
            ):
                self._ready.set_result((asyncio.get_running_loop(), federation, dashboard))
                await self._over.wait()

    def _note(self, client: PartyId, number: int, what: str, done: int, steps: int) -> None:
        """Handle the progress of a trainer; called from its thread."""
        del what, done, steps
        self._accident.watch(client, number)

    @contextmanager
    def open(self) -> Iterator[Dashboard]:
        """Run the federation and its page while this is open."""
        self._thread.start()
        try:
            yield self._ready.result(WAIT_S)[2]
        finally:
            self._ready.result(WAIT_S)[0].call_soon_threadsafe(self._over.set)
            self._thread.join()

    def lose_keys(self) -> None:
        """Make a client lose its keys: a failing task alone would not end the run."""
        trainer = self._ready.result(WAIT_S)[1].trainers[-1]
        for key in list(trainer.runner.machines):
            trainer.context_of(key.run).keys = None

    def begin(self, accident: Accident) -> RunId:
        """Start a run with an accident."""
        self._accident = accident
        loop, federation, _ = self._ready.result(WAIT_S)
        manifest = self._draw_up()
        asyncio.run_coroutine_threadsafe(federation.coordinator.submit(manifest), loop).result(WAIT_S)
        return manifest.run_id

    def _draw_up(self) -> Manifest:
        return draw_up_manifest(self._task, OPTIONS, roster=self._parties.roster)


@dataclass(frozen=True)
class Camera:
    """Takes screenshots: the page's address, the browser, and the folder of the pictures."""

    browser: Browser
    dashboard: Dashboard
    folder: Path

    def shoot_all(
        self,
        name: str,
        run: RunId | None,
        *,
        shown: str,
        down_to: str = "",
        prepare: Callable[[Page], object] = lambda _: None,
    ) -> None:
        """Take a page in light and in dark; `shown` is the text that shows that it has loaded.

        `down_to` names the last part that is in the picture, if it is longer than the window.
        """
        for theme in THEMES:
            with self._page(run, theme, LAPTOP) as page:
                expect(page.get_by_role("main").get_by_text(shown).first).to_be_visible()
                expect(page.locator("#charts .skeleton:visible")).to_have_count(0)
                prepare(page)
                self._shoot(page, f"dashboard-{name}-{theme}.png", down_to=down_to)

    def shoot_phone(self, run: RunId, *, shown: str) -> None:
        """Take a page at the size of a phone."""
        for theme in THEMES:
            with self._page(run, theme, PHONE) as page:
                expect(page.get_by_role("main").get_by_text(shown).first).to_be_visible()
                self._shoot(page, f"dashboard-phone-{theme}.png")

    @contextmanager
    def _page(self, run: RunId | None, theme: ColourScheme, size: tuple[int, int]) -> Iterator[Page]:
        with watched_page(self.browser, self.dashboard.url, colours=theme, size=size) as (page, watch):
            page.set_default_timeout(PATIENCE_MS)
            page.goto(f"/#/runs/{run}" if run else "/")
            page.get_by_label("Token", exact=True).fill(self.dashboard.tokens.change)
            page.get_by_role("button", name="Use this token").click()
            expect(page.get_by_text("Live", exact=True)).to_be_visible()
            yield page
            watch.check()

    def wait_for(self, run: RunId, shown: str) -> None:
        """Wait until the page of a run shows a text."""
        with self._page(run, "light", LAPTOP) as page:
            expect(page.get_by_role("main").get_by_text(shown).first).to_be_visible(timeout=1000 * WAIT_S)

    def _shoot(self, page: Page, name: str, *, down_to: str = "") -> None:
        if down_to:
            self._unroll(page, down_to)
        picture = Image.open(io.BytesIO(page.screenshot()))
        file = self.folder / name
        picture.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(file, optimize=True)
        size = file.stat().st_size
        if size > LARGEST_BYTES:
            raise SystemExit(f"{file} has {size} bytes; take less of the page")
        print(f"{file.name}: {picture.width} × {picture.height}, {size // 1024} KB")

    @staticmethod
    def _unroll(page: Page, name: str) -> None:
        """Make the window as tall as the page down to a part; charts are drawn only when visible."""
        part = page.get_by_role("region", name=name, exact=True)
        part.scroll_into_view_if_needed()
        bottom = part.evaluate("element => element.getBoundingClientRect().bottom + scrollY")
        page.set_viewport_size({"width": LAPTOP[0], "height": round(bottom) + 16})
        page.evaluate("scrollTo(0, 0)")
        expect(part.locator(".skeleton:visible")).to_have_count(0)


def take_pictures(show: Show, camera: Camera) -> None:
    """Take pictures of a run that ends, one that fails, and one that waits for its picture."""
    camera.shoot_all("empty", None, shown="Nothing has run here yet")

    finished = show.begin(Accident(LATE_ROUND, partial(time.sleep, LATE_S + 1)))
    camera.wait_for(finished, "completed")

    failed = show.begin(Accident(BROKEN_ROUND, show.lose_keys))
    camera.wait_for(failed, "It failed")
    camera.shoot_all("failed", failed, shown="It failed")
    camera.shoot_all(
        "finished",
        finished,
        shown="completed",
        down_to="Time and union",
        prepare=lambda page: page.get_by_label("Draw beside it").select_option(failed),
    )
    camera.shoot_all("request", finished, shown="completed", prepare=ask_again)

    enough = threading.Event()
    running = show.begin(Accident(HELD_ROUND, partial(enough.wait, WAIT_S)))
    try:
        camera.wait_for(running, LATE)
        camera.shoot_all("running", running, shown=LATE, down_to="Parties")
        camera.shoot_phone(running, shown=LATE)
    finally:
        enough.set()


def ask_again(page: Page) -> None:
    """Open the form that requests a run like the one that is shown, and wait for its plan."""
    page.get_by_role("button", name="Same again").click()
    expect(page.get_by_role("status", name="Plan")).to_contain_text("A server learns")


def main() -> None:
    """Take all screenshots."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "img"
    folder.mkdir(parents=True, exist_ok=True)
    expect.set_options(timeout=PATIENCE_MS)
    with tempfile.TemporaryDirectory(prefix="hubbub-screenshots-") as parties:
        show = Show(Path(parties))
        with show.open() as dashboard, chromium() as browser:
            take_pictures(show, Camera(browser, dashboard, folder))


if __name__ == "__main__":
    main()
