"""The `hubbub` command as a user runs it: in this process for its output, in one of its own for its end."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from hubbub_cli.main import main

CODE = "from hubbub_cli.main import main; main()"


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended and what it said."""

    code: int
    out: str
    err: str

    @property
    def joined(self) -> str:
        """All it said as one line: where the terminal breaks does not matter."""
        return " ".join(self.out.split())


Hubbub = Callable[..., Ended]


def make_hubbub(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Hubbub:
    """Make a function that runs the command in this process."""

    def run(*arguments: str | Path | int, columns: int = 100) -> Ended:
        monkeypatch.setattr(sys, "argv", ["hubbub", *map(str, arguments)])
        monkeypatch.setenv("COLUMNS", str(columns))
        with pytest.raises(SystemExit) as left:
            main()
        out, err = capsys.readouterr()
        code = left.value.code
        return Ended(code if isinstance(code, int) else 0, out, err)

    return run


def start_hubbub(*arguments: str | Path, **environment: str) -> subprocess.Popen[str]:
    """Start the command as a process whose output is piped."""
    return subprocess.Popen(
        [sys.executable, "-c", CODE, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )
