"""`hubbub bench`: the benchmarks of the source tree."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import typer

from hubbub.errors import ConfigurationError

SOURCE_TREE = Path(__file__).parents[2]
PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True}


def bench(context: typer.Context) -> None:
    """Measure what the protocol costs on this machine; needs the source tree.

    All arguments go to the benchmarks: `hubbub bench -- --help` lists them.
    """
    if not (SOURCE_TREE / "benchmarks" / "__main__.py").is_file():
        raise ConfigurationError(
            "the benchmarks are in the source tree, not in the installed package: clone the repository and run"
            " `make bench` there"
        )
    # The working folder stays: file names among the arguments are relative to it.
    found_in = os.pathsep.join(filter(None, (str(SOURCE_TREE), os.environ.get("PYTHONPATH"))))
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", *context.args],
        env={**os.environ, "PYTHONPATH": found_in},
        check=False,
    )
    # Like a shell: 128 plus the signal's number.
    raise typer.Exit(done.returncode if done.returncode >= 0 else 128 - done.returncode)
