"""The tutorial: its files written and its commands typed, as its reader does."""

import re
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hubbub_cli.rabbitmq_node import find_free_ports
from hubbub_cli.trial import open_trial
from support.program import run_program
from support.thorough import only_thorough

ROOT = Path(__file__).parents[2]
TUTORIAL = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
PROCESSES = "## 4. As separate processes"


def write_files(text: str, folder: Path) -> None:
    """Write the blocks that begin with the name of a file."""
    for name, block in re.findall(r"^```python\n# (\w+\.py)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        (folder / name).write_text(block, encoding="utf-8")


def read_commands(text: str) -> Iterator[str]:
    """Yield what is typed, without prompts and without what the commands print."""
    for kind, block in re.findall(r"^```(console|sh)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        lines = block.splitlines()
        yield from lines if kind == "sh" else (line[2:] for line in lines if line.startswith("$ "))


def follow(text: str, folder: Path, **environment: str) -> str:
    """Do what the text says, in a folder with a `.venv` whose programs are those of these tests."""
    programs = folder / ".venv" / "bin"
    programs.mkdir(parents=True)
    write_program(programs / "python", f'exec {sys.executable} "$@"')
    write_program(programs / "hubbub", f'exec {sys.executable} -c "from hubbub_cli.main import main; main()" "$@"')
    write_files(text, folder)
    script = "\n".join(["set -e", *read_commands(text)])
    done = run_program("bash", "-c", script, cwd=folder, env={"HOME": str(folder), **environment})
    logs = "".join(
        f"{path.name}: {path.read_text()[-2000:]}\n" for path in sorted(folder.glob("trial/logs/*.log"))
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{logs}"
    return done.stdout


def write_program(path: Path, command: str) -> None:
    path.write_text(f"#!/bin/sh\n{command}\n", encoding="utf-8")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def test_files_task_and_demo_do_what_the_tutorial_says(tmp_path: Path) -> None:
    said = follow(TUTORIAL.split(PROCESSES)[0], tmp_path, PATH="/usr/bin:/bin")

    assert re.findall(r"\d+ (?:patients|total)", said) == [
        "191 patients",
        "191 patients",
        "190 patients",
        "572 total",
    ]
    scores = [float(score) for score in re.findall(r"^ +\d +3 +(0\.\d+) +1,025 ", said, re.MULTILINE)]
    assert len(scores) == 5
    assert min(scores) > 0.95
    assert "All 3 clients hold the same model" in said


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder whose federation, if there is one, is ended at last."""
    yield tmp_path
    if (tmp_path / "trial").exists():
        open_trial(tmp_path / "trial").stop()


@only_thorough
@pytest.mark.broker
def test_all_of_the_tutorial_ends_with_a_model_of_separate_processes(folder: Path, rabbitmq_server: None) -> None:
    del rabbitmq_server
    (port,) = find_free_ports(1)

    at = {"HUBBUB_COORDINATOR_PORT": str(port), "HUBBUB_URL": f"http://127.0.0.1:{port}"}
    said = follow(TUTORIAL, folder, PATH="/usr/bin:/bin", **at)

    assert "the run is complete: all 5 rounds are done" in said
    assert 50 < float(said.rsplit("with a probability of ", 1)[1].split("%")[0]) < 100
    assert said.endswith("all processes have ended\n")
