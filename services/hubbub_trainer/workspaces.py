"""The workspaces of all runs: made of the model that a run begins with, or taken up again from disk."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import numpy as np

from hubbub.crypto.secret import ClientSecret
from hubbub.errors import LocalError, StorageDamaged
from hubbub.ids import PartyId, RunId
from hubbub.messages.manifest import Manifest, MetricClaim
from hubbub.store.vault import Vault
from hubbub.strategies.base import Theta
from hubbub_trainer import group, succession
from hubbub_trainer.drawn import fix_examples, keep_source, recall_client_secret, recall_source
from hubbub_trainer.events import Prepared
from hubbub_trainer.fingerprint import Fingerprint, tensor_sizes
from hubbub_trainer.learning.source import digest_source
from hubbub_trainer.learning.task import Task
from hubbub_trainer.workspace import Workspace, clean_up, digest, has_model

log = logging.getLogger(__name__)


class TaskLoader(Protocol):
    """Finds the task that a manifest names, in this organisation's own installation."""

    def __call__(self, name: str) -> Task:
        """Load a task by name."""


class Workspaces:
    """What one client computes with, by run."""

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
        """Where a run's model lies, also when the run is over."""
        return self._folder / run

    def find(self, run: RunId) -> Workspace | None:
        """The workspace of a run, if it is open."""
        return self._spaces.get(run)

    def open(self, run: RunId) -> Workspace:
        """What we compute with in a run; after a restart it is rebuilt from disk when it is first needed."""
        with self._opening:
            if run not in self._spaces:
                manifest = self._manifest_of(run)
                if not has_model(self.folder_of(run)):
                    # To begin with the initial model again would be to go on from another than everybody has.
                    raise StorageDamaged(self.folder_of(run) / "state-*.safetensors", "is gone")
                self._spaces[run] = self._make(manifest, self._load_task(manifest.task))
            return self._spaces[run]

    def prepare(self, manifest: Manifest) -> Prepared:
        """Load the task and say what it is here; if it is the manifest's, and the model too, all is made ready."""
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
        """Begin a run with a model that could not be had here."""
        with self._opening:
            task = self._load_task(manifest.task)
            self._spaces[manifest.run_id] = self._make(manifest, task, theta)

    def fingerprint(self, manifest: Manifest) -> Fingerprint | None:
        """The fingerprint of the model that a run begins with, if it is here."""
        space = self._spaces.get(manifest.run_id)
        return Fingerprint.of(space.theta, tensor_sizes(self._load_task(manifest.task))) if space else None

    def forget(self, run: RunId) -> None:
        """Leave nothing of a run behind but its model and the notes."""
        space = self._spaces.pop(run, None)
        if space is not None:
            space.forget()
        clean_up(self.folder_of(run))

    def recall_left(self, manifest: Manifest) -> tuple[bytes, Theta] | None:
        """The salt and the model that a run's predecessor left here, if we were in it."""
        return succession.recall(self.folder_of(manifest.predecessor.run)) if manifest.predecessor else None

    def _make(self, manifest: Manifest, task: Task, theta: Theta | None = None) -> Workspace:
        """Make a workspace of the model that a run begins with, or of the one that was kept since."""
        if theta is None:
            theta = self._initial_model(manifest, task)
        if theta is None:
            # It came from a peer, and is kept.
            theta = np.zeros(manifest.parameters, dtype=np.float32)
        index = manifest.clients.index(self._me)
        agreed = group.recall(self._vault, manifest.run_id)
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
        """Tell the owner, and nobody else, if the task is not what it was when we joined. The run goes on."""
        before, now = recall_source(self._vault, manifest.run_id), digest_source(task)
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
        """What a run begins with: rebuilt from its seed, or what its predecessor left here, if we were in it."""
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
        return succession.commit(salt, theta)

    def _client_secret(self, run: RunId, index: int) -> ClientSecret:
        if self._demo_seed is not None:
            return ClientSecret.for_demo(self._demo_seed, index)
        return recall_client_secret(self._vault, run)
