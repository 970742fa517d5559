"""The link of `hubbub demo --dashboard` in a real browser: it brings the token, which is then seen nowhere."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from hubbub_local.demo import LINGERING
from hubbub_local.serving import PAGE
from support.browser import WAIT_MS, NoBrowserError, chromium, watched_page
from support.command_line import start_hubbub

expect.set_options(timeout=WAIT_MS)
QUICK = ("--task", "synthetic:300", "--clients", "2", "--rounds", "1", "--local-steps", "1")


@dataclass(frozen=True)
class Stage:
    """A browser, and the link to a demo's page."""

    browser: Browser
    link: str

    @property
    def url(self) -> str:
        return self.link.partition("/#")[0]

    @property
    def token(self) -> str:
        return self.link.partition("#token=")[2]


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    with start_hubbub("demo", *QUICK, "--dashboard", "--port", "0") as process:
        assert process.stdout is not None
        try:
            lines = list(iter(partial(next, process.stdout), f"{LINGERING}\n"))
            (link,) = (line.split()[1] for line in lines if line.startswith("Dashboard "))
            with chromium() as browser:
                yield Stage(browser, link)
        except NoBrowserError as error:
            pytest.fail(str(error), pytrace=False)
        finally:
            process.kill()


def expect_unlocked(page: Page, stage: Stage) -> None:
    expect(page.get_by_text("Live", exact=True)).to_be_visible()
    expect(page).to_have_url(re.compile(r"/#/runs/\w+$"))
    assert stage.token not in page.url
    expect(page.get_by_role("dialog", name="Access token")).to_be_hidden()


def test_a_link_unlocks_the_page_and_its_token_leaves_the_address_and_the_history(stage: Stage) -> None:
    with watched_page(stage.browser, stage.url) as (page, watch):
        asked: list[str] = []
        page.on("request", lambda request: asked.append(f"{request.url.partition('#')[0]} {request.headers}"))
        page.goto(stage.link)
        expect_unlocked(page, stage)
        page.reload()
        expect_unlocked(page, stage)
        page.go_back()
        assert stage.token not in page.url
        watch.check()
    with_token = [line for line in asked if stage.token in line]
    assert all(line.startswith(f"{stage.url}/api/v1/") for line in with_token)
    assert all(line.count(stage.token) == 1 and f"Bearer {stage.token}" in line for line in with_token)


def test_a_link_leaves_the_bare_address_where_no_run_is_chosen(stage: Stage) -> None:
    with watched_page(stage.browser, stage.url, size=(390, 740)) as (page, _):
        page.goto(stage.link)
        expect(page.get_by_text("Live", exact=True)).to_be_visible()
        expect(page).to_have_url(f"{stage.url}/")
        assert page.evaluate("history.length") == 2, "the empty page, and this"


def test_a_link_followed_where_the_page_is_open_counts_if_its_token_does(stage: Stage) -> None:
    with watched_page(stage.browser, stage.url) as (page, _):
        page.goto(stage.url)
        dialog = page.get_by_role("dialog", name="Access token")
        expect(dialog).to_be_visible()
        page.goto(stage.link)
        expect_unlocked(page, stage)

        page.goto(f"{stage.url}/#token={'wrong' * 9}")

        expect(dialog.get_by_role("alert")).to_contain_text("token")
        assert "wrong" not in page.url
        page.reload()
        expect_unlocked(page, stage)


def test_the_private_file_leads_to_the_page(stage: Stage, tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    file.write_text(PAGE.format(link=stage.link), encoding="utf-8")
    with watched_page(stage.browser, stage.url) as (page, _):
        page.goto(file.as_uri())
        expect_unlocked(page, stage)
