"""Fixtures that tests of the command share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from hubbub_cli import doctor_checks
from support.command_line import Hubbub, make_hubbub
from support.doctor_scene import ROLES
from support.live_coordinator import LiveCoordinator, live_coordinator
from support.party_files import PartyFiles, write_party_files


@pytest.fixture
def hubbub(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Hubbub:
    """The command, in this process, without the settings and the coordinator of whoever runs the tests."""
    for variable in ("HUBBUB_URL", "HUBBUB_TOKEN_FILE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(doctor_checks, "DEFAULT_URL", "http://127.0.0.1:1")
    return make_hubbub(monkeypatch, capsys)


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PartyFiles:
    """A federation's files; nothing is set in the environment, and no data are there."""
    monkeypatch.setenv("HUBBUB_CACHE", str(tmp_path / "cache"))
    (tmp_path / "files").mkdir()
    return write_party_files(tmp_path / "files", ROLES)


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCoordinator]:
    """A coordinator that the tests of a file share."""
    with live_coordinator(tmp_path_factory.mktemp("live")) as live:
        yield live


@pytest.fixture
def held(tmp_path: Path) -> Iterator[LiveCoordinator]:
    """A coordinator of one's own; in the second round the last client is silent until it is let go."""
    with live_coordinator(tmp_path, (2, 2)) as live:
        yield live
