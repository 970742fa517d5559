"""Background processes: found again by anybody, ended in good order or by force, and never mistaken for others."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hubbub.errors import ConfigurationError
from hubbub_cli import background as module
from hubbub_cli.background import Background
from support.processes import wait_until

SLEEPS = "import time; print('asleep', flush=True); time.sleep(3600)"
DEAF = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {SLEEPS}"


@pytest.fixture
def background(tmp_path: Path) -> Iterator[Background]:
    background = Background(tmp_path / "ids", tmp_path / "logs")
    background.ids.mkdir()
    background.logs.mkdir()
    yield background
    background.kill([path.stem for path in background.ids.glob("*.pid")])


def start(background: Background, name: str, code: str) -> None:
    background.start(name, [sys.executable, "-c", code], os.environ)
    wait_until(lambda: "asleep" in background.read_last_line(name), f"{name} sleeps")


def test_a_process_is_found_by_whoever_looks_and_ends_when_it_is_told_to(background: Background) -> None:
    start(background, "party", SLEEPS)

    again = Background(background.ids, background.logs)
    found = again.find_id("party")
    assert found is not None
    os.kill(found, 0)
    with pytest.raises(ConfigurationError, match="party is running already"):
        again.start("party", [sys.executable, "-c", SLEEPS], os.environ)
    assert again.stop(["party", "stranger"]) == []
    assert again.find_id("party") is None


def test_one_that_does_not_stop_is_killed_and_named(
    background: Background, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "STOP_S", 0.2)
    start(background, "deaf", DEAF)

    assert background.stop(["deaf"]) == ["deaf"]
    assert background.find_id("deaf") is None


def test_the_id_of_one_that_has_ended_is_nobodys(background: Background) -> None:
    start(background, "party", SLEEPS)
    background.stop(["party"])
    # The number goes to another process, here our own.
    (background.ids / "party.pid").write_text(f"{os.getpid()}\n", encoding="ascii")

    assert background.find_id("party") is None
    assert background.stop(["party"]) == []


def test_of_a_line_of_json_the_message_is_told(background: Background) -> None:
    log = background.log_of("party")

    log.write_text('{"level": "info", "message": "connected to the broker"}\n\n', encoding="utf-8")
    assert background.read_last_line("party") == "connected to the broker"
    log.write_text("client: no such file\n", encoding="utf-8")
    assert background.read_last_line("party") == "client: no such file"
    assert background.read_last_line("nobody") == ""


def test_a_program_that_is_not_there_is_named(background: Background, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="missing cannot be started: No such file"):
        background.start("party", [tmp_path / "missing"], {})
    assert background.find_id("party") is None
