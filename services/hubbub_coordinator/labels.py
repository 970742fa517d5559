"""Names and notes that operators give to runs.

They are kept beside the event store, because an ended run takes no events.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, StringConstraints, TypeAdapter, ValidationError

from hubbub.disk import replacing
from hubbub.errors import ConfigurationError
from hubbub.ids import RunId

MAX_NAME_CHARACTERS = 60
MAX_NOTE_CHARACTERS = 2000


class Label(BaseModel):
    """Name and note of a run; empty if nobody gave any."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Annotated[
        str,
        StringConstraints(strip_whitespace=True, max_length=MAX_NAME_CHARACTERS, pattern=r"^[^\x00-\x1f\x7f]*$"),
    ] = ""
    note: Annotated[str, StringConstraints(strip_whitespace=True, max_length=MAX_NOTE_CHARACTERS)] = ""


NO_LABEL = Label()
_FILE = TypeAdapter(dict[RunId, Label])


class Labels:
    """Labels of all runs, in one file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._labels: Mapping[RunId, Label] = _read(path)

    def find(self, run: RunId) -> Label:
        """Return the label of a run."""
        return self._labels.get(run, NO_LABEL)

    def put(self, run: RunId, label: Label) -> None:
        """Give a run another label; it is on disk when this returns."""
        labels = {**self._labels, run: label}
        with replacing(self._path) as file:
            file.write(_FILE.dump_json(labels, indent=1))
        self._labels = labels


def _read(path: Path) -> dict[RunId, Label]:
    try:
        return _FILE.validate_json(path.read_bytes())
    except FileNotFoundError:
        return {}
    except ValidationError:
        raise ConfigurationError(
            f"{path} should hold the names and notes of runs and cannot be read: repair it, or move it away"
        ) from None
