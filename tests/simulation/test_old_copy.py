"""Real parties in memory, and a trainer's folder in whose place an old copy of it is put."""

import logging
import shutil
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

from hubbub.ids import PartyId, Role
from hubbub.messages.shares import ShareChunk
from hubbub.messages.snapshots import SnapshotRequested
from hubbub.transport.memory import MemoryBroker, MemoryTransport
from hubbub.transport.topology import topology_for
from hubbub_aggregator.policy import AggregatorPolicy
from hubbub_aggregator.service import Aggregator
from hubbub_coordinator.phases.run import State
from hubbub_coordinator.service import Coordinator
from hubbub_trainer.learning.synthetic import SyntheticTask
from hubbub_trainer.ledger import LEDGER_FILE, Ledger
from hubbub_trainer.policy import Policy
from hubbub_trainer.service import Trainer
from hubbub_trainer.workspace import digest
from support.aio import until
from support.builders import make_manifest
from support.frames import decode
from support.parties import parties_of
from support.recorder import Recording, connect_recorded

TASK = SyntheticTask(203)
MANIFEST = make_manifest(
    clients=4,
    servers=2,
    min_clients=3,
    rounds=5,
    parameters=TASK.count_parameters(),
    task=TASK.name,
    initial_model_sha256=digest(TASK.initial_model(0)),
    seed=0,
    chunk_bytes=256,
)
CLIENT = MANIFEST.clients[-1]
ROLES = {
    **dict.fromkeys(MANIFEST.aggregators, Role.AGGREGATOR),
    **dict.fromkeys(MANIFEST.clients, Role.CLIENT),
    MANIFEST.coordinator: Role.COORDINATOR,
}


class Town:
    """Everybody that the manifest names, each in a folder of its own; any of them can be stopped and started."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.recording = Recording()
        self.services: dict[PartyId, Coordinator | Aggregator | Trainer] = {}
        broker = MemoryBroker()
        self._connect = connect_recorded(self.recording, lambda _, topology: MemoryTransport(broker, topology))
        self._stacks: dict[PartyId, AsyncExitStack] = {}

    @property
    def coordinator(self) -> Coordinator:
        service = self.services[MANIFEST.coordinator]
        assert isinstance(service, Coordinator)
        return service

    async def start(self, name: PartyId) -> None:
        stack, parties = AsyncExitStack(), parties_of(MANIFEST)
        transport = await stack.enter_async_context(self._connect(name, topology_for(name, ROLES[name])))
        identity, roster, folder = parties.identities[name], parties.roster, self.folder / name
        service: Coordinator | Aggregator | Trainer
        match ROLES[name]:
            case Role.COORDINATOR:
                service = Coordinator(identity=identity, roster=roster, transport=transport, folder=folder)
            case Role.AGGREGATOR:
                service = Aggregator(
                    identity=identity,
                    roster=roster,
                    read_policy=partial(AggregatorPolicy.for_demo, roster.digest),
                    transport=transport,
                    folder=folder,
                )
            case Role.CLIENT:
                service = Trainer(
                    identity=identity,
                    roster=roster,
                    read_policy=partial(Policy.for_demo, roster.digest),
                    transport=transport,
                    folder=folder,
                    load_task=lambda _: TASK,
                    demo_seed=11,
                )
        stack.callback(service.close)
        stack.push_async_callback(service.runner.stop)
        self.services[name], self._stacks[name] = service, stack
        await (service.start() if isinstance(service, Coordinator) else service.runner.start())

    async def stop(self, name: PartyId) -> None:
        await self._stacks.pop(name).aclose()

    async def close(self) -> None:
        for name in [*self._stacks]:
            await self.stop(name)

    async def play_up_to(self, number: int) -> None:
        """Open rounds up to this one, and no other."""
        run = MANIFEST.run_id
        while self.coordinator.find_run(run)[1].round < number:
            await self.coordinator.resume(run)
            await self.coordinator.pause(run)
            await until(lambda: self.coordinator.find_run(run)[0] is State.PAUSED)

    def sent(self, kind: type) -> list[tuple[PartyId, int]]:
        """Who has sent messages of a kind, and of which round."""
        frames = [decode(each.frame) for each in self.recording]
        return [(each.sender, each.round) for each in frames if isinstance(each.body, kind)]

    def keep_copy(self, place: Path) -> None:
        shutil.copytree(self.folder / CLIENT, place)

    def put_back(self, place: Path) -> None:
        shutil.rmtree(self.folder / CLIENT)
        shutil.copytree(place, self.folder / CLIENT)


@asynccontextmanager
async def town(folder: Path) -> AsyncIterator[Town]:
    """A run that waits before its first round."""
    there = Town(folder)
    try:
        for name in ROLES:
            await there.start(name)
        run = await there.coordinator.submit(MANIFEST)
        await there.coordinator.pause(run)
        await until(lambda: there.coordinator.find_run(run)[0] is State.PAUSED)
        yield there
    finally:
        await there.close()


@pytest.mark.parametrize("copied_after", [0, 1])
async def test_an_old_copy_of_a_trainers_folder_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, copied_after: int
) -> None:
    async with town(tmp_path / "disks") as here:
        await here.play_up_to(copied_after)
        await here.stop(CLIENT)
        here.keep_copy(tmp_path / "copy")
        await here.start(CLIENT)
        await here.play_up_to(3)
        await here.stop(CLIENT)
        here.put_back(tmp_path / "copy")
        await here.stop(MANIFEST.coordinator)
        await here.start(MANIFEST.coordinator)  # It knows from its events how far everybody has come.
        with caplog.at_level(logging.ERROR):
            await here.start(CLIENT)
            await here.coordinator.resume(MANIFEST.run_id)
            await until(lambda: here.coordinator.find_run(MANIFEST.run_id)[0] is State.FAILED)
        trainer = here.services[CLIENT]
        await until(lambda: not trainer.runner.machines)
        reason = here.coordinator.find_run(MANIFEST.run_id)[1].reason
        assert f"{CLIENT} left the run (disk-old): its folder is an old copy" in reason
        assert f"the folder of {CLIENT} is an old copy" in caplog.text
        assert (CLIENT, 4) not in here.sent(ShareChunk)
        assert not here.sent(SnapshotRequested), "it takes nobody's model"
        assert trainer.counters.registry.get_sample_value("hubbub_runs_lost_total") == 1
        assert not (tmp_path / "disks" / CLIENT / "runs" / MANIFEST.run_id / "model.sha256").exists()
    assert _counts(tmp_path / "disks" / CLIENT), "whatever the copy says, shares of this run have left"


def _counts(folder: Path) -> bool:
    ledger = Ledger(folder / LEDGER_FILE)
    try:
        ((begun,),) = [entry.runs for entry in ledger.list_entries()]
        return begun.counted
    finally:
        ledger.close()
