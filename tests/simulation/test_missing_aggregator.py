"""Threshold sharing does without one of three aggregators, which additive sharing cannot."""

import asyncio
import json
from pathlib import Path

import pytest

from hubbub.ids import PartyId
from hubbub.machine.effects import Key
from hubbub.messages.rounds import SumChunk
from hubbub.messages.shares import SetReceived
from hubbub.runtime.event_log import Transition
from hubbub.transport.base import Address, Transport
from hubbub.transport.memory import MemoryBroker, MemoryTransport
from hubbub.transport.topology import Topology
from hubbub_aggregator.journal import PhaseOutcome
from hubbub_coordinator.events import DeadlinePassed
from hubbub_coordinator.phases import round as rounds
from hubbub_coordinator.phases import run as runs
from hubbub_local.federation import start_federation
from hubbub_trainer.events import RestOverdue
from hubbub_trainer.learning.synthetic import SyntheticTask
from hubbub_trainer.phases.round import ClientRound
from hubbub_trainer.service import Trainer
from hubbub_trainer.workspace import digest
from support.aio import until
from support.builders import make_manifest
from support.frames import decode
from support.parties import parties_of
from support.plain_run import run_plainly
from support.wrapping import WrappedTransport

TASK, SEED, DEMO_SEED = SyntheticTask(203), 7, 11
AWAY = PartyId("aggregator-3")


class AwayTransport(WrappedTransport):
    """From a kind of message of round 2 on nothing leaves, until the party is back."""

    def __init__(self, inner: Transport, last_words: type, back: asyncio.Event) -> None:
        super().__init__(inner)
        self._last_words, self._back = last_words, back
        self._is_away = False

    async def publish(self, address: Address, body: bytes) -> None:
        envelope = decode(body)
        self._is_away |= envelope.round == 2 and isinstance(envelope.body, self._last_words)
        if self._is_away:
            await self._back.wait()
        await super().publish(address, body)


async def stop_waiting(trainer: Trainer) -> None:
    """Let the time for sums that are not needed pass as soon as enough are here."""
    hurried = set[Key]()

    def find_waiting() -> dict[Key, float]:
        live = {key: each.data for key, each in trainer.runner.machines.items() if key not in hurried}
        waiting = {key: data for key, data in live.items() if isinstance(data, ClientRound) and data.settle_at_s}
        return {key: max(data.settle_at_s.values()) for key, data in waiting.items()}

    while True:
        await until(find_waiting)
        for key, at_s in find_waiting().items():
            hurried.add(key)
            trainer.runner.feed_soon(key, RestOverdue(at_s=at_s))


@pytest.mark.parametrize("last_words", [SumChunk, SetReceived], ids=["at-release", "before-its-receipts"])
async def test_rounds_go_on_without_one_aggregator_which_catches_up_when_it_is_back(
    tmp_path: Path, last_words: type
) -> None:
    manifest = make_manifest(
        clients=3,
        servers=3,
        rounds=4,
        strategy="eastly-tss",
        parameters=TASK.count_parameters(),
        task=TASK.name,
        local_steps=1,
        seed=SEED,
        initial_model_sha256=digest(TASK.initial_model(SEED)),
        chunk_bytes=256,
    )
    broker, back = MemoryBroker(), asyncio.Event()

    def connect(name: PartyId, topology: Topology) -> Transport:
        own = MemoryTransport(broker, topology)
        return AwayTransport(own, last_words, back) if name == AWAY else own

    def let_time_pass(moment: Transition) -> None:
        """Every deadline passes as soon as nobody but the one that is away is waited for."""
        data, others = moment.data, len(manifest.aggregators) - 1
        if isinstance(data, rounds.CoordinatorRound) and data.number > 1:
            held = [len(servers) for servers in data.record.held.values()]
            collected = moment.after is rounds.State.COLLECTING and held == [others] * len(manifest.clients)
            released = moment.after is rounds.State.RELEASING and len(data.record.ended) == others
            if (collected or released) and not isinstance(moment.event, DeadlinePassed):
                federation.coordinator.runner.feed_soon(moment.key, DeadlinePassed(at_s=moment.at_s))
        if isinstance(data, runs.CoordinatorRun) and moment.after in runs.OUTCOMES:
            back.set()

    async with start_federation(
        manifest,
        parties=parties_of(manifest),
        folder=tmp_path,
        load_task=lambda _: TASK,
        demo_seed=DEMO_SEED,
        connect=connect,
        observer=let_time_pass,
    ) as federation:
        hurrying = [asyncio.create_task(stop_waiting(trainer)) for trainer in federation.trainers]
        state, run = await federation.run(manifest)
        for task in hurrying:
            task.cancel()

        assert (state, run.released, run.void) == (runs.State.COMPLETED, 4, 0), run.reason
        keys = [Key("phase", manifest.run_id, number, "update") for number in range(1, 5)]
        found = [{aggregator.journal.find(key) for key in keys} for aggregator in federation.aggregators]
        everybody = {PhaseOutcome(manifest.clients)}
        assert found[:2] == [everybody] * 2
        # What it releases late is over the same members. An order may come before it has checked all shares.
        assert found[2] - {None} == everybody
    reference = run_plainly(manifest, TASK, demo_seed=DEMO_SEED)
    for number in range(1, 5):
        reference.play_round(number)
        for client, expected in zip(manifest.clients, reference.digests(), strict=True):
            lines = (tmp_path / client / "runs" / manifest.run_id / "rounds.jsonl").read_text("utf-8").splitlines()
            assert json.loads(lines[number - 1])["model_sha256"] == expected
