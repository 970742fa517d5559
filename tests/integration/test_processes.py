"""The services as processes of their own, over a real RabbitMQ."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from hubbub.ids import PartyId, Role, RunId, SetId
from hubbub.messages.base import Message
from hubbub.messages.codec import encode
from hubbub.messages.envelope import Envelope
from hubbub.messages.manifest import Manifest
from hubbub.messages.shares import Receipt, SetReceived, ShareChunk, declare
from hubbub.messages.sums import SumChunk
from hubbub.protocol.layout import Vector
from hubbub.transport.rabbitmq import RabbitMqTransport
from hubbub.transport.topology import route
from hubbub_coordinator.phases import run as runs
from hubbub_local.federation import start_federation
from hubbub_trainer.learning.registry import load_task
from hubbub_trainer.planning import draw_up_manifest
from support.private_node import PrivateNode
from support.processes import ProcessFederation

pytestmark = pytest.mark.broker

DEMO_SEED = 7


@pytest.fixture(scope="module")
def eight(amqp_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessFederation]:
    """Eight processes that several tests submit runs to, one after the other."""
    folder = tmp_path_factory.mktemp("eight")
    with ProcessFederation(amqp_url, folder, trainers=5, demo_seed=DEMO_SEED) as federation:
        yield federation


def manifest_for(
    federation: ProcessFederation,
    folder: Path,
    *,
    task: str,
    local_steps: int,
    rounds: int,
    chunk_bytes: int = 1 << 20,
) -> Manifest:
    manifest = draw_up_manifest(
        load_task(task, data="digits", cache_folder=folder),
        clients=federation.trainer_names,
        aggregators=federation.aggregator_names,
        coordinator=federation.coordinator_name,
        strategy="no-union",
        rho=0.1,
        local_steps=local_steps,
        rounds=rounds,
        seed=DEMO_SEED,
    )
    return Manifest.model_validate(manifest.model_dump() | {"chunk_bytes": chunk_bytes})


def run_in_one_process(manifest: Manifest, folder: Path) -> dict[PartyId, str]:
    """The digests of an undisturbed run over memory."""
    loader = partial(load_task, data="digits", cache_folder=folder)

    async def run() -> dict[PartyId, str]:
        async with (
            asyncio.timeout(60),
            start_federation(manifest, folder=folder, load_task=loader, demo_seed=DEMO_SEED) as federation,
        ):
            state, data = await federation.run(manifest)
            assert state is runs.State.COMPLETED, data.reason
            return federation.model_digests(manifest)

    return asyncio.run(run())


@pytest.mark.parametrize(("task", "local_steps", "rounds"), [("synthetic", 5, 3), ("lenet", 3, 2)])
def test_eight_processes_end_with_the_model_of_one_process(
    eight: ProcessFederation, tmp_path: Path, task: str, local_steps: int, rounds: int
) -> None:
    manifest = manifest_for(eight, tmp_path, task=task, local_steps=local_steps, rounds=rounds)

    digests = eight.finish(eight.submit(manifest))

    alone = run_in_one_process(manifest, tmp_path)
    assert set(digests) == set(manifest.clients)
    assert len(set(digests.values())) == 1
    assert digests == alone
    assert manifest.initial_model_sha256 not in digests.values()


def test_payload_is_what_the_formula_predicts_and_a_clean_run_leaves_no_dead_letter(
    eight: ProcessFederation, tmp_path: Path
) -> None:
    manifest = manifest_for(eight, tmp_path, task="synthetic", local_steps=1, rounds=2, chunk_bytes=1 << 10)
    run = eight.submit(manifest)
    eight.finish(run)

    cost = eight.read_cost(run)

    n, c, s = manifest.parameters, len(manifest.clients), len(manifest.aggregators)
    # Each way, every client and aggregator exchange N signs of 4 bits (m = 11) and one factor of 32.
    assert {name: each.payload_bits for name, each in cost.rounds[1].items()} == {
        "signs": 2 * c * s * n * 4,
        "factors": 2 * c * s * 32,
    }
    for each in (*cost.rounds[1].values(), *cost.rounds[2].values(), *cost.total.values()):
        assert each.payload_bits == each.predicted_bits
        assert each.wire_bytes * 8 >= each.payload_bits
    put_aside = asyncio.run(eight.dead_letters())
    ours = [letter for letters in put_aside.values() for letter in letters if run.encode() in letter.body]
    assert ours == []


def test_poison_messages_are_put_aside_with_their_reason_and_the_run_completes(
    eight: ProcessFederation, amqp_url: str, tmp_path: Path
) -> None:
    manifest = manifest_for(eight, tmp_path, task="synthetic", local_steps=5, rounds=4)
    poison = {name: poison_for(name, role, manifest) for name, role in eight.parties.items()}
    run = eight.submit(manifest)
    eight.wait_for(run, lambda view: view.rounds_released >= 1)

    asyncio.run(publish_straight(amqp_url, eight, poison))
    still_running = eight.read_run(run).state == "running"
    digests = eight.finish(run)

    assert still_running
    assert digests == run_in_one_process(manifest, tmp_path)
    for name, letters in asyncio.run(eight.dead_letters()).items():
        reasons = {letter.body: letter.reason for letter in letters}
        assert [reasons.get(body) for body in poison[name]] == ["malformed", "wrong-recipient", "unknown-run"]


def poison_for(name: PartyId, role: Role, manifest: Manifest) -> list[bytes]:
    """Noise; a good frame that was meant for another party; a good frame of a run that nobody knows."""
    sender, body = believable(role, manifest)
    frame = Envelope(
        run=manifest.run_id,
        round=1,
        phase="signs",
        sender=sender,
        recipient=name,
        message_id=secrets.token_hex(16),
        body=body,
        payload=b"1234",
    )
    misdirected = replace(frame, recipient=PartyId("somebody-else"))
    stray = replace(frame, run=RunId(secrets.token_hex(32)))
    return [secrets.token_bytes(300), encode(misdirected), encode(stray)]


def believable(role: Role, manifest: Manifest) -> tuple[PartyId, Message]:
    """A message of a kind that this role takes, and who would send it."""
    set_id, vectors = SetId(secrets.token_hex(16)), declare((Vector("signs", 8, 11),))
    client, aggregator = manifest.clients[0], manifest.aggregators[0]
    match role:
        case Role.AGGREGATOR:
            return client, ShareChunk(set_id=set_id, vectors=vectors, index=0)
        case Role.CLIENT:
            return aggregator, SumChunk(members=manifest.clients, vectors=vectors, index=0)
        case Role.COORDINATOR:
            receipt = Receipt(aggregator=aggregator, client=client, set_id=set_id, vectors=vectors)
            return aggregator, SetReceived(receipt=receipt)


async def publish_straight(url: str, federation: ProcessFederation, poison: dict[PartyId, list[bytes]]) -> None:
    senders = {
        Role.AGGREGATOR: Role.CLIENT,
        Role.CLIENT: Role.AGGREGATOR,
        Role.COORDINATOR: Role.AGGREGATOR,
    }
    async with RabbitMqTransport(url, federation.topology) as transport:
        for name, role in federation.parties.items():
            for body in poison[name]:
                await transport.publish(route(senders[role], role, name), body)


@pytest.mark.parametrize("role", list(Role))
def test_sigterm_ends_a_service_with_code_0_in_the_middle_of_a_run(
    amqp_url: str, tmp_path: Path, role: Role
) -> None:
    with ProcessFederation(amqp_url, tmp_path, trainers=2, demo_seed=DEMO_SEED) as federation:
        # Many small chunks: the aggregators are busy for the whole of a round.
        manifest = manifest_for(
            federation, tmp_path, task="synthetic:200000", local_steps=5, rounds=50, chunk_bytes=256
        )
        run = federation.submit(manifest)
        make_busy(federation)
        victim = next(name for name, its_role in federation.parties.items() if its_role is role)

        code = federation.stop(victim)

        assert code == 0
        assert federation.services[victim].messages()[-1] == "stopped"
        assert not any("Traceback" in line for line in federation.services[victim].lines())
        federation.check_alive()
        if role is not Role.COORDINATOR:
            assert federation.read_run(run).state == "running"


def make_busy(federation: ProcessFederation) -> None:
    """Bring a run to where trainers send and the first aggregator works off what has piled up for it."""
    first, second = (federation.services[name] for name in federation.aggregator_names)
    first.wait_for_spool(1)
    with first.paused():
        held = first.spooled()
        second.wait_for_spool(held + 200)
    first.wait_for_spool(held + 1)


def test_run_survives_the_death_and_return_of_the_broker(private_node: PrivateNode, tmp_path: Path) -> None:
    with ProcessFederation(private_node.url, tmp_path, trainers=3, demo_seed=DEMO_SEED) as federation:
        manifest = manifest_for(
            federation, tmp_path, task="synthetic:100000", local_steps=5, rounds=6, chunk_bytes=2048
        )
        run = federation.submit(manifest)
        federation.wait_for(run, lambda view: view.rounds_released >= 2)

        private_node.kill()
        at_death = federation.read_run(run)
        private_node.restart()
        digests = federation.finish(run)

        assert at_death.state == "running"
        assert federation.read_run(run).rounds_void == 0
        assert digests == run_in_one_process(manifest, tmp_path / "alone")
