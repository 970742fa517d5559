"""A federation in this process: coordinator, aggregators and trainers, with throw-away identities and roster.

The services are those that otherwise run as separate processes; only transport and folder differ. Each party
has a transport of its own.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from pathlib import Path

from hubbub.crypto.sealing import Kem
from hubbub.errors import ProtocolError
from hubbub.ids import PartyId, Role, RunId
from hubbub.messages.manifest import Manifest
from hubbub.runtime.runner import Observer, Transition
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
from hubbub_trainer.service import Trainer
from hubbub_trainer.task_runner import Progress
from hubbub_trainer.workspaces import TaskLoader


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
        """Run a manifest to its end, and return its final state and data."""
        run = await self.coordinator.submit(manifest)
        for ended in self._ended:
            await ended[run].wait()
        return self.coordinator.find_run(run)

    async def complete(self, manifest: Manifest) -> None:
        """Run a manifest to its end; raise `ProtocolError` unless it completed."""
        state, run = await self.run(manifest)
        if state is not runs.State.COMPLETED:
            raise ProtocolError(f"the run {state.value}: {run.reason}")

    def model_digests(self, manifest: Manifest) -> dict[PartyId, str]:
        """Return the model digest that each trainer wrote to its folder when the run ended."""
        return {
            name: _run_folder(self.folder, name, manifest).joinpath("model.sha256").read_text("ascii").strip()
            for name in manifest.clients
        }

    def count_task_failures(self) -> int:
        """Count failures of training or evaluation at all trainers, which only their owners are told about."""
        return sum(trainer.count_task_failures() for trainer in self.trainers)

    def alone_shares(self, manifest: Manifest) -> dict[int, float]:
        """Return by round the share of V's indices that one client chose alone: the mean of clients' figures."""
        told: dict[int, list[float]] = {}
        for name in manifest.clients:
            text = (_run_folder(self.folder, name, manifest) / "rounds.jsonl").read_text("utf-8")
            for record in map(json.loads, text.splitlines()):
                if record.get("alone_share") is not None:
                    told.setdefault(record["round"], []).append(record["alone_share"])
        return {number: sum(shares) / len(shares) for number, shares in told.items()}


def _run_folder(folder: Path, name: PartyId, manifest: Manifest) -> Path:
    return folder / name / "runs" / manifest.run_id


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Settings that all parties of a federation share in this process."""

    parties: Parties
    folder: Path
    load_task: TaskLoader
    demo_seed: int | None
    observer: Observer = lambda _: None
    trainer_observer: Observer = lambda _: None
    progress: Progress = lambda *_: None


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
    """
    setting = Setting(
        parties=parties,
        folder=folder,
        load_task=load_task,
        demo_seed=demo_seed,
        observer=observer,
        trainer_observer=trainer_observer,
        progress=progress,
    )
    async with AsyncExitStack() as stack:
        transports = await _connect_all(manifest, connect or _connect_in_memory(), stack)
        federation = _build(manifest, setting, transports)
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


def _build(manifest: Manifest, setting: Setting, transports: Mapping[PartyId, Transport]) -> Federation:
    ended: list[Mapping[RunId, asyncio.Event]] = []
    # At most as many trainers at once as there are cores: each uses one thread.
    slots = asyncio.Semaphore(os.cpu_count() or 1)

    def watch(*finals: Enum, observe: Observer = lambda _: None) -> Observer:
        """Make an observer of a party that sets an event when the party has ended a run."""
        over: defaultdict[RunId, asyncio.Event] = defaultdict(asyncio.Event)
        ended.append(over)

        def note(moment: Transition) -> None:
            observe(moment)
            if moment.after in finals:
                over[moment.key.run].set()

        return note

    identities, roster = setting.parties.identities, setting.parties.roster
    coordinator = Coordinator(
        identity=identities[manifest.coordinator],
        roster=roster,
        transport=transports[manifest.coordinator],
        folder=setting.folder / manifest.coordinator,
        observer=watch(*runs.OUTCOMES, observe=setting.observer),
    )
    aggregators = tuple(
        Aggregator(
            identity=identities[name],
            roster=roster,
            read_policy=partial(AggregatorPolicy.for_demo, roster.digest),
            transport=transports[name],
            folder=setting.folder / name,
            observer=watch(membership.State.REFUSED, membership.State.ENDED),
        )
        for name in manifest.aggregators
    )
    trainers = tuple(
        Trainer(
            identity=identities[name],
            roster=roster,
            read_policy=partial(Policy.for_demo, roster.digest),
            transport=transports[name],
            folder=setting.folder / name,
            load_task=setting.load_task,
            demo_seed=setting.demo_seed,
            training_slots=slots,
            progress=setting.progress,
            observer=watch(
                admission.State.REFUSED,
                admission.State.ENDED,
                participation.State.ENDED,
                observe=setting.trainer_observer,
            ),
        )
        for name in manifest.clients
    )
    return Federation(
        coordinator=coordinator,
        aggregators=aggregators,
        trainers=trainers,
        folder=setting.folder,
        _ended=tuple(ended),
    )


def _connect_in_memory() -> Connect:
    broker = MemoryBroker()
    return lambda _, topology: MemoryTransport(broker, topology)
