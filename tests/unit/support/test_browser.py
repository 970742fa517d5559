"""The order in which tests look for a browser, with fakes: none is started."""

from __future__ import annotations

import subprocess

import pytest

from support import browser
from support.browser import SOURCES, NoBrowserError, UnavailableError, find_chromium


def missing() -> str:
    raise UnavailableError("not here")


def test_the_first_that_is_there_is_taken() -> None:
    assert find_chromium([missing, lambda: "/b", lambda: "/c"]) == "/b"


def test_without_any_the_error_says_why_and_what_to_do() -> None:
    with pytest.raises(NoBrowserError) as failure:
        find_chromium([missing])

    for part in ("not here", "apt-get install chromium", "HUBBUB_TEST_CHROMIUM"):
        assert part in str(failure.value)


def test_the_order_is_environment_installed_package() -> None:
    assert list(SOURCES) == [
        browser.from_environment,
        browser.from_installed_program,
        browser.from_debian_package,
    ]


def test_the_environment_names_a_browser(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUBBUB_TEST_CHROMIUM", "/opt/chrome")

    assert find_chromium() == "/opt/chrome"


def test_nothing_is_installed_by_who_may_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HUBBUB_TEST_CHROMIUM", raising=False)
    monkeypatch.setattr("shutil.which", lambda name: "/usr/bin/apt-get" if name == "apt-get" else None)
    monkeypatch.setattr("os.geteuid", lambda: 1000)

    with pytest.raises(NoBrowserError, match="nothing can be installed"):
        find_chromium()


def test_an_installation_that_fails_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: list[str], **_: object) -> None:
        raise subprocess.CalledProcessError(100, command)

    monkeypatch.setattr("shutil.which", lambda _: "/usr/bin/apt-get")
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr("subprocess.run", run)

    with pytest.raises(UnavailableError, match="apt-get could not install chromium"):
        browser.from_debian_package()
