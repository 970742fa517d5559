"""Folder of a trial federation, written once and completely.

`public` is for everybody; every other folder is for one party, the operator, the monitor or the broker. A
marker file in `public` exists while it is being written. Nobody has used what an interrupted attempt left, so it
is written again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import Enum, auto
from pathlib import Path
from types import MappingProxyType

from hubbub.disk import create_file, sync_folder
from hubbub.errors import ConfigurationError

PUBLIC = "public"
OPERATOR = "operator"
MONITOR = "monitor"
BROKER = "broker"
COORDINATOR = "coordinator"

ROSTER_FILE = "roster.json"
DEFINITIONS_FILE = "definitions.json"
MANIFEST_FILE = "manifest.json"
IDENTITY_FILE = "identity.json"
SETTINGS_FILE = "settings.toml"
POLICY_FILE = "policy.toml"
READ_TOKEN_FILE = "read.token"  # noqa: S105  (A name.)
CHANGE_TOKEN_FILE = "change.token"  # noqa: S105  (A name.)
COOKIE_FILE = ".erlang.cookie"
"""Shared secret of RabbitMQ's nodes and tools; Erlang looks for this name in $HOME."""

_MARK = ".unfinished"
_OF_THE_FILE_SYSTEM = frozenset({"lost+found"})
_SECRET_FOLDER, _SECRET_FILE = 0o700, 0o600
_PUBLIC_FOLDER, _PUBLIC_FILE = 0o755, 0o644

_FIXED = MappingProxyType(
    {
        PUBLIC: frozenset({ROSTER_FILE, DEFINITIONS_FILE, MANIFEST_FILE}),
        OPERATOR: frozenset({READ_TOKEN_FILE, CHANGE_TOKEN_FILE}),
        MONITOR: frozenset({READ_TOKEN_FILE}),
        BROKER: frozenset({COOKIE_FILE}),
        COORDINATOR: frozenset({IDENTITY_FILE, SETTINGS_FILE, READ_TOKEN_FILE, CHANGE_TOKEN_FILE}),
    }
)

Contents = Mapping[str, Mapping[str, bytes]]
"""Content of the files, by folder and name."""


class Found(Enum):
    """Content of a folder before writing."""

    NOTHING = auto()
    UNFINISHED = auto()
    ALL = auto()


def name_aggregators(number: int) -> list[str]:
    """Return the names of a trial's aggregators."""
    return [f"aggregator-{index}" for index in range(1, number + 1)]


def name_trainers(number: int) -> list[str]:
    """Return the names of a trial's trainers."""
    return [f"trainer-{index}" for index in range(1, number + 1)]


def list_files(*, clients: int, aggregators: int) -> dict[str, frozenset[str]]:
    """Return the folders of a federation, and the files in each."""
    return {
        **_FIXED,
        **dict.fromkeys(name_aggregators(aggregators), frozenset({IDENTITY_FILE, POLICY_FILE})),
        **dict.fromkeys(name_trainers(clients), frozenset({IDENTITY_FILE, POLICY_FILE})),
    }


def is_unfinished(folder: Path) -> bool:
    """Return whether writing the folder was interrupted."""
    return (folder / PUBLIC / _MARK).exists()


def look_into(folder: Path, wanted: Mapping[str, frozenset[str]]) -> Found:
    """Return how much of a federation is there; existing folders may be empty, such as mount points."""
    with _told_in_a_line(folder, "read"):
        there = {name: _list_folder(folder / name) for name in wanted}
    strangers = [folder / name / each for name in wanted for each in sorted(there[name] - wanted[name] - {_MARK})]
    if strangers:
        raise ConfigurationError(
            f"{strangers[0]} is of no such federation, and nothing is overwritten: name another folder"
        )
    if is_unfinished(folder):
        return Found.UNFINISHED
    if not any(there.values()):
        return Found.NOTHING
    missing = [folder / name / each for name in wanted for each in sorted(wanted[name] - there[name])]
    if missing:
        raise ConfigurationError(
            f"{folder} holds part of a federation, and {missing[0]} is missing: put it back, or remove all of the "
            "federation, its services' state too, and make a new one"
        )
    return Found.ALL


def _list_folder(folder: Path) -> set[str]:
    return {each.name for each in folder.iterdir()} - _OF_THE_FILE_SYSTEM if folder.exists() else set()


def write_contents(folder: Path, contents: Contents) -> None:
    """Write a federation into a folder that holds none, or the rest of an interrupted attempt."""
    with _told_in_a_line(folder, "written"):
        for name in contents:
            _open_folder(folder / name)
        mark = folder / PUBLIC / _MARK
        mark.touch()
        sync_folder(mark.parent)
        for name, files in contents.items():
            _fill(folder / name, files)
        mark.unlink()
        sync_folder(mark.parent)


def _open_folder(path: Path) -> None:
    mode = _PUBLIC_FOLDER if path.name == PUBLIC else _SECRET_FOLDER
    path.mkdir(mode=mode, parents=True, exist_ok=True)
    path.chmod(mode)


def _fill(folder: Path, files: Mapping[str, bytes]) -> None:
    mode = _PUBLIC_FILE if folder.name == PUBLIC else _SECRET_FILE
    for name, content in files.items():
        path = folder / name
        path.unlink(missing_ok=True)
        create_file(path, content, mode)
        path.chmod(mode)  # Whatever the umask: other users read public files.
    sync_folder(folder)


@contextmanager
def _told_in_a_line(folder: Path, done: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigurationError(f"{error.filename or folder} cannot be {done}: {error.strerror}") from None
