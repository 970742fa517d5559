"""Docker, through its command line: images that were built, and containers of them."""

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Self

import pytest

from hubbub import __version__
from support.program import run_program

ASKED = "HUBBUB_CONTAINERS"
ROOT = Path(__file__).parents[2]
SERVICES = ("coordinator", "aggregator", "trainer")
STOP_S = 30
"""More than enough, and much less than what the compose file grants: it is there for phases that take long."""
_COMMAND_S = 600


def skip_unless_asked() -> None:
    """Leave a whole file of tests out of an ordinary run: they take images, and minutes."""
    if not os.environ.get(ASKED):
        pytest.skip("takes images and minutes: make test-containers", allow_module_level=True)


class DockerError(RuntimeError):
    """A command of Docker failed; the message is what it said."""


def docker(*arguments: str, environment: Mapping[str, str] | None = None) -> str:
    """Run a command of Docker's, and return what it wrote."""
    variables = {**os.environ, **(environment or {})}
    ended = run_program("docker", *arguments, cwd=ROOT, env=variables, timeout_s=_COMMAND_S)
    if ended.returncode:
        raise DockerError(f"docker {' '.join(arguments)}: {ended.returncode}\n{ended.stderr.strip()}")
    return ended.stdout


@cache
def find_problem() -> str:
    """Why nothing can be tried with containers here; empty if all is there."""
    try:
        docker("version")
        docker("compose", "version")
        for service in SERVICES:
            docker("image", "inspect", image_of(service))
    except FileNotFoundError:
        return "there is no docker command"
    except DockerError as error:
        return str(error)
    return ""


def image_of(service: str) -> str:
    """The image of a service, in the version of the sources."""
    return f"hubbub-{service}:{__version__}"


def inspect(what: str) -> dict[str, Any]:
    """All that Docker knows of a container or an image: its JSON, of no fixed shape."""
    (found,) = json.loads(docker("inspect", what))
    return dict(found)


class Container:
    """One that a test starts and removes, shut off from every network and with a read-only root unless told."""

    def __init__(self, image: str, *arguments: str, options: Sequence[str] = ()) -> None:
        confined = ("--read-only", "--network", "none", "--cap-drop", "ALL")
        self.id = docker("run", "--detach", *confined, *options, image, *arguments).strip()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        docker("rm", "--force", "--volumes", self.id)

    def wait(self) -> tuple[int, str]:
        """Wait for its end: the exit code, and all it wrote."""
        code = int(docker("wait", self.id))
        return code, self.read_log()

    def read_log(self) -> str:
        ended = subprocess.run(
            ["docker", "logs", self.id],  # noqa: S607
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=True,
        )
        return ended.stdout

    def stop(self) -> int:
        """Tell it to stop, kill it if it does not, and give the exit code."""
        docker("stop", "--time", str(STOP_S), self.id)
        return int(inspect(self.id)["State"]["ExitCode"])
