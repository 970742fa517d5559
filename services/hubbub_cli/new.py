"""`hubbub new`: writes a starter project, for one organisation and a task of its own."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from hubbub import __version__
from hubbub.errors import ConfigurationError

SUFFIX = ".template"


def new_project(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The project's folder, new or empty.")],
    task: Annotated[
        str | None, typer.Option(help="What manifests call the task; the folder's name if not given.")
    ] = None,
) -> None:
    """Write a starter project: a task, its test, a policy, a compose file."""
    name = re.sub(r"[^a-z0-9]+", "-", (task or folder.resolve().name).lower()).strip("-")
    if not name:
        raise ConfigurationError(f"{folder} has no letter or digit to name the task by: give --task")
    written = write_project(folder, name)
    typer.echo(f"{', '.join(written)} written to {folder}\n\nNext: pytest {folder}")


def write_project(folder: Path, task: str) -> list[str]:
    """Fill in the templates; raise `ConfigurationError` if the folder is not empty."""
    contents = {
        each.name.removesuffix(SUFFIX): each.read_text(encoding="utf-8")
        .replace("{{task}}", task)
        .replace("{{version}}", __version__)
        for each in files("hubbub_cli").joinpath("starter").iterdir()
        if each.name.endswith(SUFFIX)
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise ConfigurationError(f"{folder} is not empty: name another folder")
        for name, content in contents.items():
            (folder / name).write_text(content, encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"{folder} cannot be written: {error.strerror}") from None
    return sorted(contents)
