"""A coordinator, aggregators and trainers in this process, over one transport each.

The services are the very ones that run as processes of their own; only the transport and the folder differ.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from hubbub.ids import PartyId, Role
from hubbub.messages.manifest import Manifest
from hubbub.runtime.runner import Moment, Observer
from hubbub.transport.base import Transport
from hubbub.transport.memory import MemoryBroker, MemoryTransport
from hubbub.transport.topology import Topology, topology_for
from hubbub_aggregator.phases import membership
from hubbub_aggregator.service import Aggregator
from hubbub_coordinator.phases import run as runs
from hubbub_coordinator.service import Coordinator
from hubbub_trainer.phases import enrolment
from hubbub_trainer.service import Progress, TaskLoader, Trainer

Connect = Callable[[PartyId, Topology], Transport]


@dataclass(frozen=True, slots=True, kw_only=True)
class Federation:
    """The running services."""

    coordinator: Coordinator
    aggregators: tuple[Aggregator, ...]
    trainers: tuple[Trainer, ...]
    folder: Path
    _ended: tuple[asyncio.Event, ...]

    async def run(self, manifest: Manifest) -> tuple[runs.State, runs.Run]:
        """Run a manifest to its end and return how it ended."""
        run = await self.coordinator.submit(manifest)
        for ended in self._ended:
            await ended.wait()
        return self.coordinator.find_run(run)

    def model_digests(self, manifest: Manifest) -> dict[PartyId, str]:
        """The digest that each trainer wrote to its own folder when the run ended."""
        return {
            name: _run_folder(self.folder, name, manifest).joinpath("model.sha256").read_text("ascii").strip()
            for name in manifest.clients
        }

    def alone_shares(self, manifest: Manifest) -> dict[int, float]:
        """Of each round, the share of V's indices that one client chose alone: the mean of what clients tell."""
        told: dict[int, list[float]] = {}
        for name in manifest.clients:
            text = (_run_folder(self.folder, name, manifest) / "rounds.jsonl").read_text("utf-8")
            for record in map(json.loads, text.splitlines()):
                if record["alone_share"] is not None:
                    told.setdefault(record["round"], []).append(record["alone_share"])
        return {number: sum(shares) / len(shares) for number, shares in told.items()}


def _run_folder(folder: Path, name: PartyId, manifest: Manifest) -> Path:
    return folder / name / "runs" / manifest.run_id


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What the parties of a federation share in this process."""

    folder: Path
    load_task: TaskLoader
    demo_seed: int | None
    observer: Observer = lambda _: None
    progress: Progress = lambda *_: None


@asynccontextmanager
async def start_federation(
    manifest: Manifest,
    *,
    folder: Path,
    load_task: TaskLoader,
    demo_seed: int | None,
    connect: Connect | None = None,
    observer: Observer = lambda _: None,
    progress: Progress = lambda *_: None,
) -> AsyncIterator[Federation]:
    """Start every party that a manifest names, and stop them all at the end."""
    setting = Setting(
        folder=folder, load_task=load_task, demo_seed=demo_seed, observer=observer, progress=progress
    )
    async with AsyncExitStack() as stack:
        transports = await _connect_all(manifest, connect or _connect_in_memory(), stack)
        federation = _build(manifest, setting, transports)
        parties: tuple[Aggregator | Trainer, ...] = (*federation.aggregators, *federation.trainers)
        for party in parties:
            stack.callback(party.close)
        for runner in (*(party.runner for party in parties), federation.coordinator.runner):
            stack.push_async_callback(runner.stop)
            await runner.start()
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
    ended: list[asyncio.Event] = []
    # As many trainers at once as there are cores: each uses one thread.
    slots = asyncio.Semaphore(os.cpu_count() or 1)

    def watch(*finals: Enum, observe: Observer = lambda _: None) -> Observer:
        """Observe a party, and note when it has done all that the end of the run asks of it."""
        over = asyncio.Event()
        ended.append(over)

        def note(moment: Moment) -> None:
            observe(moment)
            if moment.key.kind == "run" and moment.after in finals:
                over.set()

        return note

    coordinator = Coordinator(
        name=manifest.coordinator,
        transport=transports[manifest.coordinator],
        folder=setting.folder / manifest.coordinator,
        observer=watch(*runs.OUTCOMES, observe=setting.observer),
    )
    aggregators = tuple(
        Aggregator(
            name=name,
            transport=transports[name],
            folder=setting.folder / name,
            observer=watch(membership.State.REFUSED, membership.State.ENDED),
        )
        for name in manifest.aggregators
    )
    trainers = tuple(
        Trainer(
            name=name,
            transport=transports[name],
            folder=setting.folder / name,
            load_task=setting.load_task,
            demo_seed=setting.demo_seed,
            training_slots=slots,
            progress=setting.progress,
            observer=watch(enrolment.State.REFUSED, enrolment.State.ENDED),
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
