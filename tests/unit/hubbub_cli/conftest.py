"""What tests of the command share."""

import pytest

from support.command_line import Hubbub, make_hubbub


@pytest.fixture
def hubbub(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Hubbub:
    """The command, in this process, without the settings of whoever runs the tests."""
    for variable in ("HUBBUB_URL", "HUBBUB_TOKEN_FILE"):
        monkeypatch.delenv(variable, raising=False)
    return make_hubbub(monkeypatch, capsys)
