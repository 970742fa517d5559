"""A federation in this process: coordinator, aggregators and trainers, with throw-away identities and roster.

The services are those that otherwise run as separate processes; only transport and folder differ. Each party
has a transport of its own.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from pathlib import Path
from typing import TypedDict

import numpy as np

from hubbub.crypto.sealing import Kem
from hubbub.errors import ProtocolError
from hubbub.ids import PartyId, Role, RunId
from hubbub.messages.manifest import Manifest
from hubbub.runtime.runner import Observer, Transition
from hubbub.runtime.state_folder import TOMBSTONES, Tombstones
from hubbub.strategies.registry import find_strategy
from hubbub.transport.base import Transport
from hubbub.transport.memory import MemoryBroker, MemoryTransport
from hubbub.transport.topology import Topology, topology_for
from hubbub.trust.identity import Identity, new_identity
from hubbub.trust.roster import Roster, build_roster
from hubbub_aggregator.phases import membership
from hubbub_aggregator.policy import AggregatorPolicy
from hubbub_aggregator.service import Aggregator
from hubbub_coordinator.phases import run as runs
from hubbub_coordinator.service import Coordinator
from hubbub_trainer.phases import admission, participation
from hubbub_trainer.policy import Policy
from hubbub_trainer.run_context import TaskLoader
from hubbub_trainer.saved_model import KeptModel, read_best_model, read_kept_model
from hubbub_trainer.service import Trainer
from hubbub_trainer.task_runner import Progress


@dataclass(frozen=True, slots=True)
class Parties:
    """Identities of all parties, and their roster."""

    roster: Roster
    identities: Mapping[PartyId, Identity] = field(repr=False)


def make_parties(*, clients: int, servers: int, kem: Kem = Kem.X25519) -> Parties:
    """Make a coordinator, client-1 to client-C and aggregator-1 to aggregator-S, each its own organisation."""
    roles = {
        "coordinator": Role.COORDINATOR,
        **{f"aggregator-{number}": Role.AGGREGATOR for number in range(1, servers + 1)},
        **{f"client-{number}": Role.CLIENT for number in range(1, clients + 1)},
    }
    return gather([new_identity(name, role, name) for name, role in roles.items()], kem=kem)


def gather(identities: list[Identity], *, kem: Kem = Kem.X25519) -> Parties:
    """Build the roster of these identities."""
    roster = build_roster([identity.public() for identity in identities], kem=kem)
    return Parties(roster, {identity.name: identity for identity in identities})


Connect = Callable[[PartyId, Topology], Transport]


@dataclass(frozen=True, slots=True, kw_only=True)
class Federation:
    """The running services."""

    coordinator: Coordinator
    aggregators: tuple[Aggregator, ...]
    trainers: tuple[Trainer, ...]
    folder: Path
    _ended: tuple[Mapping[RunId, asyncio.Event], ...]
    """For each party, an event per run that is set once the party has ended the run."""

    async def run(self, manifest: Manifest) -> tuple[runs.State, runs.CoordinatorRun]:
        """Run a manifest to its end, and return its final state and data; go on with one that was begun before."""
        run = manifest.run_id
        if run not in self.coordinator.list_runs():
            await self.coordinator.submit(manifest)
        for ended in self._ended:
            await ended[run].wait()
        return self.coordinator.find_run(run)

    async def complete(self, manifest: Manifest) -> runs.CoordinatorRun:
        """Run a manifest to its end, and return its data; raise `ProtocolError` unless it completed."""
        state, run = await self.run(manifest)
        if state is not runs.State.COMPLETED:
            raise ProtocolError(f"the run {describe_end(state, run)}")
        return run

    def model_digests(self, manifest: Manifest) -> dict[PartyId, str]:
        """Return the model digest that each trainer wrote to its folder when the run ended."""
        run = manifest.run_id
        return {
            name: _run_folder(self.folder, name, run).joinpath("model.sha256").read_text("ascii").strip()
            for name in manifest.clients
        }

    def model_digest(self, manifest: Manifest) -> str:
        """Return the digest of the one model that all trainers ended with, or raise `ProtocolError`.

        If clients have models of their own, it is the first client's.
        """
        digests = self.model_digests(manifest)
        different = len(set(digests.values()))
        if different > 1 and not find_strategy(manifest.strategy).own_models:
            raise ProtocolError(f"{manifest.strategy}: the clients ended with {different} different models")
        return digests[manifest.clients[0]]

    def measure_drift(self, manifest: Manifest) -> float | None:
        """Measure how far models have drifted apart: the largest distance from their mean, over its norm.

        None if clients share one model.
        """
        if not find_strategy(manifest.strategy).own_models:
            return None
        folders = (_run_folder(self.folder, name, manifest.run_id) for name in manifest.clients)
        models = np.stack([read_kept_model(folder).theta for folder in folders]).astype(np.float64)
        mean = models.mean(axis=0)
        return float(np.linalg.norm(models - mean, axis=1).max() / np.linalg.norm(mean))

    def kept_model(self, manifest: Manifest) -> KeptModel:
        """Return the model as the first client keeps it: all have the same θ, and each its own buffers."""
        return read_kept_model(_run_folder(self.folder, manifest.clients[0], manifest.run_id))

    def best_model(self, manifest: Manifest) -> KeptModel | None:
        """Return the model with the best headline metric, as the first client keeps it; None without scores."""
        return read_best_model(_run_folder(self.folder, manifest.clients[0], manifest.run_id))

    def count_task_failures(self) -> int:
        """Count failures of training or evaluation at all trainers, which only their owners are told about."""
        return sum(trainer.count_task_failures() for trainer in self.trainers)

    def wire_by_kind(self) -> dict[str, int]:
        """Return the bytes of every message that any party has sent so far, by kind, the largest first."""
        total: Counter[str] = Counter()
        for runner in (self.coordinator.runner, *(each.runner for each in (*self.aggregators, *self.trainers))):
            total.update(runner.counters.bytes_sent())
        return dict(total.most_common())

    def alone_shares(self, manifest: Manifest) -> dict[int, float]:
        """Return by round the share of V's indices that one client chose alone: the mean of clients' figures."""
        told: dict[int, list[float]] = {}
        run = manifest.run_id
        for name in manifest.clients:
            text = (_run_folder(self.folder, name, run) / "rounds.jsonl").read_text("utf-8")
            for record in map(json.loads, text.splitlines()):
                if record.get("alone_share") is not None:
                    told.setdefault(record["round"], []).append(record["alone_share"])
        return {number: sum(shares) / len(shares) for number, shares in told.items()}


def describe_end(state: runs.State, run: runs.CoordinatorRun) -> str:
    """Describe how and why a run ended, and why it was stalled if it was."""
    stalled = f". It was stalled: {run.stalled}" if run.stalled else ""
    return f"{state.value}: {run.reason}{stalled}"


def _run_folder(folder: Path, name: PartyId, run: RunId) -> Path:
    return folder / name / "runs" / run


class _Ending:
    """Observes a party, and sets an event when the party has ended a run."""

    def __init__(self, *finals: Enum, observe: Observer = lambda _: None) -> None:
        self._finals = finals
        self._observe = observe
        self.of_run: defaultdict[RunId, asyncio.Event] = defaultdict(asyncio.Event)

    def __call__(self, moment: Transition) -> None:
        self._observe(moment)
        if moment.after in self._finals:
            self.of_run[moment.key.run].set()


class _Place(TypedDict):
    """Arguments that every service takes."""

    identity: Identity
    roster: Roster
    transport: Transport
    folder: Path


@asynccontextmanager
async def start_federation(
    manifest: Manifest,
    *,
    parties: Parties,
    folder: Path,
    load_task: TaskLoader,
    demo_seed: int | None,
    connect: Connect | None = None,
    observer: Observer = lambda _: None,
    trainer_observer: Observer = lambda _: None,
    progress: Progress = lambda *_: None,
) -> AsyncIterator[Federation]:
    """Start every party that a manifest names, and stop them all at the end.

    `observer` sees the coordinator's steps, `trainer_observer` those of every trainer.

    In the folder of an earlier federation the same parties go on with the run, as after a crash, if `connect` is
    to a broker that has kept their messages.
    """
    roster = parties.roster
    # At most as many trainers at once as there are cores: each uses one thread.
    slots = asyncio.Semaphore(os.cpu_count() or 1)
    of_aggregator = membership.State.REFUSED, membership.State.ENDED
    of_trainer = admission.State.REFUSED, admission.State.ENDED, participation.State.ENDED
    endings = {
        manifest.coordinator: _Ending(*runs.OUTCOMES, observe=observer),
        **{name: _Ending(*of_aggregator) for name in manifest.aggregators},
        **{name: _Ending(*of_trainer, observe=trainer_observer) for name in manifest.clients},
    }
    async with AsyncExitStack() as stack:
        transports = await _connect_all(manifest, connect or connect_to(MemoryBroker()), stack)

        def place(name: PartyId) -> _Place:
            return _Place(
                identity=parties.identities[name],
                roster=roster,
                transport=transports[name],
                folder=folder / name,
            )

        federation = Federation(
            coordinator=Coordinator(**place(manifest.coordinator), observer=endings[manifest.coordinator]),
            aggregators=tuple(
                Aggregator(
                    **place(name),
                    read_policy=partial(AggregatorPolicy.for_demo, roster.digest),
                    observer=endings[name],
                )
                for name in manifest.aggregators
            ),
            trainers=tuple(
                Trainer(
                    **place(name),
                    read_policy=partial(Policy.for_demo, roster.digest),
                    load_task=load_task,
                    demo_seed=demo_seed,
                    training_slots=slots,
                    progress=progress,
                    observer=endings[name],
                )
                for name in manifest.clients
            ),
            folder=folder,
            _ended=tuple(ending.of_run for ending in endings.values()),
        )
        services: tuple[Aggregator | Trainer | Coordinator, ...] = (
            *federation.aggregators,
            *federation.trainers,
            federation.coordinator,
        )
        for service in services:
            stack.callback(service.close)
        for service in services:
            stack.push_async_callback(service.runner.stop)
            await service.runner.start()
        run = manifest.run_id
        if run in federation.coordinator.list_runs() and federation.coordinator.find_run(run)[0] in runs.OUTCOMES:
            endings[manifest.coordinator].of_run[run].set()
        for name in (*manifest.aggregators, *manifest.clients):
            if Tombstones(folder / name / TOMBSTONES).has_ended(run):
                endings[name].of_run[run].set()
        yield federation


async def _connect_all(manifest: Manifest, connect: Connect, stack: AsyncExitStack) -> dict[PartyId, Transport]:
    roles = {
        manifest.coordinator: Role.COORDINATOR,
        **dict.fromkeys(manifest.aggregators, Role.AGGREGATOR),
        **dict.fromkeys(manifest.clients, Role.CLIENT),
    }
    return {
        name: await stack.enter_async_context(connect(name, topology_for(name, role)))
        for name, role in roles.items()
    }


def connect_to(broker: MemoryBroker) -> Connect:
    """Return a function that connects parties to a broker in this process."""
    return lambda _, topology: MemoryTransport(broker, topology)
