"""The examples, run as their own first lines say."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.patience import HANG_S

PROJECT = Path(__file__).resolve().parents[2]
HUBBUB = [sys.executable, "-c", "from hubbub_cli.main import main; main()"]


def read_command(file: str) -> list[str]:
    """The command in the text at the top of an example."""
    found = re.search(r"^    hubbub (.+)$", (PROJECT / "examples" / file).read_text("utf-8"), re.MULTILINE)
    assert found, f"{file} does not say how to run it"
    return found[1].split()


def run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=HANG_S, check=False)


def run_demo(file: str, out: Path) -> dict[str, Any]:
    done = run([*HUBBUB, *read_command(file), "--json", str(out)])
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(out.read_text("utf-8"))
    return report


@pytest.mark.parametrize(
    ("file", "task", "parameters", "headline", "good"),
    [
        ("breast_cancer.py", "breast-cancer", 30 * 32 + 32 + 32 * 2 + 2, "auc", 0.97),
        ("diabetes.py", "diabetes", 10 * 32 + 32 + 32 + 1, "r2", 0.25),
        # Two rows and two columns for each of three layers, and nothing of the layers themselves.
        ("adapters.py", "upside-down-digits", 2 * (64 + 512 + 512 + 256 + 256 + 10), "accuracy", 0.8),
    ],
)
def test_a_task_of_ones_own_learns(
    file: str, task: str, parameters: int, headline: str, good: float, tmp_path: Path
) -> None:
    report = run_demo(file, tmp_path / "out.json")

    assert (report["task"], report["parameters"]) == (task, parameters)
    assert report["headline"] == {"name": headline, "higher_is_better": True}
    assert report["rounds"][-1]["metrics"][headline] > good
    assert [("accuracy" in each) for each in report["rounds"]] == [headline != "r2"] * len(report["rounds"])
