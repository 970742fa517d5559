"""Installs packages with pip and shows its progress: on one line in a terminal, or a line every few seconds.

`python tools/install.py ARGUMENTS` passes its arguments to `pip install`. pip's own output is shown if it fails.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import threading
import time
from pathlib import Path

INSTALLING = "Installing collected packages: "
STEPS = ("Collecting ", "Downloading ", "Processing ", "Building ", INSTALLING, "Successfully installed ")
WIDTH = 78


def main() -> None:
    """Run pip until it ends."""
    began, packages = time.monotonic(), Path(sysconfig.get_path("purelib"))
    before = count_installed(packages)
    said: list[str] = []
    pip = subprocess.Popen(
        [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", *sys.argv[1:]],
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    reader = threading.Thread(target=collect, args=(pip, said), daemon=True)
    reader.start()
    is_terminal = sys.stdout.isatty()
    try:
        while reader.is_alive():
            reader.join(0.2 if is_terminal else 5)
            line = f"  {time.monotonic() - began:3.0f} s  {describe(said, count_installed(packages) - before)}"
            print(f"\r\033[K{line[:WIDTH]}" if is_terminal else line, end="" if is_terminal else "\n", flush=True)
    except KeyboardInterrupt:
        # pip has it too.
        pip.wait()
        sys.exit("\nStopped; the same command goes on from here.")
    if is_terminal:
        print()
    if pip.wait():
        sys.exit("".join(said))


def collect(pip: subprocess.Popen[str], said: list[str]) -> None:
    """Keep pip's lines as they come."""
    for line in pip.stdout or ():
        said.append(line)  # noqa: PERF402  (One by one: the other thread shows the last.)


def describe(said: list[str], installed: int) -> str:
    """Describe what pip is doing, from its lines and the number of packages that are installed since."""
    last = next((line.strip() for line in reversed(said) if line.lstrip().startswith(STEPS)), "")
    if last.startswith(INSTALLING):
        return f"installing {installed} of {last.count(',') + 1} packages"
    if last.startswith("Successfully"):
        return f"installed {last.count(' ') - 1} packages"
    verb, _, what = last.partition(" (from ")[0].partition(" ")
    # Paths are long and their ends tell.
    return f"{verb.lower()} {what.rpartition('/')[2]}" if what else "asking for packages"


def count_installed(packages: Path) -> int:
    """Count the packages in an environment."""
    return sum(1 for _ in packages.glob("*.dist-info"))


if __name__ == "__main__":
    main()
