"""The `hubbub` command as a user runs it: in this process for its output, in one of its own for its end."""

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import typer.main

from hubbub_cli.main import app, main
from support.patience import HANG_S

CODE = "from hubbub_cli.main import main; main()"


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of a command: its exit code, and all it said."""

    code: int
    out: str
    err: str

    @property
    def joined(self) -> str:
        """All it said as one line: where the terminal breaks does not matter."""
        return " ".join(self.out.split())

    @property
    def json(self) -> Any:
        """The document that it printed; what is in it, the assertions say."""
        return json.loads(self.out)

    def check_done(self) -> str:
        """Check that all went well, and return what was said."""
        assert self.code == 0, self
        return self.out

    def check_refused(self, complaint: str) -> None:
        """Check that the command said in one line, and nothing else, that what was asked for cannot be."""
        assert (self.code, self.out) == (2, ""), self
        assert complaint in self.err
        assert self.err.count("\n") == 1
        assert "Traceback" not in self.err


Hubbub = Callable[..., Ended]


def list_below(command: object) -> dict[str, object]:
    """The subcommands of a group; a command that does something has none."""
    return getattr(command, "commands", {})


def walk(name: str, command: object) -> Iterator[tuple[str, object]]:
    yield name, command
    for word, each in list_below(command).items():
        yield from walk(f"{name} {word}".strip(), each)


COMMANDS = dict(walk("", typer.main.get_command(app)))
"""Every command and group, as it is written after `hubbub`."""


def make_hubbub(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Hubbub:
    """Make a function that runs the command in this process."""

    def run(*arguments: str | Path | int, columns: int = 100, typed: str = "") -> Ended:
        monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
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


def run_hubbub(*arguments: str | Path) -> Ended:
    """Run the command as a process: some set up logging and the event loop for the whole process."""
    with start_hubbub(*arguments) as process:
        out, err = process.communicate(timeout=HANG_S)
    return Ended(process.returncode, out, err)
