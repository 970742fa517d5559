"""The services as processes of their own, over a real RabbitMQ."""

import asyncio
import math
import secrets
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from hubbub.errors import RejectReason
from hubbub.ids import PartyId, Role, RunId, SetId
from hubbub.messages.envelope import Envelope, Message
from hubbub.messages.manifest import Manifest
from hubbub.messages.rounds import VoidNotice
from hubbub.messages.shares import SetRefused, ShareChunk, declare
from hubbub.protocol.layout import Vector
from hubbub.run_options import RunOptions
from hubbub.transport.rabbitmq import RabbitMqTransport
from hubbub.transport.topology import route
from hubbub.trust.identity import new_identity
from hubbub_trainer.learning.registry import load_task
from hubbub_trainer.planning import draw_up_manifest
from support.frames import encode, know, sign
from support.one_process import run_in_one_process
from support.processes import ProcessFederation, SharedBroker, topology_of
from support.thorough import part_of

pytestmark = pytest.mark.broker

DEMO_SEED = 7


@pytest.fixture(scope="module")
def eight(amqp_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessFederation]:
    """Eight processes that several tests submit runs to, one after the other."""
    folder = tmp_path_factory.mktemp("eight")
    with ProcessFederation(SharedBroker(amqp_url), folder, trainers=5, demo_seed=DEMO_SEED) as federation:
        yield federation


def manifest_for(
    federation: ProcessFederation,
    folder: Path,
    *,
    task: str,
    local_steps: int,
    rounds: int,
    strategy: str = "no-union",
    chunk_bytes: int = 1 << 20,
) -> Manifest:
    manifest = draw_up_manifest(
        load_task(task, data="digits", cache_folder=folder),
        RunOptions(strategy=strategy, local_steps=local_steps, rounds=rounds, seed=DEMO_SEED),
        roster=federation.roster,
    )
    return Manifest.model_validate(manifest.model_dump() | {"chunk_bytes": chunk_bytes})


@pytest.mark.parametrize(("task", "local_steps", "rounds"), part_of([("lenet", 3, 2), ("synthetic", 5, 3)], 0))
def test_eight_processes_end_with_the_model_of_one_process(
    eight: ProcessFederation, tmp_path: Path, task: str, local_steps: int, rounds: int
) -> None:
    manifest = manifest_for(eight, tmp_path, task=task, local_steps=local_steps, rounds=rounds)

    digests = eight.finish(eight.submit(manifest))

    alone = run_in_one_process(manifest, eight.parties, tmp_path, demo_seed=DEMO_SEED)
    assert set(digests) == set(manifest.clients)
    assert len(set(digests.values())) == 1
    assert digests == alone
    assert manifest.initial_model_sha256 not in digests.values()


def test_payload_is_what_the_formula_predicts_and_a_clean_run_leaves_no_dead_letter(
    eight: ProcessFederation, amqp_url: str, tmp_path: Path
) -> None:
    manifest = manifest_for(eight, tmp_path, task="synthetic", local_steps=1, rounds=2, chunk_bytes=1 << 10)
    run = eight.submit(manifest)
    eight.finish(run)

    cost = eight.read_cost(run)

    n, c, s = manifest.parameters, len(manifest.clients), len(manifest.aggregators)
    # Of every client to one aggregator, of all aggregators but one to that one, and of that one to every client:
    # N signs, sixteen in 56 bits (m = 11), one factor of 32, and two scores; each phase has three tags of 64. To
    # all other aggregators go seeds of 256 bits.
    vectors = 2 * c + s - 1
    assert {name: each.payload_bits for name, each in cost.rounds[1].items()} == {
        "signs": vectors * math.ceil(n / 16) * 56 + (s - 1) * c * 256,
        "factors": vectors * 32,
        "tags": 2 * vectors * 3 * 64,
        "scores": vectors * 2 * 32 + c * (s - 1) * 256,
    }
    for each in (*cost.rounds[1].values(), *cost.rounds[2].values(), *cost.total.values()):
        assert each.payload_bits == each.predicted_bits
        assert each.wire_bytes * 8 >= each.payload_bits
    put_aside = asyncio.run(SharedBroker(amqp_url).dead_letters(eight.roster))
    ours = [letter for letters in put_aside.values() for letter in letters if run.encode() in letter.body]
    assert ours == []


def test_poison_messages_are_put_aside_with_their_reason_and_the_run_completes(
    eight: ProcessFederation, amqp_url: str, tmp_path: Path
) -> None:
    manifest = manifest_for(eight, tmp_path, task="synthetic", local_steps=5, rounds=4)
    poison = {name: poison_for(name, eight, manifest) for name in eight.roles}
    run = eight.submit(manifest)
    eight.wait_for(run, lambda view: view.rounds_released >= 1)

    asyncio.run(publish_straight(amqp_url, eight, poison))
    still_running = eight.read_run(run).state == "running"
    digests = eight.finish(run)

    assert still_running
    assert digests == run_in_one_process(manifest, eight.parties, tmp_path, demo_seed=DEMO_SEED)
    for name, letters in asyncio.run(SharedBroker(amqp_url).dead_letters(eight.roster)).items():
        reasons = {letter.body: letter.reason for letter in letters}
        assert {reason: reasons.get(body) for reason, body in poison[name].items()} == {
            reason: reason for reason in poison[name]
        }


def poison_for(name: PartyId, federation: ProcessFederation, manifest: Manifest) -> dict[str, bytes]:
    """By the reason to refuse it: noise, and frames that would be good but for one thing."""
    know(manifest)
    sender, body = believable(federation.roles[name], manifest)
    identity = federation.parties.identities[sender]
    frame = Envelope(
        run=manifest.run_id,
        round=1,
        phase="signs",
        sender=sender,
        recipient=name,
        body=body,
        payload=b"1234",
    )
    impostor = replace(identity, key=new_identity(sender, identity.role, identity.organisation).key)
    stranger = new_identity("stranger", identity.role, "nowhere")
    return {
        RejectReason.MALFORMED: secrets.token_bytes(300),
        RejectReason.BAD_SIGNATURE: encode(sign(impostor, frame)),
        RejectReason.NOT_IN_ROSTER: encode(sign(stranger, replace(frame, sender=stranger.name))),
        RejectReason.WRONG_RECIPIENT: encode(sign(identity, replace(frame, recipient=PartyId("somebody-else")))),
        RejectReason.UNKNOWN_RUN: encode(sign(identity, replace(frame, run=RunId(secrets.token_hex(32))))),
    }


def believable(role: Role, manifest: Manifest) -> tuple[PartyId, Message]:
    """A message of a kind that this role takes, and who would send it."""
    set_id, vectors = SetId(secrets.token_hex(16)), declare((Vector("signs", 8, 11),))
    client, aggregator = manifest.clients[0], manifest.aggregators[0]
    match role:
        case Role.AGGREGATOR:
            return client, ShareChunk(set_id=set_id, vectors=vectors, transcript="0" * 64, index=0)
        case Role.CLIENT:
            return aggregator, VoidNotice()
        case Role.COORDINATOR:
            return aggregator, SetRefused(client=client, set_id=set_id, reason=RejectReason.MALFORMED)


async def publish_straight(
    url: str, federation: ProcessFederation, poison: dict[PartyId, dict[str, bytes]]
) -> None:
    senders = {Role.AGGREGATOR: Role.CLIENT, Role.CLIENT: Role.AGGREGATOR, Role.COORDINATOR: Role.AGGREGATOR}
    async with RabbitMqTransport(url, topology_of(federation.roster)) as transport:
        for name, role in federation.roles.items():
            for body in poison[name].values():
                await transport.publish(route(senders[role], role, name), body)


def test_run_that_the_data_owners_have_not_allowed_fails_and_says_why(
    eight: ProcessFederation, tmp_path: Path
) -> None:
    manifest = manifest_for(eight, tmp_path, task="synthetic", local_steps=1, rounds=1, strategy="fedavg")
    run = eight.submit(manifest)

    view = eight.wait_for(run, lambda view: view.state == "failed")

    assert "refused the run (policy-strategy): its policy does not allow the strategy." in view.reason
    sentence = eight.services[manifest.clients[0]].wait_for_message("refused: the manifest's strategy is 'fedavg'")
    assert "edit strategies in the policy file to allow it by name" in sentence
    assert view.round == 0


def test_request_without_a_token_is_refused_and_logged_under_the_address_that_it_came_from(
    eight: ProcessFederation,
) -> None:
    forged = {"X-Forwarded-For": "203.0.113.7"}

    answer = httpx.get(f"{eight.url}/api/v1/runs", headers=forged, trust_env=False)

    coordinator = eight.services[eight.coordinator_name]
    assert answer.status_code == httpx.codes.UNAUTHORIZED
    assert "no token was sent" in coordinator.wait_for_message("refused a GET from 127.0.0.1")
    assert not [line for line in coordinator.lines() if "203.0.113.7" in line]


@pytest.mark.parametrize("role", list(Role))
def test_sigterm_ends_a_service_with_code_0_in_the_middle_of_a_run(
    amqp_url: str, tmp_path: Path, role: Role
) -> None:
    with ProcessFederation(SharedBroker(amqp_url), tmp_path, trainers=2, demo_seed=DEMO_SEED) as federation:
        # Many small chunks: the aggregators are busy for the whole of a round.
        manifest = manifest_for(
            federation, tmp_path, task="synthetic:200000", local_steps=5, rounds=50, chunk_bytes=256
        )
        run = federation.submit(manifest)
        make_busy(federation)
        victim = next(name for name, its_role in federation.roles.items() if its_role is role)

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
