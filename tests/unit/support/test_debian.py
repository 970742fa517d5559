"""Packages are installed by one test at a time: apt-get refuses a second."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from support import debian

# Like the real one it fails if another is at work, and it takes its time.
APT_GET = """#!/bin/sh
mkdir "$PLACE/busy" || exit 100
echo "$@" >> "$PLACE/done"
sleep 0.05
rmdir "$PLACE/busy"
"""


def test_two_that_install_at_the_same_time_take_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "apt-get").write_text(APT_GET)
    (tmp_path / "apt-get").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("PLACE", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(debian.install, [f"package-{number}" for number in range(8)]))

    done = (tmp_path / "done").read_text().splitlines()
    assert len(done) == 2 * 8
    # Nobody comes between somebody's two commands.
    assert [line.rpartition(" ")[2] for line in done[::2]] == ["update"] * 8
    assert sorted(line.rpartition(" ")[2] for line in done[1::2]) == [f"package-{number}" for number in range(8)]
