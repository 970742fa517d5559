"""Weight of the dashboard, and the times until something and until the run is seen, in Chromium.

`python -m benchmarks.page_weight URL TOKEN_FILE [RUN]` opens the page of a run of a coordinator, for example the
demo's, several times with an empty cache and as often again, and prints what came over the wire: bytes as they are
sent, compressed, with and without the charting library, and the median times to the first paint with content and
until the figures of the run are there.
"""

from __future__ import annotations

import statistics
import sys
from pathlib import Path

from playwright.sync_api import Browser, Page

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))
from support.browser import chromium  # noqa: E402  (It is where tests are.)

VISITS = 7
LIBRARY = "plotly"
PAINT = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
TRANSFERS = """[...performance.getEntriesByType("navigation"), ...performance.getEntriesByType("resource")]
    .map(({ name, transferSize }) => [new URL(name).pathname, transferSize])"""


def _visit(page: Page, address: str) -> tuple[list[float], dict[str, int]]:
    """Return the times to the first paint and to the run in ms, and the bytes by kind of file."""
    page.goto(address, wait_until="commit")
    page.locator("#run").wait_for()
    shown_ms = page.evaluate("performance.now()")
    page.locator("#charts .main-svg").first.wait_for()
    found: list[tuple[str, int]] = page.evaluate(TRANSFERS)
    sizes = {"page": 0, "answers": 0, "charts": 0}
    for path, size in found:
        kind = "answers" if path.startswith("/api/") else "charts" if LIBRARY in path else "page"
        sizes[kind] += size
    return [page.evaluate(PAINT), shown_ms], sizes


def _measure(browser: Browser, address: str, token: str) -> None:
    visits: dict[str, list[list[float]]] = {"first": [], "second": []}
    sizes: dict[str, dict[str, int]] = {}
    for _ in range(VISITS):
        context = browser.new_context()
        context.add_init_script(f"sessionStorage.setItem('hubbub.token', {token!r})")
        page = context.new_page()
        for visit, times in visits.items():
            found, sizes[visit] = _visit(page, address)
            times.append(found)
            page.goto("about:blank")
        context.close()
    for visit, times in visits.items():
        paint_ms, shown_ms = (statistics.median(each) for each in zip(*times, strict=True))
        said = ", ".join(f"{kind} {size / 1024:.0f} KB" for kind, size in sizes[visit].items())
        print(f"{visit} visit: first paint {paint_ms:.0f} ms, run {shown_ms:.0f} ms (medians of {VISITS}); {said}")


def main() -> None:
    """Measure the page of a running coordinator."""
    url, token_file, *run = sys.argv[1:]
    address = url + (f"/#/runs/{run[0]}" if run else "/")
    with chromium() as browser:
        _measure(browser, address, Path(token_file).read_text(encoding="ascii").strip())


if __name__ == "__main__":
    main()
