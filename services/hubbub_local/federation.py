"""A coordinator, aggregators and trainers in this process, over one transport each.

The services are the very ones that run as processes of their own; only the transport and the folder differ.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
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


def _run_folder(folder: Path, name: PartyId, manifest: Manifest) -> Path:
    return folder / name / "runs" / manifest.run_id


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
    ended: list[asyncio.Event] = []
    connect = connect or _connect_in_memory()
    slots = asyncio.Semaphore(os.cpu_count() or 1)

    def watch(observe: Observer, finals: frozenset[Enum]) -> Observer:
        """Observe a party, and note when it has done all that the end of the run asks of it."""
        over = asyncio.Event()
        ended.append(over)

        def note(moment: Moment) -> None:
            observe(moment)
            if moment.key.kind == "run" and moment.after in finals:
                over.set()

        return note

    async with AsyncExitStack() as stack:

        async def open_transport(name: PartyId, role: Role) -> Transport:
            return await stack.enter_async_context(connect(name, topology_for(name, role)))

        name = manifest.coordinator
        coordinator = Coordinator(
            name=name,
            transport=await open_transport(name, Role.COORDINATOR),
            folder=folder / name,
            observer=watch(observer, frozenset(runs.OUTCOMES)),
        )
        aggregators = [
            Aggregator(
                name=name,
                transport=await open_transport(name, Role.AGGREGATOR),
                folder=folder / name,
                observer=watch(_ignore, frozenset({membership.State.REFUSED, membership.State.ENDED})),
            )
            for name in manifest.aggregators
        ]
        trainers = [
            Trainer(
                name=name,
                transport=await open_transport(name, Role.CLIENT),
                folder=folder / name,
                load_task=load_task,
                demo_seed=demo_seed,
                training_slots=slots,
                progress=progress,
                observer=watch(_ignore, frozenset({enrolment.State.REFUSED, enrolment.State.ENDED})),
            )
            for name in manifest.clients
        ]
        for close in [*(each.close for each in aggregators), *(each.close for each in trainers)]:
            stack.callback(close)
        for runner in (
            *(each.runner for each in aggregators),
            *(each.runner for each in trainers),
            coordinator.runner,
        ):
            stack.push_async_callback(runner.stop)
            await runner.start()
        yield Federation(
            coordinator=coordinator,
            aggregators=tuple(aggregators),
            trainers=tuple(trainers),
            folder=folder,
            _ended=tuple(ended),
        )


def _ignore(_: Moment) -> None:
    pass


def _connect_in_memory() -> Connect:
    broker = MemoryBroker()
    return lambda _, topology: MemoryTransport(broker, topology)
