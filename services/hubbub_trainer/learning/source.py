"""Digests of a task's source: its files and settings, or the version of Hubbub if the task comes with it.

A trainer keeps them when it joins a run, so that its owner learns if the task is changed during the run. They stay
with the trainer.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from hashlib import sha256
from importlib.util import resolve_name
from pathlib import Path
from types import ModuleType
from typing import TypeAlias

from hubbub import __version__
from hubbub_trainer.learning.task import Task

Source: TypeAlias = Mapping[str, str]
"""A digest for each file, by its path, and for each setting."""

_OURS = frozenset({"hubbub", "hubbub_trainer"})
_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_NOTED: dict[int, tuple[Task, Source]] = {}
"""Sources of the operator's own tasks as they were imported; by id, because any object may be a task."""


def note_source(task: Task, code: object, module: ModuleType) -> None:
    """Note the source of a task that was just imported: `code` is the operator's object, found in `module`."""
    settings = {f"setting {name}": _digest(repr(value).encode()) for name, value in _list_settings(code)}
    _NOTED[id(task)] = task, {**_digest_files(module), **settings}


def digest_source(task: Task) -> Source:
    """Return the digests of a task's source."""
    _, source = _NOTED.get(id(task), (task, {"hubbub": __version__}))
    return source


@cache
def _digest_files(module: ModuleType) -> Source:
    """Digest the file of a module, and every file of its own package or folder that it imports.

    This is done once in a process: a file that changes later is not the code that runs here.
    """
    first = _file_of(module)
    if first is None:
        return {}
    found: set[Path] = set()
    _collect(module, first.parents[(module.__package__ or "").count(".")], found)
    return {str(path): _digest(path.read_bytes()) for path in sorted(found)}


def _collect(module: ModuleType, folder: Path, found: set[Path]) -> None:
    path = _file_of(module)
    if path is None or path in found or not path.is_relative_to(folder):
        return
    # Hubbub or a virtual environment may be in the operator's folder.
    if module.__name__.partition(".")[0] in _OURS or "site-packages" in path.relative_to(folder).parts:
        return
    found.add(path)
    for name in _list_imports(path, module.__package__ or ""):
        if name in sys.modules:
            _collect(sys.modules[name], folder, found)


def _list_imports(path: Path, package: str) -> Iterator[str]:
    """List the names of all modules that a file may import, and some names that are no modules."""
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            with suppress(ImportError):
                name = resolve_name(f"{'.' * node.level}{node.module or ''}", package)
                yield from (name, *(f"{name}.{alias.name}" for alias in node.names))


def _file_of(module: ModuleType) -> Path | None:
    name = getattr(module, "__file__", None)
    path = Path(name).resolve() if name else None
    return path if path is not None and path.suffix == ".py" and path.is_file() else None


def _list_settings(code: object) -> Iterator[tuple[str, object]]:
    """List the public attributes that hold plain values. Properties are not read: they may load data."""
    layers = (*(vars(kind) for kind in reversed(type(code).__mro__)), getattr(code, "__dict__", {}))
    settings = {name: value for layer in layers for name, value in layer.items() if not name.startswith("_")}
    return ((name, value) for name, value in sorted(settings.items()) if _is_plain(value))


def _is_plain(value: object) -> bool:
    if isinstance(value, Mapping):
        return all(_is_plain(each) for pair in value.items() for each in pair)
    return all(map(_is_plain, value)) if isinstance(value, tuple | list) else isinstance(value, _PLAIN)


def _digest(content: bytes) -> str:
    return sha256(content).hexdigest()
