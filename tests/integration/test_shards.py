"""Aggregators whose chunks are divided among worker processes, over a real RabbitMQ."""

from __future__ import annotations

import asyncio
import os
import signal
import uuid
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path

import pytest

from hubbub.ids import PartyId, Role
from hubbub.messages.manifest import Manifest
from hubbub.runtime.process import EXIT_FAILED
from hubbub_trainer.learning.synthetic import SyntheticTask
from hubbub_trainer.planning import draw_up_manifest
from support.one_process import run_in_one_process
from support.party_files import write_party_files
from support.processes import ProcessFederation, ServiceProcess, SharedBroker, wait_until
from support.thorough import only_thorough, part_of

pytestmark = pytest.mark.broker

DEMO_SEED = 7
WORKERS = 2
PARAMETERS = 20_000
RUN_S = 150.0
START_S = 60.0


@pytest.fixture
def federation(amqp_url: str, tmp_path: Path) -> Iterator[ProcessFederation]:
    broker = SharedBroker(amqp_url, workers=WORKERS)
    with ProcessFederation(broker, tmp_path, trainers=3, demo_seed=DEMO_SEED) as federation:
        for name in federation.aggregator_names:
            wait_for_workers(federation, name)
        yield federation


def wait_for_workers(federation: ProcessFederation, name: PartyId) -> dict[int, int]:
    service = federation.services[name]
    wait_until(lambda: len(service.workers()) == WORKERS, f"{name} has its workers", START_S)
    return service.workers()


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def wait_until_gone(pids: dict[int, int]) -> None:
    wait_until(lambda: not any(map(is_alive, pids.values())), f"the workers {pids} are gone", START_S)


def chunked(federation: ProcessFederation, rounds: int, **changes: object) -> Manifest:
    """A run of two phases a round, of which every vector of signs or indices has many chunks."""
    manifest = draw_up_manifest(
        SyntheticTask(PARAMETERS),
        roster=federation.roster,
        strategy="sec-union",
        rho=0.1,
        local_steps=5,
        rounds=rounds,
        seed=DEMO_SEED,
    )
    return Manifest.model_validate(manifest.model_dump() | {"chunk_bytes": 256, **changes})


def check_digests(
    federation: ProcessFederation, manifest: Manifest, digests: dict[PartyId, str], folder: Path
) -> None:
    """They are those of a run in which every aggregator is alone."""
    alone = run_in_one_process(manifest, federation.parties, folder / "alone", demo_seed=DEMO_SEED)
    assert digests == alone
    assert len(set(digests.values())) == 1


@pytest.mark.parametrize("wire", part_of(["compact", "paper"], 0))
def test_run_with_workers_ends_with_the_model_of_one_process_and_costs_the_same(
    federation: ProcessFederation, amqp_url: str, tmp_path: Path, wire: str
) -> None:
    manifest = chunked(federation, 2, wire=wire)
    run = federation.submit(manifest)

    digests = federation.finish(run, RUN_S)

    check_digests(federation, manifest, digests, tmp_path)
    cost = federation.read_cost(run)
    for each in (*cost.rounds[1].values(), *cost.rounds[2].values(), *cost.total.values()):
        assert each.payload_bits == each.predicted_bits
    put_aside = asyncio.run(SharedBroker(amqp_url).dead_letters(federation.roster))
    assert not any(put_aside.values())
    for name in federation.aggregator_names:
        assert not list((tmp_path / name / "staged").rglob("*.*")), "what is not wanted does not stay"


def test_run_whose_workers_are_killed_again_and_again_ends_with_the_model_of_one_process(
    federation: ProcessFederation, amqp_url: str, tmp_path: Path
) -> None:
    manifest = chunked(federation, 6)
    victims = cycle([(name, number) for number in range(WORKERS) for name in federation.aggregator_names])
    run = federation.submit(manifest)
    killed = 0

    while federation.read_run(run).state != "completed" and killed < 12:
        name, number = next(victims)
        os.kill(wait_for_workers(federation, name)[number], signal.SIGKILL)
        killed += 1
        wait_for_workers(federation, name)

    digests = federation.finish(run, RUN_S)
    check_digests(federation, manifest, digests, tmp_path)
    assert killed > len(federation.aggregator_names) * WORKERS
    assert federation.read_run(run).rounds_void == 0
    put_aside = asyncio.run(SharedBroker(amqp_url).dead_letters(federation.roster))
    assert not any(put_aside.values()), "what comes twice is not refused"


@only_thorough
def test_head_that_is_killed_takes_its_workers_along_and_goes_on_with_others(
    federation: ProcessFederation, tmp_path: Path
) -> None:
    manifest = chunked(federation, 4)
    victim = federation.aggregator_names[0]
    run = federation.submit(manifest)
    federation.wait_for_round(run, 1)
    orphans = federation.services[victim].workers()

    federation.kill(victim)
    wait_until_gone(orphans)
    federation.restart(victim)

    check_digests(federation, manifest, federation.finish(run, RUN_S), tmp_path)


def test_sigterm_ends_a_head_and_its_workers_well_in_the_middle_of_a_run(federation: ProcessFederation) -> None:
    federation.submit(chunked(federation, 50))
    victim = federation.services[federation.aggregator_names[0]]
    victim.wait_for_spool(1)
    workers = victim.workers()

    code = federation.stop(victim.name)

    assert code == 0
    assert len(workers) == WORKERS
    assert not any(map(is_alive, workers.values()))
    assert {f"worker {number} stopped" for number in workers} <= set(victim.messages())
    assert victim.messages()[-1] == "stopped"
    assert not any("Traceback" in line for line in victim.lines())


@pytest.mark.parametrize(
    ("told", "has", "said"),
    [
        (0, 2, "has no queue 'hubbub.work.NAME.0'"),
        (1, 2, "has no queue 'hubbub.work.NAME.1'"),
        (2, 0, "has a queue 'hubbub.work.NAME.0', so it was set up for more workers"),
        (2, 1, "has a queue 'hubbub.work.NAME.1', so it was set up for more workers"),
    ],
)
def test_aggregator_with_other_workers_than_the_broker_was_told_of_does_not_start_and_says_why(
    amqp_url: str, tmp_path: Path, told: int, has: int, said: str
) -> None:
    name = PartyId(f"lone-{uuid.uuid4().hex[:8]}")
    files = write_party_files(tmp_path / "files", {name: Role.AGGREGATOR})
    broker = SharedBroker(amqp_url, workers=told)
    broker.prepare(files.parties.roster)
    try:
        settings = {**files.settings_for(name), **broker.settings_for(name), "workers": str(has)}
        service = ServiceProcess(Role.AGGREGATOR, name, tmp_path, settings)

        code = service.wait(START_S)
    finally:
        broker.clear(files.parties.roster)

    assert code == EXIT_FAILED
    assert said.replace("NAME", name) in service.messages()[-1]
    assert "hubbub roster broker-config" in service.messages()[-1]
