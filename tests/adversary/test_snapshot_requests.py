"""A corrupt client asks a peer for its model again and again: it gets as many as the owner's policy allows."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from hubbub.errors import RejectReason
from hubbub.ids import PartyId, Role
from hubbub.machine.effects import Key
from hubbub.machine.table import Step, stay
from hubbub.messages.envelope import Envelope
from hubbub.messages.runs import PartyFailed
from hubbub.messages.snapshots import SnapshotChunk, SnapshotRequested, count_chunks
from hubbub.messages.wire_form import Directory
from hubbub.runtime import message_checks, runner
from hubbub.runtime.message_checks import Refusal
from hubbub.transport.topology import peers_queue
from hubbub.trust.identity import Identity
from hubbub.trust.roster import Roster
from hubbub_trainer.learning.synthetic import SyntheticTask
from hubbub_trainer.phases import catchup, participation
from hubbub_trainer.phases.participation import Participation, SendSnapshot, SentSnapshots, State
from hubbub_trainer.policy import Policy
from hubbub_trainer.workspace import digest
from support.aio import until
from support.builders import make_manifest
from support.corrupt_coordinator import Scene, scene_of
from support.overflow import lose
from support.parties import parties_of

TASK = SyntheticTask(103)
SEED = 7
MANIFEST = make_manifest(
    clients=4,
    servers=2,
    min_clients=3,
    rounds=9,
    parameters=TASK.count_parameters(),
    task=TASK.name,
    seed=SEED,
    initial_model_sha256=digest(TASK.initial_model(SEED)),
)
CLIENTS = MANIFEST.clients
# The late client asks the giver first: it is the next one in the manifest, after the last comes the first.
GIVER, CORRUPT, _, LATE = CLIENTS
POLICY = Policy.for_demo(parties_of(MANIFEST).roster.digest)
LIMIT = Policy(roster_sha256=POLICY.roster_sha256).max_snapshots_per_peer
ROUNDS = 5
REQUESTS = 1_000


@asynccontextmanager
async def cohort(folder: Path, policy: Policy = POLICY) -> AsyncIterator[Scene]:
    """Real clients and aggregators, before the first round."""
    async with scene_of(MANIFEST, folder, task=TASK, policy=policy, demo_seed=1) as scene:
        await scene.coordinator.enrol()
        yield scene


def participation_of(scene: Scene, client: PartyId = GIVER) -> Participation:
    data = scene.services[client].runner.machines[Key("run", MANIFEST.run_id)].data
    assert isinstance(data, Participation)
    return data


async def play_round(scene: Scene, number: int) -> None:
    await scene.coordinator.play_round(number)
    await until(lambda: participation_of(scene).over == number)


async def ask(scene: Scene, count: int, asker: PartyId = CORRUPT) -> None:
    """Have a client ask, and wait until the giver has taken every request and sent what it sends."""
    post = scene.services[asker].runner.post
    body = SnapshotRequested(after=0, giver=GIVER)
    for _ in range(count):
        await post.send(Key("run", MANIFEST.run_id), to=GIVER, role=Role.CLIENT, body=body)
    broker, queue = scene.surroundings.broker, peers_queue(GIVER)
    assert broker is not None
    await until(lambda: not broker.waiting_in(queue) and not broker.held_from(queue))
    await until(lambda: not scene.services[GIVER].runner.effects.jobs)


async def ask_in_every_round(scene: Scene) -> None:
    """A thousand requests over five rounds; the giver is started again once the limit is reached."""
    for number in range(1, ROUNDS + 1):
        await play_round(scene, number)
        await ask(scene, REQUESTS // ROUNDS)
        if number == LIMIT:
            await scene.restart(GIVER)


def count_models(scene: Scene, to: PartyId = CORRUPT) -> int:
    chunks = [each for each in scene.sent(SnapshotChunk, sender=GIVER) if each.recipient == to]
    sizes = {count_chunks(MANIFEST, each.round) for each in chunks}
    assert len(sizes) <= 1
    models, rest = divmod(len(chunks), max(sizes, default=1))
    assert rest == 0
    return models


# The attack ---------------------------------------------------------------------------------------------


async def test_a_thousand_requests_get_no_more_models_than_the_policy_allows(tmp_path: Path) -> None:
    async with cohort(tmp_path) as scene:
        await ask_in_every_round(scene)

        assert count_models(scene) == LIMIT
        sent = {each.round for each in scene.sent(SnapshotChunk, sender=GIVER)}
        assert sent == set(range(1, LIMIT + 1)), "one after each round"
        beyond = (ROUNDS - LIMIT) * REQUESTS // ROUNDS
        assert scene.refusals(GIVER) == {RejectReason.OVER_LIMIT: beyond}, "a restart does not begin anew"
        assert scene.coordinator.said(PartyFailed) == 0


async def test_without_the_rule_every_request_gets_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def give_always(data: Participation, client: PartyId, number: int) -> Step[State, Participation]:
        return stay(replace(data, sent={client: SentSnapshots()}), SendSnapshot(client, number))

    monkeypatch.setattr(participation, "_send_model", give_always)
    async with cohort(tmp_path) as scene:
        await ask_in_every_round(scene)

        assert count_models(scene) == REQUESTS


async def test_an_owner_may_give_no_snapshots_at_all(tmp_path: Path) -> None:
    async with cohort(tmp_path, POLICY.model_copy(update={"max_snapshots_per_peer": 0})) as scene:
        await play_round(scene, 1)
        await ask(scene, 2)

        assert count_models(scene) == 0
        assert scene.refusals(GIVER) == {RejectReason.OVER_LIMIT: 2}


# A flood ------------------------------------------------------------------------------------------------


async def test_of_a_flood_the_most_is_dropped_unread_and_other_clients_are_still_heard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = Counter[str]()

    def admit_and_count(
        identity: Identity, roster: Roster, directory: Directory, frame: bytes
    ) -> Envelope | Refusal:
        admitted = message_checks.admit(identity, roster, directory, frame)
        read[admitted.sender] += isinstance(admitted, Envelope) and admitted.kind == SnapshotRequested.kind
        return admitted

    monkeypatch.setattr(message_checks, "PEERS_MAX_LENGTH", 50)
    monkeypatch.setattr(message_checks, "PEER_PER_S", 0)
    monkeypatch.setattr(runner, "admit", admit_and_count)
    async with cohort(tmp_path) as scene:
        await play_round(scene, 1)
        await ask(scene, REQUESTS)
        await ask(scene, 1, asker=LATE)

        dropped = REQUESTS - read[CORRUPT]
        assert 0 < read[CORRUPT] <= 50
        assert scene.refusals(GIVER) == {RejectReason.FLOOD: dropped}
        assert scene.dead(GIVER) == []
        recorded = [fields["count"] for fields in scene.recorded(GIVER, "refused")]
        assert recorded == [2**power for power in range(dropped.bit_length())]
        assert {fields["sender"] for fields in scene.recorded(GIVER, "refused")} == {CORRUPT}
        assert (read[LATE], count_models(scene, LATE)) == (1, 1)


# Honest clients -----------------------------------------------------------------------------------------


async def miss_a_round(scene: Scene, number: int) -> None:
    """Have the late client crash and lose a round, and crash again while it asks for a model."""
    broker = scene.surroundings.broker
    assert broker is not None
    coordinator, present = scene.coordinator, CLIENTS[:-1]
    await scene.stop(LATE)
    await coordinator.open_round(number)
    await coordinator.finish_round(number, present)
    assert lose(broker, LATE) > 0
    asked = len(scene.sent(SnapshotRequested, sender=LATE))
    await coordinator.open_round(number + 1)
    await scene.start(LATE, Role.CLIENT)
    await until(lambda: len(scene.sent(SnapshotRequested, sender=LATE)) > asked)
    await scene.restart(LATE)
    await coordinator.finish_round(number + 1)


async def test_an_honest_client_that_crashes_still_catches_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What others were given does not count against it. Where its own limit is reached, it asks another peer."""
    # Longer than a model takes on a busy machine: asking the next peer too early uses up its limit too.
    monkeypatch.setattr(catchup, "ASK_AGAIN_S", 3.0)
    async with cohort(tmp_path, POLICY.model_copy(update={"max_snapshots_per_peer": 1})) as scene:
        await play_round(scene, 1)
        await ask(scene, 10)
        for number in (2, 4):
            await miss_a_round(scene, number)
        await scene.coordinator.sync(CLIENTS)

        assert [fields["up_to"] for fields in scene.recorded(LATE, "caught-up")] == [2, 4]
        assert (count_models(scene), count_models(scene, LATE)) == (1, 1)
        assert scene.refusals(GIVER)[RejectReason.OVER_LIMIT] >= 1
        assert {participation_of(scene, client).vouchers[-1] for client in CLIENTS} == {
            participation_of(scene).vouchers[-1]
        }
