"""A model that outlives its run: kept with its salt when the run is completed, and taken up by a successor."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np

from hubbub.crypto.group import GroupSecret
from hubbub.disk import sync_folder, write_whole
from hubbub.errors import LocalError, StorageFailed
from hubbub.messages.manifest import Manifest
from hubbub.strategies.base import Theta
from hubbub.trust.identity import Identity
from hubbub.trust.succession import endorse
from hubbub_trainer.kept_model import read_kept_model
from hubbub_trainer.workspace import ENDORSEMENT, MODEL, SALT

SALT_BYTES = 32


def commit(salt: bytes, theta: Theta) -> str:
    """What names a model to whoever has it, and tells nothing to others."""
    digest = hashlib.sha256(salt)
    digest.update(np.ascontiguousarray(theta, dtype="<f4").data)
    return digest.hexdigest()


def derive_salt(group: GroupSecret, last_round: int) -> bytes:
    """The salt of a run's last model: the same for all clients, and the keys of no round tell it."""
    group.advance_to(last_round + 1)
    return group.key_for("successor")


def keep(folder: Path, identity: Identity, manifest: Manifest, salt: bytes, theta: Theta) -> None:
    """Keep what a successor needs beside the model: the salt for us, our endorsement for everybody."""
    endorsed = endorse(identity, manifest, commit(salt, theta))
    try:
        write_whole(folder / SALT, lambda file: file.write(json.dumps({"salt": salt.hex()}).encode()))
        write_whole(folder / ENDORSEMENT, lambda file: file.write(endorsed.model_dump_json(indent=2).encode()))
        sync_folder(folder)
    except OSError as error:
        raise StorageFailed(f"{folder} takes no more: {error.strerror}") from None


def recall(folder: Path) -> tuple[bytes, Theta] | None:
    """The salt and the model that a run left here, if it was completed here."""
    try:
        salt = bytes.fromhex(json.loads((folder / SALT).read_text("utf-8"))["salt"])
        theta = read_kept_model(folder).theta
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StorageFailed(f"the model that {folder} should hold cannot be read: {error.strerror}") from None
    except (ValueError, TypeError, KeyError):
        raise LocalError(
            f"{folder} does not hold the model that its run ended with any more: bring back {SALT} and {MODEL}, "
            "or move the folder away to be sent the model by a peer"
        ) from None
    return salt, np.ascontiguousarray(theta, dtype=np.float32)
