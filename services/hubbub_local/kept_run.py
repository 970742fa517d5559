"""A run in a folder that outlives its process: who takes part in it, their state, and messages on their way.

It may be stopped or killed at any moment. When it is opened again all parties go on, as after a crash.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from hubbub.disk import replacing
from hubbub.errors import ConfigurationError
from hubbub.messages.manifest import Manifest, read_manifest
from hubbub.runtime.state_folder import LOCK, lock_folder
from hubbub.trust.identity import PRIVATE_SUFFIX, dump_identity, read_identity
from hubbub_local.federation import Parties, gather
from hubbub_trainer.workspace import RECORD

MANIFEST, IDENTITIES, MESSAGES = "manifest.json", "identities", "messages.sqlite"
IGNORE = "# State of a run that is not over. It goes when the run ends, and belongs in no repository.\n*\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptRun:
    """An open folder of a run."""

    folder: Path
    manifest: Manifest
    parties: Parties

    @property
    def messages(self) -> Path:
        """File of the messages that wait."""
        return self.folder / MESSAGES

    def remove(self) -> None:
        """Remove the folder: the run is over."""
        # First: after a crash nobody goes on with what is left.
        (self.folder / MANIFEST).unlink()
        shutil.rmtree(self.folder)


def is_kept(folder: Path) -> bool:
    """Say whether a folder holds a run to go on with."""
    return (folder / MANIFEST).exists()


@contextmanager
def open_kept_run(folder: Path, draw_up: Callable[[], tuple[Manifest, Parties]]) -> Iterator[KeptRun]:
    """Open the run in a folder, or begin one there."""
    with ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            stack.callback(os.close, lock_folder(folder))
            if not is_kept(folder):
                _begin(folder, *draw_up())
            run = _read(folder)
        except OSError as error:
            raise ConfigurationError(f"{error.filename or folder} cannot be used: {error.strerror}") from None
        yield run


def _begin(folder: Path, manifest: Manifest, parties: Parties) -> None:
    """Write what the parties are made from; the manifest last, since it says that all is there."""
    for left in folder.iterdir():
        if left.is_dir():
            shutil.rmtree(left)
        elif left.name != LOCK:
            left.unlink()
    (folder / ".gitignore").write_text(IGNORE, encoding="utf-8")
    (folder / IDENTITIES).mkdir(exist_ok=True)
    for name, identity in parties.identities.items():
        with replacing(folder / IDENTITIES / f"{name}{PRIVATE_SUFFIX}") as file:
            file.write(dump_identity(identity))
    with replacing(folder / MANIFEST) as file:
        file.write(manifest.canonical)


def _read(folder: Path) -> KeptRun:
    files = sorted((folder / IDENTITIES).glob(f"*{PRIVATE_SUFFIX}"))
    try:
        manifest = read_manifest((folder / MANIFEST).read_bytes())
        parties = gather([read_identity(file) for file in files])
    except ConfigurationError as error:
        raise ConfigurationError(f"the run in {folder} is damaged: {error}. Remove it to begin it again") from None
    # A trainer gives up a task in which its process died twice. Here its owner may kill it as often as they like.
    for record in folder.glob(f"*/runs/*/{RECORD}"):
        record.unlink()
    return KeptRun(folder=folder, manifest=manifest, parties=parties)
