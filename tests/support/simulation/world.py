"""All parties of a run in one loop, each in processes that die and are started again."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import os
import random
import sqlite3
from collections import Counter
from collections.abc import Callable, Coroutine, Generator
from contextvars import ContextVar, copy_context
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

import pytest

from hubbub.errors import HubbubError, RejectReason, StorageFailed, TransportError
from hubbub.ids import PartyId, Role
from hubbub.messages.envelope import Envelope
from hubbub.messages.manifest import Manifest
from hubbub.messages.snapshots import Voucher
from hubbub.protocol import aggregate
from hubbub.strategies.base import Release, Theta
from hubbub.transport.base import Verdict
from hubbub.transport.memory import _Taken
from hubbub.transport.topology import dead_letter_queue, received_from, topology_for
from hubbub_aggregator.policy import AggregatorPolicy
from hubbub_aggregator.service import Aggregator
from hubbub_coordinator.phases import run as runs
from hubbub_coordinator.service import Coordinator, RunExists, UnknownRun
from hubbub_local.federation import Parties
from hubbub_trainer import snapshots
from hubbub_trainer.events import SharesSent
from hubbub_trainer.learning.task import Task
from hubbub_trainer.phases.round import ClientRound, SendShares
from hubbub_trainer.policy import Policy
from hubbub_trainer.round_jobs import RoundJobs
from hubbub_trainer.service import Trainer
from hubbub_trainer.workspace import Learnt, Workspace, digest
from support.damage import flip, full_slots
from support.frames import decode
from support.recorder import Said
from support.simulation.disk import Database, Disk
from support.simulation.ledger import Ledger
from support.simulation.loop import ManualLoop
from support.simulation.network import FaultyTransport, Link, WatchedBroker
from support.simulation.operations import (
    Cancel,
    Crash,
    Cut,
    Damage,
    History,
    Kill,
    Moment,
    Overflow,
    Place,
    StopBroker,
)
from support.simulation.shortcuts import take_shortcuts
from support.spooled import chunk_in

T = TypeVar("T")

DEMO_SEED = 11
LONGEST_STEP_S = 0.05
PATIENCE_S = 3_000.0
"""By then a run has long been over, whatever happens in the first minutes."""
LATE_S = 130.0
"""After the end: what is still on its way arrives."""
BEGAN_AT_S = 1_700_000_000.0

_current: ContextVar[Process | None] = ContextVar("process", default=None)


Plot = Callable[["World", Envelope], None]
"""Told of every message that the broker has taken."""


class Died(BaseException):
    """The process that runs this is no more. Nothing in a service catches it."""


class SimulatedClock:
    """Tells the loop's time as if it were a date."""

    def now_s(self) -> float:
        return BEGAN_AT_S + asyncio.get_running_loop().time()

    def ahead_s(self) -> float:
        return 0.0

    def go_on_from(self, at_s: float) -> None:
        assert at_s <= self.now_s(), "all parties have one clock, which never goes back"


_WITHOUT_WHAT_CAME_BEFORE = {RejectReason.TOO_EARLY.value, RejectReason.UNKNOWN_RUN.value}
"""Why what an honest party sent is refused by who has lost an order, or a proposal."""


class Process:
    """A party from one start to its death."""

    def __init__(self, party: SimulatedParty) -> None:
        self.party = party
        self.dead = False
        self.ready = False
        self.tasks: set[asyncio.Task[Any]] = set()
        self.databases: list[Database] = []
        self.transport: FaultyTransport | None = None
        self.service: Coordinator | Aggregator | Trainer | None = None
        self.context = copy_context()
        self.context.run(_current.set, self)

    def start(self) -> None:
        self.spawn(self._boot())

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self.context.run(asyncio.get_running_loop().create_task, work)

    async def _boot(self) -> None:
        world, party = self.party.world, self.party
        while not (party.link.up.is_set() and world.broker.running):  # noqa: ASYNC110  (As a supervisor does.)
            await asyncio.sleep(1.0)
        self.transport = FaultyTransport(
            world.broker,
            topology_for(party.name, party.role),
            link=party.link,
            pace=world.pace,
            visit=self.visit,
        )
        await self.transport.__aenter__()
        self.service = party.build(self.transport)
        await self.service.runner.start()
        self.ready = True

    def visit(self, when: Moment, place: Place) -> None:
        """Die here, if the history says so; the dead do nothing more."""
        if self.dead:
            raise Died
        party = self.party
        if when == "before":
            party.visits[place] += 1
        crash = party.crashes.pop((when, place, party.visits[place]), None)
        if crash is not None:
            self.die(crash)
            raise Died

    def die(self, cause: Crash | Kill) -> None:
        """Be gone at once; what belongs to the process is cleared away when nothing of it runs."""
        if not self.dead:
            self.dead = True
            loop = asyncio.get_running_loop()
            loop.call_soon(self._clear_away, cause.power, context=self.party.world.context)
            loop.call_later(cause.down_s, self.party.start, context=self.party.world.context)

    def _clear_away(self, power: bool) -> None:  # noqa: FBT001  (Called by the loop.)
        for task in list(self.tasks):
            task.cancel()
        if self.transport is not None:
            self.transport.disconnect()
        for database in self.databases:
            database.close()
        self.party.disk.close_files()
        if power:
            self.party.disk.lose_power()

    def note_task(self, task: asyncio.Task[Any]) -> None:
        self.tasks.add(task)
        task.add_done_callback(self._note_end)

    def _note_end(self, task: asyncio.Task[Any]) -> None:
        self.tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, Died):
            self.party.world.ledger.blame(f"{self.party.name} broke: {error!r}")


class SimulatedParty:
    """What outlives the processes of a party: its name, its disk, and how often it was where."""

    def __init__(self, world: World, name: PartyId, role: Role) -> None:
        self.world = world
        self.name = name
        self.role = role
        self.disk = Disk(world.folder / name)
        self.link = Link(name, world.history.operations)
        self.visits: Counter[str] = Counter()
        self.crashes = {
            (each.when, each.place, each.nth): each
            for each in world.history.operations
            if isinstance(each, Crash) and each.party == name
        }
        self.process = Process(self)

    def start(self) -> None:
        if self.process.dead:
            self.process = Process(self)
        self.process.start()

    def build(self, transport: FaultyTransport) -> Coordinator | Aggregator | Trainer:
        world, folder, clock = self.world, self.world.folder / self.name, SimulatedClock()
        identity, roster = world.parties.identities[self.name], world.parties.roster
        if self.role is Role.COORDINATOR:
            return Coordinator(identity=identity, roster=roster, transport=transport, folder=folder, clock=clock)
        if self.role is Role.AGGREGATOR:
            return Aggregator(
                identity=identity,
                roster=roster,
                read_policy=partial(AggregatorPolicy.for_demo, roster.digest),
                transport=transport,
                folder=folder,
                clock=clock,
            )
        return Trainer(
            identity=identity,
            roster=roster,
            read_policy=partial(Policy.for_demo, roster.digest),
            transport=transport,
            folder=folder,
            load_task=lambda _: world.task,
            demo_seed=DEMO_SEED,
            clock=clock,
        )

    def cut(self, for_s: float, keeps: int | None = None) -> None:
        """Lose the connection, and find it again later; meanwhile only so many messages may be kept."""
        self.link.up.clear()
        if keeps is not None:
            for queue in received_from(self.name, self.role):
                self.world.broker.limit(queue, keeps)
        if self.process.transport is not None and not self.process.dead:
            self.process.transport.disconnect()
        asyncio.get_running_loop().call_later(for_s, self.mend)

    def mend(self) -> None:
        for queue in received_from(self.name, self.role):
            self.world.broker.lift_limit(queue)
        self.link.up.set()
        if self.process.transport is not None and not self.process.dead:
            self.process.transport.reconnect(self.process.context)

    def is_over(self) -> bool:
        """Whether the process runs, and no run of it is open."""
        service = self.process.service
        return self.process.ready and not self.process.dead and service is not None and not service.runner.machines


class World:
    """One history, from the first start to the end of the run."""

    def __init__(
        self,
        history: History,
        manifest: Manifest,
        parties: Parties,
        task: Task,
        folder: Path,
        plot: Plot = lambda *_: None,
    ) -> None:
        self.history = history
        self.manifest = manifest
        self.parties = parties
        self.task = task
        self.folder = folder
        self.plot = plot
        self.ledger = Ledger(manifest)
        self.context = contextvars.Context()
        self.pace: Callable[[], float] = partial(random.Random(history.seed).uniform, 0.0, LONGEST_STEP_S)
        self.outcome: tuple[str, str] | None = None

    def play(self) -> Ledger:
        """Play it to the end and check what must hold."""
        loop = ManualLoop(self.pace)
        loop.set_task_factory(_make_task)
        listener = _Listener(self.ledger)
        logging.getLogger().addHandler(listener)
        try:
            with pytest.MonkeyPatch.context() as patch:
                self._watch(patch)
                loop.run_until_complete(self._live())
        except Exception as error:  # noqa: BLE001  (It is a finding, with a history to print.)
            self.ledger.blame(f"the simulation broke: {error!r}")
        finally:
            logging.getLogger().removeHandler(listener)
            self._end_all(loop)
        self._check()
        return self.ledger

    async def _live(self) -> None:
        self.broker = WatchedBroker(self._watch_message)
        for name, role in self._roles.items():
            self.broker.declare(topology_for(name, role))
        self.members = {name: SimulatedParty(self, name, role) for name, role in self._roles.items()}
        for party in self.members.values():
            party.start()
        for operation in self.history.operations:
            self._schedule(operation)
        await self._reach_verdict()
        await asyncio.sleep(LATE_S)
        if not all(party.is_over() for party in self.members.values()):
            await self._reach_verdict()
        for name in self.members:
            self._check_queues(name)

    def _watch_message(self, frame: bytes) -> None:
        envelope = decode(frame)
        self.ledger.watch(asyncio.get_running_loop().time(), envelope)
        self.plot(self, envelope)

    @cached_property
    def _roles(self) -> dict[PartyId, Role]:
        return {
            self.manifest.coordinator: Role.COORDINATOR,
            **dict.fromkeys(self.manifest.aggregators, Role.AGGREGATOR),
            **dict.fromkeys(self.manifest.clients, Role.CLIENT),
        }

    def _schedule(self, operation: object) -> None:
        loop = asyncio.get_running_loop()
        match operation:
            case Kill(party=name, at_s=at_s):
                loop.call_later(at_s, lambda: self.members[PartyId(name)].process.die(operation))
            case Cut(party=name, at_s=at_s, for_s=for_s):
                loop.call_later(at_s, self.members[PartyId(name)].cut, for_s)
            case Overflow(party=name, at_s=at_s, for_s=for_s, keeps=keeps):
                self.ledger.overflowed.add(PartyId(name))
                loop.call_later(at_s, self.members[PartyId(name)].cut, for_s, keeps)
            case Damage(party=name, at_s=at_s):
                self.ledger.damaged.add(PartyId(name))
                loop.call_later(at_s, self._damage, self.folder / name / "spool")
            case StopBroker(at_s=at_s, for_s=for_s):
                loop.call_later(at_s, self._stop_broker, for_s)
            case Cancel(at_s=at_s):
                loop.call_later(at_s, self._ask_to_cancel)

    def _damage(self, spool: Path) -> None:
        for slot in full_slots(spool):
            chunk = chunk_in(slot, slot.read_bytes())
            if chunk is not None and chunk[0].split(".")[2] in self.manifest.clients:
                flip(slot)

    def _stop_broker(self, for_s: float) -> None:
        self.broker.stop()
        asyncio.get_running_loop().call_later(for_s, self.broker.start)

    # The operator ---------------------------------------------------------------------------------------

    @property
    def _coordinator(self) -> tuple[Process, Coordinator] | None:
        process = self.members[self.manifest.coordinator].process
        service = process.service
        ready = process.ready and not process.dead and isinstance(service, Coordinator)
        return (process, service) if ready and isinstance(service, Coordinator) else None

    def _ask_to_cancel(self) -> None:
        if self._coordinator is not None:
            process, coordinator = self._coordinator
            process.spawn(_ignore_refusal(coordinator.cancel(self.manifest.run_id)))

    async def _reach_verdict(self) -> None:
        """Submit the manifest, again if it was not kept, and wait until nobody has anything left to do."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + PATIENCE_S
        while loop.time() < until_s:
            await asyncio.sleep(1.0)
            if self._coordinator is None:
                continue
            process, coordinator = self._coordinator
            try:
                state, data = coordinator.find_run(self.manifest.run_id)
            except UnknownRun:
                if self.manifest.run_id in coordinator._tombstones:
                    return  # It died before it had told anybody: the operator draws up another manifest.
                process.spawn(_ignore_refusal(coordinator.submit(self.manifest)))
                continue
            if state in runs.OUTCOMES:
                self.outcome = (state.value, data.reason)
                if all(party.is_over() for party in self.members.values()):
                    return
        self.ledger.blame(f"no end after {PATIENCE_S:g} s: {self._describe()}")

    def _describe(self) -> str:
        lines = []
        for name, party in self.members.items():
            service = party.process.service
            machines = {} if service is None or party.process.dead else service.runner.machines
            states = ", ".join(
                f"{key.kind} {key.round} {key.phase} {live.state}" for key, live in machines.items()
            )
            lines.append(f"{name}: {states or 'nothing'}")
        return "; ".join(lines)

    # What must hold at the end --------------------------------------------------------------------------

    def _check_queues(self, name: PartyId) -> None:
        for dead in self.broker.dead_letters(dead_letter_queue(name)):
            if name in self.ledger.overflowed and dead.reason in _WITHOUT_WHAT_CAME_BEFORE:
                continue
            self.ledger.blame(f"{name} refused what an honest party sent: {dead.reason}")
        for queue in received_from(name, self.members[name].role):
            if left := self.broker.waiting_in(queue):
                self.ledger.blame(f"{left} messages are left in {queue}")

    def _end_all(self, loop: ManualLoop) -> None:
        for party in self.members.values():
            if not party.process.dead:
                party.process.dead = True
                party.process._clear_away(power=False)
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()

    def _check(self) -> None:
        expected = self.ledger.check_models(self.task, demo_seed=DEMO_SEED)
        left = {client: self._read_model(client) for client in self.manifest.clients}
        for client, model in left.items():
            if model is not None and model not in expected.values():
                self.ledger.blame(f"{client} wrote a model that nobody ever had")
        if self.outcome is not None:
            self.ledger.check_outcome(*self.outcome, left, expected)

    def _read_model(self, client: PartyId) -> str | None:
        # As after a power cut: what is not safe does not count.
        found = self.members[client].disk.read_safe("runs", self.manifest.run_id, "model.sha256")
        return None if found is None else found.decode("ascii").strip()

    # Looking over shoulders -----------------------------------------------------------------------------

    def _watch(self, patch: pytest.MonkeyPatch) -> None:
        _watch_disks(patch)
        take_shortcuts(patch)
        patch.setattr(_Taken, "settle", _settle)
        self._watch_trainers(patch)

    def _watch_trainers(self, patch: pytest.MonkeyPatch) -> None:
        ledger = self.ledger
        send_shares, read_sums = RoundJobs.send_shares, RoundJobs._read_sums
        advance, keep_update, take = Workspace.advance, Workspace.keep_update, snapshots.take

        async def send_watched(jobs: RoundJobs, job: SendShares) -> SharesSent:
            mine = jobs._open_phase(job.phase).client_round
            ledger.note_said(jobs.me, jobs.key, job.phase, Said.by(mine, job.phase))
            return await send_shares(jobs, job)

        def read_watched(jobs: RoundJobs, data: ClientRound, phase: str) -> Release:
            release = read_sums(jobs, data, phase)
            members = next(iter(data.sums[phase].values())).members
            ledger.note_sum(jobs.me, jobs.key, phase, members, release.values)
            return release

        def advance_watched(space: Workspace, number: int, theta: Theta, *rest: Any, **more: Any) -> None:
            advance(space, number, theta, *rest, **more)
            ledger.note_model(_current_party(), number, digest(theta))

        def keep_watched(space: Workspace, number: int, learnt: Learnt) -> None:
            # Before it is kept: whoever dies after it does not come here again.
            ledger.idle[_current_party(), number] = not learnt.update.any()
            keep_update(space, number, learnt)

        def take_watched(
            space: Workspace,
            theta: Theta,
            history: aggregate.History,
            voucher: Voucher,
            velocity: Theta | None = None,
        ) -> None:
            take(space, theta, history, voucher, velocity)
            ledger.caught_up.add((_current_party(), voucher.round))

        patch.setattr(snapshots, "take", take_watched)
        patch.setattr(Workspace, "keep_update", keep_watched)
        patch.setattr(RoundJobs, "send_shares", send_watched)
        patch.setattr(RoundJobs, "_read_sums", read_watched)
        patch.setattr(Workspace, "advance", advance_watched)


def _current_party() -> PartyId:
    process = _current.get()
    assert process is not None
    return process.party.name


async def _ignore_refusal(work: Coroutine[Any, Any, object]) -> None:
    """An operator who is refused, or whose connection to the process is lost, looks and tries again."""
    try:
        await work
    except (RunExists, HubbubError):
        return


def _make_task(
    loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T] | Generator[Any, None, T], **more: Any
) -> asyncio.Task[T]:
    task = asyncio.Task(work, loop=loop, **more)
    process = _current.get()
    if process is not None:
        process.note_task(task)
    return task


async def _settle(taken: _Taken, verdict: Verdict) -> None:
    process = _current.get()
    if process is not None and process.transport is not None:
        process.transport.settle(taken, verdict)


def _watch_disks(patch: pytest.MonkeyPatch) -> None:
    connect, replace, unlink = sqlite3.connect, os.replace, os.unlink

    def visit(when: Moment, place: Place) -> None:
        process = _current.get()
        if process is not None:
            process.visit(when, place)

    def sync(handle: int) -> None:
        process = _current.get()
        if process is not None:
            process.visit("before", "file")
            process.party.disk.sync(handle)
            process.visit("after", "file")

    def change(work: Callable[..., None]) -> Callable[..., None]:
        def visited(*args: Any, **more: Any) -> None:
            visit("before", "file")
            work(*args, **more)
            visit("after", "file")

        return visited

    def open_database(*args: Any, **more: Any) -> Database:
        database = connect(*args, **more, factory=Database)
        database.visit = visit
        process = _current.get()
        if process is not None:
            process.databases.append(database)
        return database

    patch.setattr(os, "fsync", sync)
    patch.setattr(os, "replace", change(replace))
    patch.setattr(os, "unlink", change(unlink))
    patch.setattr(sqlite3, "connect", open_database)


class _Listener(logging.Handler):
    """A service that logs an exception which is no outage has a bug."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(logging.ERROR)
        self._ledger = ledger

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and not isinstance(error, TransportError | StorageFailed | Died):
            self._ledger.blame(f"{record.getMessage()}: {error!r}")
