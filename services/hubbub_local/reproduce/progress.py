"""What is kept while runs go on, so that they can be resumed: `results.json`, whole at any moment."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from hubbub import __version__
from hubbub.disk import replace_file
from hubbub.errors import ConfigurationError
from hubbub_local.reproduce.plan import Method, Settings, describe_changes
from hubbub_local.reproduce.records import RunRecord

FILE = "results.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Where and when the first run was begun."""

    hubbub: str
    python: str
    cores: int
    begun: str

    @classmethod
    def here(cls) -> Machine:
        """This one, now."""
        return cls(
            hubbub=__version__,
            python=platform.python_version(),
            cores=os.cpu_count() or 1,
            begun=f"{datetime.now(UTC):%Y-%m-%d}",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What is in the file."""

    settings: Settings
    machine: Machine
    results: tuple[RunRecord, ...] = ()


_KEPT = TypeAdapter(Kept)


@dataclass(slots=True)
class Ledger:
    """The folder's file, and how to add to it."""

    folder: Path
    kept: Kept
    _place: dict[tuple[str, int], RunRecord] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._place = {(each.name, each.seed): each for each in self.kept.results}

    @property
    def records(self) -> list[RunRecord]:
        """All runs of which at least one round is known, also those that were cut off."""
        return [each for each in self._place.values() if each.by_round]

    def find_finished(self, method: Method, seed: int) -> RunRecord | None:
        """A run that need not be done again."""
        found = self._place.get((method.name, seed))
        if found is not None and found.block != method.block:
            raise ConfigurationError(
                f"{self.folder} holds {method.name} with blocks of {found.block}: give --block {found.block}, or"
                " choose another folder with --out"
            )
        return found if found is not None and found.finished else None

    def keep(self, record: RunRecord) -> None:
        """Write down how far a run is."""
        self._place[record.name, record.seed] = record
        self.save()

    def save(self) -> None:
        """Write the file; a crash leaves what was there before or this."""
        content = {
            "settings": asdict(self.kept.settings),
            "machine": asdict(self.kept.machine),
            "results": [
                {**each.summarise(), "by_round": [asdict(one) for one in each.by_round]}
                for each in self._place.values()
            ],
        }
        try:
            replace_file(self.folder / FILE, (json.dumps(content, indent=1) + "\n").encode())
        except OSError as error:
            raise ConfigurationError(f"{self.folder / FILE} cannot be written: {error.strerror}") from None


def open_ledger(folder: Path, settings: Settings, *, resume: bool) -> Ledger:
    """Begin in an empty folder, or go on with what is there if that is wanted and fits."""
    there = _list(folder)
    if not there:
        return Ledger(folder, Kept(settings=settings, machine=Machine.here()))
    if not resume:
        raise ConfigurationError(
            f"{folder} is not empty: go on with what is there with --resume, or choose another folder with --out"
        )
    if FILE not in there:
        raise ConfigurationError(f"there is no {FILE} in {folder} to go on with: choose another folder with --out")
    kept = _read(folder / FILE)
    changes = describe_changes(kept.settings, settings)
    if kept.machine.hubbub != __version__:
        changes.append(f"hubbub {__version__} instead of {kept.machine.hubbub}")
    if changes:
        raise ConfigurationError(
            f"{folder} holds runs with other settings: {'; '.join(changes)}. Give the same settings, or choose"
            " another folder with --out"
        )
    return Ledger(folder, kept)


def _list(folder: Path) -> Sequence[str]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return [path.name for path in folder.iterdir()]
    except OSError as error:
        raise ConfigurationError(f"--out: {folder} cannot be used: {error.strerror}") from None


def _read(path: Path) -> Kept:
    try:
        return _KEPT.validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        why = error.strerror if isinstance(error, OSError) else error.errors()[0]["msg"]
        raise ConfigurationError(f"{path} cannot be read ({why}): choose another folder with --out") from None
