"""`hubbub bench`: the benchmarks of the source tree, or a clear word where there is none."""

from pathlib import Path

import pytest

from hubbub_cli import bench
from support.command_line import Hubbub, run_hubbub


def test_arguments_and_exit_code_are_passed_on(tmp_path: Path) -> None:
    ended = run_hubbub("bench", "--quick", "--json", tmp_path / "nowhere" / "out.json")

    assert ended.code == 2
    assert f"--json: there is no folder {tmp_path / 'nowhere'}" in ended.err


def test_outside_a_checkout_it_is_told_where_they_are(
    hubbub: Hubbub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(bench, "SOURCE_TREE", tmp_path)

    complaint = "the benchmarks are in the source tree, not in the installed package"
    hubbub("bench", "--quick").check_refused(complaint)
