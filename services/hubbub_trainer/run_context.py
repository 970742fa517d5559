"""One run at a trainer, as its jobs see it: manifest, seals, secrets, workspace and the trainer's shared parts."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from hubbub.crypto.key_derivation import CONTRIBUTION_BYTES, ClientSecret, GroupSecret
from hubbub.crypto.stream import AesCtrStream
from hubbub.errors import LocalError, PeerError, RejectReason, StorageDamaged
from hubbub.ids import PartyId, RunId
from hubbub.machine.effects import Key
from hubbub.messages.manifest import TAKES_NUMBERS, Manifest, MetricClaim, RangeClaim
from hubbub.protocol import weights
from hubbub.runtime.runner import Runner
from hubbub.runtime.spool import ChunkRef, Spool
from hubbub.strategies.base import Theta
from hubbub.trust.seals import RunSeals
from hubbub_trainer.events import GroupAgreed, HeldModel, InitialModel, Prepared
from hubbub_trainer.fingerprint import Fingerprint, tensor_sizes
from hubbub_trainer.learning.source import digest_source
from hubbub_trainer.learning.task import HasBuffers, HasRanges, Learner, Task
from hubbub_trainer.ledger import Ledger, explain_refusal
from hubbub_trainer.phases.admission import Admission
from hubbub_trainer.run_secrets import RunSecrets
from hubbub_trainer.saved_model import (
    commit,
    derive_salt,
    keep_for_successor,
    read_kept_model,
    recall_for_successor,
)
from hubbub_trainer.task_runner import TaskRunner
from hubbub_trainer.workspace import Workspace, digest, has_model

log = logging.getLogger(__name__)


def _mask_samples(group: GroupSecret, client: PartyId) -> int:
    """Derive the mask of a client's sum of shares, of which there is one in a run."""
    return int.from_bytes(group.key_for(f"samples {client}")[: weights.SHARE_BYTES], "big")


TaskLoader = Callable[[str], Task]
"""Finds the task that a manifest names, in this organisation's own installation."""


def name_part(client: PartyId) -> ChunkRef:
    """Return the spool's name for a client's part of the group secret."""
    return ChunkRef(client, "part", 0)


@dataclass(slots=True, kw_only=True, eq=False)
class RunContext:
    """One run of this trainer. Nothing of it prints."""

    manifest: Manifest
    keys: RunSeals | None
    """Our seals of the run; None if it is over."""
    secrets: RunSecrets
    runs_folder: Path
    runner: Runner
    spool: Spool
    ledger: Ledger
    tasks: TaskRunner
    load_task: TaskLoader
    demo_seed: int | None = None
    space: Workspace | None = None
    """The workspace, once it is open."""
    run: RunId = field(init=False)
    """The id of the run."""
    _opening: threading.RLock = field(default_factory=threading.RLock)

    def __post_init__(self) -> None:
        # Once: it is a digest of the manifest, and every chunk that is read asks for it.
        self.run = self.manifest.run_id

    def __repr__(self) -> str:
        return f"<RunContext of {self.run}>"

    @property
    def me(self) -> PartyId:
        """The name of this client."""
        return self.runner.identity.name

    @property
    def folder(self) -> Path:
        """The run's folder, which still holds the model when the run is over."""
        return self.runs_folder / self.run

    @property
    def seals(self) -> RunSeals:
        """Our seals of the run."""
        if self.keys is None:
            raise LocalError(f"there is no key for run {self.run}: the run is over")
        return self.keys

    # The workspace --------------------------------------------------------------------------------------

    def open(self) -> Workspace:
        """Return the workspace; after a restart, rebuild it from disk when it is first needed."""
        with self._opening:
            if self.space is None:
                if not has_model(self.folder):
                    # The initial model is not the one that the others have by now.
                    raise StorageDamaged(self.folder / "state-*.safetensors", "is gone")
                self.space = self._make_workspace(self.load_task(self.manifest.task))
            return self.space

    def begin_with(self, theta: Theta) -> None:
        """Begin the run with a model that came from a peer."""
        with self._opening:
            self.space = self._make_workspace(self.load_task(self.manifest.task), theta)

    def close(self) -> None:
        """Erase the group secret: the run is over."""
        self.keys = None
        if self.space is not None and self.space.group is not None:
            self.space.group.erase()
        self.space = None

    def recall_predecessor(self) -> tuple[bytes, Theta] | None:
        """Return the salt and the model that the run's predecessor left here, if we were in it."""
        before = self.manifest.predecessor
        return recall_for_successor(self.runs_folder / before.run) if before else None

    def _make_workspace(self, task: Task, theta: Theta | None = None) -> Workspace:
        """Make a workspace from the model that the run begins with, or from the state that was kept since."""
        manifest = self.manifest
        if theta is None and manifest.predecessor is None:
            theta = task.initial_model(manifest.seed)
        elif theta is None:
            left = self.recall_predecessor()
            # If there is none, the model came from a peer and is on disk: `recall` loads it.
            theta = left[1] if left else np.zeros(manifest.parameters, dtype=np.float32)
        seed = self.demo_seed
        agreed = self.secrets.group()
        learner = self._make_learner(task)
        space = Workspace(
            folder=self.folder,
            learner=learner,
            tensors=tensor_sizes(task),
            examples=self.secrets.fix_examples(learner.examples),
            secret=self.secrets.client_secret() if seed is None else ClientSecret.for_demo(seed, self._index),
            theta=theta,
            accumulator=np.zeros_like(theta),
            memory=self._recall_local_state(learner),
            velocity=np.zeros_like(theta) if manifest.server_momentum else None,
            group=agreed,
        )
        space.recall()
        self._tell_of_changes(task, space)
        return space

    @property
    def _index(self) -> int:
        return self.manifest.clients.index(self.me)

    def _make_learner(self, task: Task) -> Learner:
        return task.learner(index=self._index, clients=len(self.manifest.clients), seed=self.manifest.seed)

    def _recall_local_state(self, learner: Learner) -> Theta | None:
        """Return the buffers and personal parameters that we kept of the run's predecessor, as a memory."""
        before = self.manifest.predecessor
        if before is None or not isinstance(learner, HasBuffers):
            return None
        try:
            return learner.remember(read_kept_model(self.runs_folder / before.run).buffers)
        except (OSError, ValueError):
            return None  # We were not in it, or have lost what it left: then they begin as the model makes them.

    def begin_shared_stream(self, space: Workspace, number: int, purpose: str) -> AesCtrStream:
        """Begin a round's stream that is the same at all clients. No coordinator or server has or can choose it.

        Its key follows from the group secret or, in the demo, from the seed alone, as all randomness does there.
        """
        if self.demo_seed is None:
            return AesCtrStream(space.group_secret.key_for(purpose))
        shared = ClientSecret.for_demo(self.demo_seed, None)
        return AesCtrStream(shared.key_for(purpose, run=self.run, round_number=number))

    def _tell_of_changes(self, task: Task, space: Workspace) -> None:
        """Tell the owner, and nobody else, if the task was changed since we joined. The run goes on."""
        before, now = self.secrets.source(), digest_source(task)
        if before == now:
            return
        if before is not None:
            changes = sorted(name for name in {*before, *now} if before.get(name) != now.get(name))
            log.warning(
                "the task %r was changed under run %s, which goes on with the task as it is now: %s",
                self.manifest.task,
                self.run,
                ", ".join(changes),
            )
            space.note_changes(changes)
        self.secrets.keep_source(now)

    # The admission --------------------------------------------------------------------------------------

    def prepare(self, _: object) -> Prepared:
        """Load and describe the task; if task and model match the manifest, make the workspace."""
        manifest, task = self.manifest, self.load_task(self.manifest.task)
        found, parameters = self._digest_initial(task), task.count_parameters()
        if found == manifest.initial_model_sha256 and parameters == manifest.parameters:
            with self._opening:
                self.space = self._make_workspace(task)
        if manifest.weights == "samples":
            self._fix_samples(task)
        takes_ranges = manifest.strategy in TAKES_NUMBERS
        prepared = Prepared(
            parameters=parameters,
            initial_model_sha256=found,
            metrics=tuple(MetricClaim.of(metric) for metric in task.metrics),
            ranges=RangeClaim.join(task.ranges) if takes_ranges and isinstance(task, HasRanges) else None,
        )
        fits = found in {None, manifest.initial_model_sha256}
        return replace(prepared, initial=self.claim_model()) if fits else prepared

    def _fix_samples(self, task: Task) -> None:
        """Count the samples that our updates are weighed by, once in a run."""
        manifest = self.manifest
        learner = self.space.learner if self.space else self._make_learner(task)
        self.secrets.fix_samples(weights.cap(int(learner.samples), manifest.max_samples))

    def _digest_initial(self, task: Task) -> str | None:
        """Digest the model that the run begins with; None if it is a predecessor's, and not here."""
        manifest = self.manifest
        if manifest.predecessor is None:
            return digest(task.initial_model(manifest.seed))
        left = self.recall_predecessor()
        if left is None:
            return None
        salt, theta = left
        if theta.size != manifest.parameters:
            raise LocalError(
                f"the model that this run goes on from has {theta.size} parameters here, the manifest says "
                f"{manifest.parameters}: draw it up for the predecessor's task"
            )
        return commit(salt, theta)

    def claim_model(self) -> InitialModel:
        """Look up in the ledger whether the run may begin from its model, and take note that it does."""
        manifest, data, model = self.manifest, self._find_admission(), None
        if self.space is not None:
            model = Fingerprint.of(self.space.theta, self.space.tensors)
        claim = self.ledger.claim(
            self.run,
            model,
            cohort=manifest.clients,
            predecessor=manifest.predecessor.run if manifest.predecessor else None,
            limit=data.runs_per_model,
        )
        if data.key not in self.runner.machines:
            self.ledger.give_up(self.run)  # It ended meanwhile, and nobody else would.
        return InitialModel(
            sha256=model.model if model else "",
            voids=claim.voids,
            objection=explain_refusal(claim, data.caps.per_model),
        )

    def contribution_for(self, client: PartyId) -> bytes:
        """Return our part of the group secret and a client's share of our number of samples."""
        part = self.secrets.contribution()
        if not self.is_weighted:
            return part
        clients = self.manifest.clients
        shares = self.secrets.sample_shares(len(clients))
        return part + shares[clients.index(client)].to_bytes(weights.SHARE_BYTES, "big")

    def agree(self, _: object) -> GroupAgreed:
        """Combine all clients' parts into the group secret, and keep it; add up our shares of samples."""

        def content_from(client: PartyId) -> bytes:
            if client == self.me:
                return self.contribution_for(client)
            sealed = self.spool.read(Key("admission", self.run), name_part(client))
            return self.seals.open_contribution(client, sealed)

        clients = self.manifest.clients
        contents = [content_from(client) for client in clients]
        if any(len(each) != CONTRIBUTION_BYTES + self.is_weighted * weights.SHARE_BYTES for each in contents):
            raise PeerError(RejectReason.MALFORMED, "a part of the group secret has another length than ours")
        run_keys = [self.seals.public(client) for client in clients]
        contributions = [each[:CONTRIBUTION_BYTES] for each in contents]
        agreed = GroupSecret.agree(contributions, run=self.run, run_keys=run_keys)
        self.secrets.keep_group(agreed)
        if not self._find_admission().lacks_model:
            self.open().group = agreed
        masked = None
        if self.is_weighted:
            shares = (int.from_bytes(each[CONTRIBUTION_BYTES:], "big") for each in contents)
            masked = weights.add((*shares, _mask_samples(agreed, self.me)))
        return GroupAgreed(confirmation=agreed.confirmation(), samples=masked)

    # Weights --------------------------------------------------------------------------------------------

    @property
    def is_weighted(self) -> bool:
        """True if updates are weighed by numbers of samples."""
        return self.manifest.weights == "samples"

    @property
    def samples(self) -> int:
        """The number of samples that our updates are weighed by, as of when we joined; 1 if all count the same."""
        return self.secrets.samples() if self.is_weighted else 1

    @property
    def weight(self) -> float | None:
        """The weight of our updates; None if all count the same."""
        return weights.weight_of(self.samples, self.secrets.cohort_samples()) if self.is_weighted else None

    def keep_samples(self, masked: Mapping[PartyId, int]) -> None:
        """Take the masks off the clients' sums of shares, and keep the total."""
        group = self.secrets.group()
        if group is None:
            raise LocalError("the clients' numbers of samples are added before they agreed on a group secret")
        sums = (weights.add((each, -_mask_samples(group, client))) for client, each in masked.items())
        manifest = self.manifest
        total = weights.total(sums, clients=len(manifest.clients), max_samples=manifest.max_samples)
        self.secrets.keep_cohort_samples(total)

    def _find_admission(self) -> Admission:
        live = self.runner.machines.get(Key("admission", self.run))
        if live is None or not isinstance(live.data, Admission):
            raise LocalError(f"the admission to {self.run} is over")
        return live.data

    # The model after a round ----------------------------------------------------------------------------

    def step_group(self, number: int) -> None:
        """Advance the group secret to a round, on disk too: nobody can derive the keys of earlier rounds again."""
        with self.space.lock if self.space else nullcontext():
            kept = self.secrets.group()
            if kept is None:
                return
            group = self.space.group_secret if self.space else kept
            if group.round < number:
                group.advance_to(number)
                self.secrets.keep_group(group)

    def describe_held(self, number: int) -> HeldModel:
        """Describe the model that we hold after a round; a void round has not moved it."""
        space = self.open()
        name = space.digest_of(space.theta)
        voids = self.ledger.count_voids(name, run=self.run, but_not=number)
        return HeldModel(sha256=name, step=space.step if space.applied >= number else 0.0, voids=voids)

    # The end of the run ---------------------------------------------------------------------------------

    def save_model(self) -> None:
        """Save the model permanently."""
        # After a crash at the very end there is nothing left to save it from: it was saved before.
        if has_model(self.folder):
            self.open().save_model(run=self.run, task=self.manifest.task, seed=self.manifest.seed)

    def endorse_model(self, number: int) -> None:
        """Endorse the model after the last round, for a successor run."""
        if not has_model(self.folder):
            return  # As above: it was endorsed before.
        space = self.open()
        if space.group is None:
            return  # Likewise: it is erased when all is done, and a power cut may bring back files beside it.
        salt = derive_salt(space.group_secret, number)
        keep_for_successor(space.folder, self.runner.identity, self.manifest, salt, space.theta)
