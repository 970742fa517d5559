"""Saved model of a finished run at a trainer: the model, this client's own state of it, and their task and seed.

Beside the model of a completed run are the salt of its commitment and this client's endorsement, for a successor
run that begins with the model.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from hubbub.crypto.key_derivation import GroupSecret
from hubbub.disk import replacing
from hubbub.errors import DataError, LocalError, StorageFailed
from hubbub.messages.manifest import Manifest
from hubbub.strategies.base import Theta
from hubbub.trust.identity import Identity
from hubbub.trust.succession import endorse

FILE, BEST = "model.safetensors", "best.safetensors"
"""The model that a run ended with, and the one with the best headline metric of its scored rounds."""
SALT, ENDORSEMENT = "succession.json", "endorsement.json"
"""Files for a successor run: the salt stays here, the endorsement may be shown to anybody."""
SALT_BYTES = 32
LATEST = "latest"
Arrays = Mapping[str, NDArray[Any]]

_THETA, _BUFFER = "theta", "buffer."


def write_file(path: Path, content: bytes) -> None:
    """Write and sync a file of a run, whole or not at all; raise `StorageFailed` if the disk does not take it.

    Only its owner may read it: updates, accumulators and the salt are secrets, and the model is the cohort's.
    """
    try:
        with replacing(path) as stream:
            stream.write(content)
    except OSError as error:
        raise StorageFailed(f"{path.parent} takes no more: {error.strerror}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Headline:
    """The headline metric of a round, as the cohort decoded it."""

    round: int
    metric: str
    value: float

    def labels(self) -> dict[str, str]:
        """Return the labels of a model's file."""
        return {"round": str(self.round), "metric": self.metric, "value": repr(self.value)}

    @classmethod
    def from_labels(cls, labels: Mapping[str, str]) -> Self | None:
        """Read the labels of a model's file; None if it has none of these."""
        if "metric" not in labels:
            return None
        return cls(round=int(labels["round"]), metric=labels["metric"], value=float(labels["value"]))


@dataclass(frozen=True, slots=True, eq=False)
class KeptModel:
    """A model that a run ended with, or its best. It does not print."""

    run: str
    task: str
    seed: int
    """The manifest's: the frozen parts of a model may have been drawn from it."""
    theta: Theta = field(repr=False)
    buffers: Arrays = field(repr=False, default_factory=dict)
    """Buffers and personal parameters, which are this client's own."""
    headline: Headline | None = None
    """Of the best model alone."""

    def write(self) -> bytes:
        """Write a safetensors file."""
        arrays = {_THETA: self.theta, **{f"{_BUFFER}{name}": each for name, each in self.buffers.items()}}
        labels = {"run": self.run, "task": self.task, "seed": str(self.seed)}
        labels |= self.headline.labels() if self.headline else {}
        # Not ascontiguousarray, which turns a scalar into a vector.
        return save({name: np.asarray(each, order="C") for name, each in arrays.items()}, labels)


def read_kept_model(folder: Path, name: str = FILE) -> KeptModel:
    """Read a model in a run's folder; raise `ValueError` if its file holds none, `OSError` without a file."""
    try:
        with safe_open(folder / name, framework="numpy") as file:
            labels = file.metadata() or {}
            arrays: Arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (No mapping.)
        return KeptModel(
            run=labels["run"],
            task=labels["task"],
            seed=int(labels["seed"]),
            theta=arrays[_THETA],
            buffers={name.removeprefix(_BUFFER): each for name, each in arrays.items() if name != _THETA},
            headline=Headline.from_labels(labels),
        )
    except (SafetensorError, KeyError, ValueError) as error:
        raise ValueError(f"{folder / name} holds no model: {error}") from None


def read_best_model(folder: Path) -> KeptModel | None:
    """Read the best model in a run's folder; None if there is none, because no round was scored."""
    return read_kept_model(folder, BEST) if (folder / BEST).exists() else None


def find_models(folder: Path) -> list[str]:
    """List the runs that left a model in a trainer's folder, the last first."""
    found = [path.parent for path in (folder / "runs").glob(f"*/{FILE}")]
    return [path.name for path in sorted(found, key=lambda path: (path / FILE).stat().st_mtime, reverse=True)]


def choose_model(folder: Path, run: str, *, best: bool = False) -> KeptModel:
    """Read the last or the best model of a run, named by the beginning of its id; nothing names the only one.

    `latest` names the run that left its model last.
    """
    there = find_models(folder)
    wanted = there[:1] if run == LATEST else [name for name in there if name.startswith(run)]
    if len(wanted) == 1:
        try:
            kept = (read_best_model if best else read_kept_model)(folder / "runs" / wanted[0])
        except (OSError, ValueError) as error:
            raise DataError(str(error)) from None
        if kept is None:
            raise DataError(
                f"run {wanted[0][:12]} has left no best model: it was not scored, or not to its end here"
            )
        return kept
    if not there:
        raise DataError(
            f"no run has left a model in {folder}: name the folder of a trainer (HUBBUB_TRAINER_FOLDER) whose run "
            "was completed"
        )
    which = ", ".join(name[:12] for name in there)
    problem = f"{len(wanted)} runs begin with {run!r}" if wanted else f"no run begins with {run!r}"
    raise DataError(f"{problem}: there are {which}")


# Models for successor runs ------------------------------------------------------------------------------


def commit(salt: bytes, theta: Theta) -> str:
    """Return a salted digest that names a model to parties that have it, and tells nothing to others."""
    digest = hashlib.sha256(salt)
    digest.update(np.ascontiguousarray(theta, dtype="<f4").data)
    return digest.hexdigest()


def derive_salt(group: GroupSecret, last_round: int) -> bytes:
    """Derive the salt of a run's last model: the same for all clients, and not derivable from any round's keys."""
    group.advance_to(last_round + 1)
    return group.key_for("successor")


def keep_for_successor(folder: Path, identity: Identity, manifest: Manifest, salt: bytes, theta: Theta) -> None:
    """Keep the files for a successor beside the model: the salt for us, our endorsement for everybody."""
    endorsed = endorse(identity, manifest, commit(salt, theta))
    write_file(folder / SALT, json.dumps({"salt": salt.hex()}).encode())
    write_file(folder / ENDORSEMENT, endorsed.model_dump_json(indent=2).encode())


def recall_for_successor(folder: Path) -> tuple[bytes, Theta] | None:
    """Return the salt and the model that a run left here, if it was completed here."""
    try:
        salt = bytes.fromhex(json.loads((folder / SALT).read_text("utf-8"))["salt"])
        theta = read_kept_model(folder).theta
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StorageFailed(f"the model that {folder} should hold cannot be read: {error.strerror}") from None
    except (ValueError, TypeError, KeyError):
        raise LocalError(
            f"{folder} does not hold the model that its run ended with any more: bring back {SALT} and {FILE}, "
            "or move the folder away to be sent the model by a peer"
        ) from None
    return salt, np.ascontiguousarray(theta, dtype=np.float32)
