"""Programs that a test runs to their end."""

import subprocess
import sys
from pathlib import Path
from typing import Any

from support.patience import HANG_S

Done = subprocess.CompletedProcess[str]


def run_program(*command: str | Path, timeout_s: float = HANG_S, **how: Any) -> Done:
    """Run a program, in whatever folder and environment, and return its exit code and all it wrote."""
    words = list(map(str, command))
    return subprocess.run(words, capture_output=True, text=True, timeout=timeout_s, check=False, **how)


def run_python(*arguments: str | Path, **how: Any) -> Done:
    """Run the interpreter that runs the tests."""
    return run_program(sys.executable, *arguments, **how)
