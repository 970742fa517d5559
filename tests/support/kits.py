"""Kits, unpacked as their README.md says."""

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from support.program import run_program


def with_hubbub() -> dict[str, str]:
    """This environment without settings, and with the `hubbub` of the interpreter that runs the tests."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("HUBBUB_")}
    return {**inherited, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}


def unpack_kit(archive: Path, readme: str, keys: Path, environment: Mapping[str, str]) -> Path:
    """Do the steps of a README.md between the check and the start, beside the archive; return the new folder."""
    lines = re.findall(r"^ {7}((?:tar|mkdir|hubbub keys tokens) .*)$", readme, re.MULTILINE)
    script = "\n".join(lines).replace("../keys/", f"{keys}/")
    done = run_program("/bin/sh", "-euc", script, cwd=archive.parent, env=environment)
    assert done.returncode == 0, done.stderr
    return archive.parent / archive.name.removesuffix(".kit.tar")
