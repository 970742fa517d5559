"""Workspaces of all runs of a trainer, and the models that successor runs continue from.

A workspace is made from the model that a run begins with, or loaded from disk. When a run is completed, its model
is kept with the salt of its commitment, so that a successor run can begin with it.
"""

from __future__ import annotations

import hashlib
import json
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import numpy as np

from hubbub.crypto.key_derivation import ClientSecret, GroupSecret
from hubbub.disk import sync_folder, write_whole
from hubbub.errors import LocalError, StorageDamaged, StorageFailed
from hubbub.ids import PartyId, RunId
from hubbub.messages.manifest import Manifest, MetricClaim
from hubbub.store.state_file import Vault
from hubbub.strategies.base import Theta
from hubbub.trust.identity import Identity
from hubbub.trust.succession import endorse
from hubbub_trainer import workspace
from hubbub_trainer.events import Prepared
from hubbub_trainer.fingerprint import Fingerprint, tensor_sizes
from hubbub_trainer.learning.source import digest_source
from hubbub_trainer.learning.task import Task
from hubbub_trainer.run_secrets import fix_examples, get_or_create_client_secret, get_source, keep_source
from hubbub_trainer.saved_model import read_kept_model
from hubbub_trainer.workspace import ENDORSEMENT, MODEL, SALT, Workspace, clean_up, digest, has_model

# Models for successor runs ------------------------------------------------------------------------------

SALT_BYTES = 32


def commit(salt: bytes, theta: Theta) -> str:
    """Return a salted digest that names a model to parties that have it, and tells nothing to others."""
    digest = hashlib.sha256(salt)
    digest.update(np.ascontiguousarray(theta, dtype="<f4").data)
    return digest.hexdigest()


def derive_salt(group: GroupSecret, last_round: int) -> bytes:
    """Derive the salt of a run's last model: the same for all clients, and not derivable from any round's keys."""
    group.advance_to(last_round + 1)
    return group.key_for("successor")


def keep(folder: Path, identity: Identity, manifest: Manifest, salt: bytes, theta: Theta) -> None:
    """Keep the files for a successor beside the model: the salt for us, our endorsement for everybody."""
    endorsed = endorse(identity, manifest, commit(salt, theta))
    try:
        write_whole(folder / SALT, lambda file: file.write(json.dumps({"salt": salt.hex()}).encode()))
        write_whole(folder / ENDORSEMENT, lambda file: file.write(endorsed.model_dump_json(indent=2).encode()))
        sync_folder(folder)
    except OSError as error:
        raise StorageFailed(f"{folder} takes no more: {error.strerror}") from None


def recall(folder: Path) -> tuple[bytes, Theta] | None:
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
            f"{folder} does not hold the model that its run ended with any more: bring back {SALT} and {MODEL}, "
            "or move the folder away to be sent the model by a peer"
        ) from None
    return salt, np.ascontiguousarray(theta, dtype=np.float32)


# Workspaces ---------------------------------------------------------------------------------------------

log = logging.getLogger(__name__)


class TaskLoader(Protocol):
    """Finds the task that a manifest names, in this organisation's own installation."""

    def __call__(self, name: str) -> Task:
        """Load a task by name."""


class Workspaces:
    """Workspaces of one client, by run."""

    def __init__(
        self,
        *,
        me: PartyId,
        folder: Path,
        vault: Vault,
        load_task: TaskLoader,
        manifest_of: Callable[[RunId], Manifest],
        demo_seed: int | None = None,
    ) -> None:
        self._me = me
        self._folder = folder
        self._vault = vault
        self._load_task = load_task
        self._manifest_of = manifest_of
        self._demo_seed = demo_seed
        self._spaces: dict[RunId, Workspace] = {}
        self._opening = threading.RLock()

    def folder_of(self, run: RunId) -> Path:
        """Return a run's folder, which still holds the model when the run is over."""
        return self._folder / run

    def find(self, run: RunId) -> Workspace | None:
        """Return the workspace of a run, if it is open."""
        return self._spaces.get(run)

    def open(self, run: RunId) -> Workspace:
        """Return the workspace of a run; after a restart, rebuild it from disk when it is first needed."""
        with self._opening:
            if run not in self._spaces:
                manifest = self._manifest_of(run)
                if not has_model(self.folder_of(run)):
                    # The initial model is not the one that the others have by now.
                    raise StorageDamaged(self.folder_of(run) / "state-*.safetensors", "is gone")
                self._spaces[run] = self._make(manifest, self._load_task(manifest.task))
            return self._spaces[run]

    def prepare(self, manifest: Manifest) -> Prepared:
        """Load and describe the task; if task and model match the manifest, make the workspace."""
        task = self._load_task(manifest.task)
        found = self._digest_initial(manifest, task)
        if found == manifest.initial_model_sha256 and task.count_parameters() == manifest.parameters:
            with self._opening:
                self._spaces[manifest.run_id] = self._make(manifest, task)
        return Prepared(
            parameters=task.count_parameters(),
            initial_model_sha256=found,
            metrics=tuple(MetricClaim.of(metric) for metric in task.metrics),
        )

    def begin_with(self, manifest: Manifest, theta: Theta) -> None:
        """Begin a run with a model that came from a peer."""
        with self._opening:
            task = self._load_task(manifest.task)
            self._spaces[manifest.run_id] = self._make(manifest, task, theta)

    def fingerprint(self, manifest: Manifest) -> Fingerprint | None:
        """Return the fingerprint of the model that a run begins with, if it is here."""
        space = self._spaces.get(manifest.run_id)
        return Fingerprint.of(space.theta, tensor_sizes(self._load_task(manifest.task))) if space else None

    def forget(self, run: RunId) -> None:
        """Close a run's workspace and delete its files, but not the model and the notes."""
        space = self._spaces.pop(run, None)
        if space is not None:
            space.forget()
        clean_up(self.folder_of(run))

    def recall_left(self, manifest: Manifest) -> tuple[bytes, Theta] | None:
        """Return the salt and the model that a run's predecessor left here, if we were in it."""
        return recall(self.folder_of(manifest.predecessor.run)) if manifest.predecessor else None

    def _make(self, manifest: Manifest, task: Task, theta: Theta | None = None) -> Workspace:
        """Make a workspace from the model that a run begins with, or from the state that was kept since."""
        if theta is None:
            theta = self._initial_model(manifest, task)
        if theta is None:
            # The model came from a peer and is on disk: `recall` loads it.
            theta = np.zeros(manifest.parameters, dtype=np.float32)
        index = manifest.clients.index(self._me)
        agreed = workspace.recall(self._vault, manifest.run_id)
        learner = task.learner(index=index, clients=len(manifest.clients), seed=manifest.seed)
        space = Workspace(
            folder=self.folder_of(manifest.run_id),
            learner=learner,
            examples=fix_examples(self._vault, manifest.run_id, learner.examples),
            secret=self._client_secret(manifest.run_id, index),
            theta=theta,
            accumulator=np.zeros_like(theta),
            group=agreed,
        )
        space.recall()
        self._tell_of_changes(manifest, task, space)
        return space

    def _tell_of_changes(self, manifest: Manifest, task: Task, space: Workspace) -> None:
        """Tell the owner, and nobody else, if the task was changed since we joined. The run goes on."""
        before, now = get_source(self._vault, manifest.run_id), digest_source(task)
        if before == now:
            return
        if before is not None:
            changes = sorted(name for name in {*before, *now} if before.get(name) != now.get(name))
            log.warning(
                "the task %r was changed under run %s, which goes on with the task as it is now: %s",
                manifest.task,
                manifest.run_id,
                ", ".join(changes),
            )
            space.note_changes(changes)
        keep_source(self._vault, manifest.run_id, now)

    def _initial_model(self, manifest: Manifest, task: Task) -> Theta | None:
        """Return the model that a run begins with: from its seed, or from its predecessor if we were in that."""
        if manifest.predecessor is None:
            return task.initial_model(manifest.seed)
        left = self.recall_left(manifest)
        return left[1] if left else None

    def _digest_initial(self, manifest: Manifest, task: Task) -> str | None:
        if manifest.predecessor is None:
            return digest(task.initial_model(manifest.seed))
        left = self.recall_left(manifest)
        if left is None:
            return None
        salt, theta = left
        if theta.size != manifest.parameters:
            raise LocalError(
                f"the model that this run goes on from has {theta.size} parameters here, the manifest says "
                f"{manifest.parameters}: draw it up for the predecessor's task"
            )
        return commit(salt, theta)

    def _client_secret(self, run: RunId, index: int) -> ClientSecret:
        if self._demo_seed is not None:
            return ClientSecret.for_demo(self._demo_seed, index)
        return get_or_create_client_secret(self._vault, run)
