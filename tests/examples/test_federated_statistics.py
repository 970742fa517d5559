"""The example runs as its docstring says, and what it prints is right."""

import re
import subprocess
import sys
from pathlib import Path

from support.patience import HANG_S

EXAMPLE = Path(__file__).parents[2] / "examples" / "federated_statistics.py"


def test_all_ways_to_add_up_agree_and_are_printed_side_by_side() -> None:
    done = subprocess.run([sys.executable, EXAMPLE], capture_output=True, text=True, timeout=HANG_S, check=False)

    assert (done.returncode, done.stderr) == (0, "")
    lines = [re.split(r"  +", line.strip()) for line in done.stdout.splitlines()]
    figures = {way: row for way, *row in lines if len(row) == 6 and way != "added up by"}
    assert figures.keys() == {"plain", "library", "service, dense", "service, sparse"}
    # From 400 to 440 patients in each of five hospitals.
    assert all(row[0] == "2100" and row == figures["plain"] for row in figures.values())
    assert "All four are equal, number by number." in done.stdout
