"""An `npm` of our own, on an otherwise empty PATH."""

from collections.abc import Callable
from pathlib import Path

import pytest

from support.npm_packages import write_npm


@pytest.fixture
def install_npm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Let `npm` run a shell script's lines; return the file in which it notes its calls."""
    calls = tmp_path / "calls.txt"

    def install(body: str) -> Path:
        write_npm(tmp_path / "bin", body, calls)
        monkeypatch.setenv("PATH", str(tmp_path / "bin"))
        return calls

    return install


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """A folder for what is fetched, which does not exist yet."""
    return tmp_path / "cache"


@pytest.fixture
def publish(tmp_path: Path, install_npm: Callable[[str], Path]) -> Callable[[bytes], Path]:
    """Let `npm pack` deliver a given archive."""

    def deliver(archive: bytes) -> Path:
        (tmp_path / "archive").write_bytes(archive)
        return install_npm(f"/bin/cp {tmp_path / 'archive'} package.tgz")

    return deliver
