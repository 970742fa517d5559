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


def read_command(place: str) -> list[str]:
    """The command for a file, or for a class in it, in the text at the top of an example."""
    text = (PROJECT / "examples" / place.partition(":")[0]).read_text("utf-8")
    found = re.search(rf"^    hubbub (.+ examples/{place} .+)$", text, re.MULTILINE)
    assert found, f"{place} does not say how to run it"
    return found[1].split()


def run(*command: str | Path) -> str:
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=HANG_S, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.parametrize(
    ("place", "task", "parameters", "headline", "good"),
    [
        ("breast_cancer.py", "breast-cancer", 30 * 32 + 32 + 32 * 2 + 2, "auc", 0.97),
        ("diabetes.py", "diabetes", 10 * 32 + 32 + 32 + 1, "r2", 0.25),
        # Two rows and two columns for each of three layers, and nothing of the layers themselves.
        ("scikit_learn.py:LinearGrades", "linear-grades", 30 + 1, "auc", 0.97),
        ("scikit_learn.py:NetworkGrades", "network-grades", 30 * 16 + 16 + 16 + 1, "auc", 0.97),
        ("adapters.py", "upside-down-digits", 2 * (64 + 512 + 512 + 256 + 256 + 10), "accuracy", 0.8),
    ],
)
def test_a_task_of_ones_own_learns(
    place: str, task: str, parameters: int, headline: str, good: float, tmp_path: Path
) -> None:
    out, log = tmp_path / "out.json", tmp_path / "demo.log"

    run(*HUBBUB, *read_command(place), "--json", out, "--log", log)

    report: dict[str, Any] = json.loads(out.read_text("utf-8"))
    assert (report["task"], report["parameters"]) == (task, parameters)
    assert report["headline"] == {"name": headline, "higher_is_better": True}
    assert report["rounds"][-1]["metrics"][headline] > good
    assert [("accuracy" in each) for each in report["rounds"]] == [headline != "r2"] * len(report["rounds"])
    levels = [line["level"] for line in map(json.loads, log.read_text("utf-8").splitlines())]
    assert set(levels) == {"info"}, "all targets are in their range"


def test_all_ways_to_add_up_statistics_agree_and_are_printed_side_by_side() -> None:
    printed = run(sys.executable, PROJECT / "examples" / "federated_statistics.py")

    lines = [re.split(r"  +", line.strip()) for line in printed.splitlines()]
    figures = {way: row for way, *row in lines if len(row) == 6 and way != "added up by"}
    assert figures.keys() == {"plain", "library", "service, dense", "service, sparse"}
    # From 400 to 440 patients in each of five hospitals.
    assert all(row[0] == "2100" and row == figures["plain"] for row in figures.values())
    # Of 100 years of birth, each as likely as the others.
    assert float(figures["plain"][2]) == pytest.approx((100**2 - 1) / 12, rel=0.05)
    assert "All four are equal, number by number." in printed


def test_a_script_compares_strategies_goes_on_from_a_model_and_uses_it() -> None:
    done = subprocess.run(
        [sys.executable, PROJECT / "examples" / "simulate.py"],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=True,
    )

    accuracies = dict(re.findall(r"^ ?(sec-union|fedavg) +(\d+\.\d)%", done.stdout, re.MULTILINE))
    assert accuracies.keys() == {"sec-union", "fedavg"}
    assert all(float(accuracy) > 85 for accuracy in accuracies.values())
    (losses,) = re.findall(r"with two more rounds: (.*)$", done.stdout, re.MULTILINE)
    assert len(losses.split(", ")) == 6
    assert "In plain PyTorch" in done.stdout
    assert [line.partition(":")[0] for line in done.stderr.splitlines()] == [
        f"round {number} of 4" for number in (1, 2, 3, 4)
    ] * 2
