"""`tools/install.py`, which the Makefile installs with, and what each of the Makefile's targets installs."""

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOOL = ROOT / "tools" / "install.py"
describe = runpy.run_path(str(TOOL))["describe"]


@pytest.mark.parametrize(
    ("said", "installed", "shown"),
    [
        ([], 0, "asking for packages"),
        (["Collecting a\n", "  Downloading a.whl (9 MB)\n", "   ━━━━\n"], 0, "downloading a.whl (9 MB)"),
        (["Processing /a/path/rich.whl (from hubbub)\n", "WARNING: no index\n"], 0, "processing rich.whl"),
        (["Installing collected packages: rich, numpy, torch\n"], 2, "installing 2 of 3 packages"),
        (["Successfully installed numpy-2.2 torch-2.13\n"], 2, "installed 2 packages"),
    ],
)
def test_progress_says_what_pip_is_doing(said: list[str], installed: int, shown: str) -> None:
    assert describe(said, installed) == shown


def test_what_pip_says_of_a_failure_is_shown() -> None:
    wanted = [str(TOOL), "--no-index", "--dry-run", "no-such-package-anywhere"]

    done = subprocess.run([sys.executable, *wanted], capture_output=True, text=True, check=False)

    assert done.returncode == 1
    assert "No matching distribution found for no-such-package-anywhere" in done.stderr


def test_the_demo_alone_goes_without_the_tools_for_development() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    rules = dict(re.findall(r"^([a-z-]+|\$\(\w+\)):(.*(?:\n\t.*)*)", makefile, re.MULTILINE))
    light = {name for name, rule in rules.items() if re.search(r"\$\(READY\)", rule)}
    bare = {name for name, rule in rules.items() if "$(BIN)" in rule and "READY)" not in rule}

    assert light == {"demo", "$(DEV_READY)"}
    assert bare == {"$(READY)"}
    assert "dev" not in rules["$(READY)"]
