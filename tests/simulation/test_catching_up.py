"""Five real clients, one of them away until its inbox has lost something: it comes back to everybody's model."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from hubbub.crypto.key_derivation import GroupSecret
from hubbub.errors import RejectReason
from hubbub.ids import PartyId, Role
from hubbub.machine.effects import Key
from hubbub.messages.envelope import Envelope
from hubbub.messages.manifest import Manifest
from hubbub.messages.rounds import PhaseVoided, RoundDropped, SumChunk
from hubbub.messages.runs import PartyFailed, RunEnded
from hubbub.messages.shares import ShareChunk
from hubbub.messages.snapshots import SnapshotChunk, SnapshotRequested, count_chunks
from hubbub.trust.seals import RunSeals
from hubbub_trainer import snapshots
from hubbub_trainer.learning.synthetic import SyntheticTask
from hubbub_trainer.phases import catchup
from hubbub_trainer.phases.participation import Participation
from hubbub_trainer.policy import Policy
from hubbub_trainer.service import Trainer
from hubbub_trainer.workspace import digest
from support.aio import until
from support.builders import make_manifest
from support.corrupt_coordinator import Scene, scene_of
from support.overflow import list_waiting, lose, overflow
from support.parties import parties_of
from support.plain_federation import PlainFederation
from support.plain_run import run_plainly

TASK = SyntheticTask(603)
SEED, DEMO_SEED = 7, 11


def draw_up(**changes: object) -> Manifest:
    fields: dict[str, object] = {
        "parameters": TASK.count_parameters(),
        "task": TASK.name,
        "seed": SEED,
        "initial_model_sha256": digest(TASK.initial_model(SEED)),
        "chunk_bytes": 256,
        "rounds": 9,
        "min_clients": 3,
    }
    return make_manifest(clients=5, servers=2, **{**fields, **changes})


MANIFEST = draw_up()
UNION = draw_up(strategy="sec-union", q=3)
MOVING = draw_up(server_momentum=0.5)
CLIENTS = MANIFEST.clients
GIVER, *OTHERS, LATE = CLIENTS
"""The late one asks the first one first."""
PRESENT = CLIENTS[:-1]
CHUNKS = count_chunks(MANIFEST, 2)


@pytest.fixture(autouse=True)
def _impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catchup, "ASK_AGAIN_S", 0.2)


@asynccontextmanager
async def cohort(folder: Path, manifest: Manifest = MANIFEST) -> AsyncIterator[Scene]:
    """Everybody real but the coordinator, who plays what history a test wants; before the first round."""
    policy = Policy.for_demo(parties_of(manifest).roster.digest)
    async with scene_of(manifest, folder, task=TASK, policy=policy, demo_seed=DEMO_SEED) as scene:
        await scene.coordinator.enrol()
        yield scene


async def play(scene: Scene, *numbers: int, members: Sequence[PartyId] = CLIENTS) -> None:
    """Rounds over these members; everybody is told of them, also who is away."""
    for number in numbers:
        await scene.coordinator.open_round(number)
        await scene.coordinator.finish_round(number, members)


async def play_void(scene: Scene, number: int, members: Sequence[PartyId]) -> None:
    coordinator, phase = scene.coordinator, scene.coordinator.phases[0]
    await coordinator.open_round(number)
    await coordinator.gather_receipts(number, phase, members)
    await coordinator.void(number, phase)
    await coordinator.hear(PhaseVoided, len(scene.manifest.aggregators), number=number)
    await coordinator.hear(RoundDropped, len(members), number=number)


async def come_back(scene: Scene, client: PartyId = LATE) -> None:
    await scene.start(client, Role.CLIENT)


def lose_all(scene: Scene, client: PartyId = LATE) -> None:
    broker = scene.surroundings.broker
    assert broker is not None
    assert lose(broker, client) > 0


async def complete(scene: Scene) -> dict[PartyId, str]:
    """End the run, and give everybody's model."""
    coordinator = scene.coordinator
    await coordinator.tell(RunEnded(outcome="completed", reason="done"), coordinator.everybody)
    await coordinator.sync(CLIENTS)
    assert coordinator.said(PartyFailed) == 0
    return {client: (run_folder(scene, client) / "model.sha256").read_text("ascii").strip() for client in CLIENTS}


def run_folder(scene: Scene, client: PartyId) -> Path:
    return scene.surroundings.folder / client / "runs" / scene.manifest.run_id


def rounds_of(scene: Scene, client: PartyId = LATE) -> list[int]:
    """The rounds that a client has taken in by itself."""
    path = run_folder(scene, client) / "rounds.jsonl"
    return [json.loads(line)["round"] for line in path.read_text("utf-8").splitlines()] if path.exists() else []


async def caught_up_to(scene: Scene, client: PartyId = LATE) -> list[object]:
    """The rounds whose models a client took from a peer."""
    await scene.coordinator.sync([client])
    return [fields["up_to"] for fields in scene.recorded(client, "caught-up")]


def trainer(scene: Scene, client: PartyId = LATE) -> Trainer:
    service = scene.services[client]
    assert isinstance(service, Trainer)
    return service


def participation_of(scene: Scene, client: PartyId = LATE) -> Participation:
    data = trainer(scene, client).runner.machines[Key("run", scene.manifest.run_id)].data
    assert isinstance(data, Participation)
    return data


def group_of(scene: Scene, client: PartyId) -> GroupSecret:
    """The group secret as a client keeps it on its disk."""
    kept = trainer(scene, client)._vault.get(scene.manifest.run_id, "group")
    assert kept is not None
    return GroupSecret.from_bytes(kept)


def asks(scene: Scene, client: PartyId = LATE) -> list[str]:
    """Where the client's machines that ask peers are."""
    return [
        live.state.value for key, live in trainer(scene, client).runner.machines.items() if key.kind == "catchup"
    ]


# A plaintext simulation of that very history ------------------------------------------------------------


def reference_of(manifest: Manifest) -> PlainFederation:
    return run_plainly(manifest, TASK, demo_seed=DEMO_SEED)


def play_plainly(reference: PlainFederation, *numbers: int, away: Collection[PartyId] = ()) -> None:
    """Rounds without these clients, who do not even train."""
    absent = [CLIENTS.index(client) for client in away]
    members = [index for index in range(len(CLIENTS)) if index not in absent]
    for number in numbers:
        reference.play_round(number, members, idle=absent)


def forget(reference: PlainFederation, *clients: PartyId) -> None:
    """Who takes a peer's model begins with an accumulator of zero."""
    for client in clients or (LATE,):
        reference.clients[CLIENTS.index(client)].delta[:] = 0
        reference.clients[CLIENTS.index(client)].memory = None


# Histories ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("manifest", [MANIFEST, UNION, MOVING], ids=["no-union", "sec-union", "momentum"])
async def test_who_has_lost_everything_goes_on_from_a_peers_model(tmp_path: Path, manifest: Manifest) -> None:
    async with cohort(tmp_path, manifest) as scene:
        await play(scene, 1)
        await scene.stop(LATE)
        await play(scene, 2, 3, 4, members=PRESENT)
        lose_all(scene)
        await come_back(scene)
        await play(scene, 5, 6)
        assert (await caught_up_to(scene), rounds_of(scene)) == ([4], [1, 5, 6])
        sent = {each.round for each in scene.sent(ShareChunk, sender=LATE)}
        assert sent == {1, 5, 6}, "nothing of a round that it was not there for"
        await scene.coordinator.sync(CLIENTS)
        secrets = [group_of(scene, client) for client in (GIVER, LATE)]
        assert {group.round for group in secrets} == {7}, "the keys of the rounds that it missed are gone"
        assert len({group.key_for("model") for group in secrets}) == 1
        digests = await complete(scene)
        for client in CLIENTS:
            assert (scene.refusals(client), scene.dead(client)) == ({}, [])
    reference = reference_of(manifest)
    play_plainly(reference, 1)
    play_plainly(reference, 2, 3, 4, away=[LATE])
    kept = reference.clients[-1].delta.copy()
    forget(reference)
    play_plainly(reference, 5, 6)
    assert digests == dict.fromkeys(CLIENTS, reference.digest())
    assert kept.any(), "that its accumulator is zero makes a difference here"


async def test_an_inbox_that_keeps_the_last_messages_only_is_no_other_case(tmp_path: Path) -> None:
    """The last order is still there, and the sums of its round; what is left of older ones is of no use."""
    async with cohort(tmp_path) as scene:
        await play(scene, 1)
        await scene.stop(LATE)
        await play(scene, 2, 3, 4, members=PRESENT)
        broker = scene.surroundings.broker
        assert broker is not None
        orders = [place for place, each in enumerate(list_waiting(broker, LATE)) if each.kind == "round-opened"]
        waiting = len(list_waiting(broker, LATE))
        overflow(broker, LATE, waiting - orders[2] + 1)
        (rest, order, *_) = list_waiting(broker, LATE)
        assert (rest.kind, rest.round, order.kind, order.round) == ("sum-chunk", 3, "round-opened", 4)
        await come_back(scene)
        await until(lambda: participation_of(scene).over == 4)
        await play(scene, 5)
        assert (await caught_up_to(scene))[0] in {3, 4}, "a peer's model may be the one after those sums"
        assert len(set((await complete(scene)).values())) == 1


@pytest.mark.parametrize("number", [2, 3])
async def test_a_single_chunk_that_is_lost_is_enough(tmp_path: Path, number: int) -> None:
    def is_lost(envelope: Envelope) -> bool:
        body, first = envelope.body, MANIFEST.aggregators[0]
        return isinstance(body, SumChunk) and (envelope.round, body.index, envelope.sender) == (number, 1, first)

    async with cohort(tmp_path) as scene:
        await play(scene, 1)
        await scene.stop(LATE)
        await play(scene, 2, 3, 4, members=PRESENT)
        broker = scene.surroundings.broker
        assert broker is not None
        assert lose(broker, LATE, is_lost) == 1
        await come_back(scene)
        await play(scene, 5)
        assert (await caught_up_to(scene), rounds_of(scene)) == ([4], [1, *range(2, number), 5])
        digests = await complete(scene)
    reference = reference_of(MANIFEST)
    play_plainly(reference, 1)
    play_plainly(reference, 2, 3, 4, away=[LATE])
    forget(reference)
    play_plainly(reference, 5)
    assert digests == dict.fromkeys(CLIENTS, reference.digest())


@pytest.mark.parametrize(
    ("manifest", "then"),
    [(MANIFEST, ()), (MANIFEST, (3,)), (UNION, ())],
    ids=["void", "void-and-released", "void-union"],
)
async def test_who_was_away_while_a_round_was_void_knows_how_many_were_released(
    tmp_path: Path, manifest: Manifest, then: tuple[int, ...]
) -> None:
    async with cohort(tmp_path, manifest) as scene:
        await play(scene, 1)
        await scene.stop(LATE)
        await play_void(scene, 2, PRESENT)
        await play(scene, *then, members=PRESENT)
        lose_all(scene)
        await come_back(scene)
        following = 3 + len(then)
        await play(scene, following)
        await scene.coordinator.sync(CLIENTS)
        for client in CLIENTS:
            data = participation_of(scene, client)
            assert (data.over, data.released, data.wasted) == (following, 2 + len(then), 0)
        digests = await complete(scene)
    reference = reference_of(manifest)
    play_plainly(reference, 1)
    play_plainly(reference, *then, away=[LATE])
    forget(reference)
    play_plainly(reference, following)
    assert digests == dict.fromkeys(CLIENTS, reference.digest())


async def test_who_is_away_from_the_first_round_on_joins_late(tmp_path: Path) -> None:
    async with cohort(tmp_path) as scene:
        await scene.coordinator.sync(CLIENTS)
        await scene.stop(LATE)
        await play(scene, 1, 2, members=PRESENT)
        lose_all(scene)
        await come_back(scene)
        await play(scene, 3)
        assert (await caught_up_to(scene), rounds_of(scene)) == ([2], [3])
        digests = await complete(scene)
    reference = reference_of(MANIFEST)
    play_plainly(reference, 1, 2, away=[LATE])
    forget(reference)
    play_plainly(reference, 3)
    assert digests == dict.fromkeys(CLIENTS, reference.digest())


async def test_two_who_were_away_catch_up_at_once(tmp_path: Path) -> None:
    away = CLIENTS[-2:]
    async with cohort(tmp_path) as scene:
        await play(scene, 1)
        for client in away:
            await scene.stop(client)
        await play(scene, 2, 3, members=CLIENTS[:3])
        for client in away:
            lose_all(scene, client)
            await come_back(scene, client)
        await play(scene, 4)
        assert [await caught_up_to(scene, client) for client in away] == [[3], [3]]
        digests = await complete(scene)
    reference = reference_of(MANIFEST)
    play_plainly(reference, 1)
    play_plainly(reference, 2, 3, away=away)
    forget(reference, *away)
    play_plainly(reference, 4)
    assert digests == dict.fromkeys(CLIENTS, reference.digest())


async def test_who_is_away_again_before_it_has_caught_up_asks_for_a_later_model(tmp_path: Path) -> None:
    async with cohort(tmp_path) as scene:
        await play(scene, 1)
        await ask_in_vain(scene)
        await scene.stop(LATE)
        for client in OTHERS:
            await come_back(scene, client)
        await scene.coordinator.finish_round(3, PRESENT)
        await play(scene, 4, members=PRESENT)
        lose_all(scene)
        await scene.coordinator.open_round(5)
        await come_back(scene)
        await scene.coordinator.finish_round(5)
        assert (await caught_up_to(scene), rounds_of(scene)) == ([4], [1, 5])
        assert len(set((await complete(scene)).values())) == 1


# Peers that do not help ---------------------------------------------------------------------------------


async def ask_in_vain(scene: Scene) -> None:
    """Round 2 is lost; of the peers only the giver is there when the late client comes back in round 3."""
    await scene.stop(LATE)
    await play(scene, 2, members=PRESENT)
    for client in OTHERS:
        await scene.stop(client)
    lose_all(scene)
    await scene.coordinator.open_round(3)
    await come_back(scene)
    await until(lambda: len(scene.sent(SnapshotChunk, sender=GIVER)) >= CHUNKS)
    await until(lambda: len(scene.sent(SnapshotRequested, sender=LATE)) >= 5 * len(PRESENT))


async def test_a_model_that_too_few_organisations_vouch_for_is_never_taken(tmp_path: Path) -> None:
    """Nor after a restart, which asks again."""
    async with cohort(tmp_path) as scene:
        await play(scene, 1)
        await ask_in_vain(scene)
        assert (asks(scene), participation_of(scene).over, await caught_up_to(scene)) == (["asking"], 1, [])
        before = len(scene.sent(SnapshotRequested))
        await scene.restart(LATE)
        await until(lambda: len(scene.sent(SnapshotRequested)) > before)
        assert (asks(scene), participation_of(scene).over) == (["asking"], 1)
        assert scene.state_of(LATE, 3) == "queued"
        assert scene.sent(ShareChunk, sender=LATE, number=3) == []
        await come_back(scene, OTHERS[0])
        await until(lambda: participation_of(scene).over == 2)
        for client in OTHERS[1:]:
            await come_back(scene, client)
        await scene.coordinator.finish_round(3)
        assert len(set((await complete(scene)).values())) == 1


async def test_a_giver_that_dies_in_the_middle_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, half_way = threading.Event(), threading.Event()
    seal = RunSeals.seal_snapshot

    def seal_until_half_way(self: RunSeals, number: int, to: PartyId, chunk: int, part: bytes) -> bytes:
        if self._me == GIVER and chunk == CHUNKS // 2:
            half_way.set()
            gate.wait()
        return seal(self, number, to, chunk, part)

    async with cohort(tmp_path) as scene:
        await play(scene, 1)
        await scene.stop(LATE)
        await play(scene, 2, members=PRESENT)
        lose_all(scene)
        monkeypatch.setattr(RunSeals, "seal_snapshot", seal_until_half_way)
        await scene.coordinator.open_round(3)
        await come_back(scene)
        await asyncio.to_thread(half_way.wait)
        await scene.stop(GIVER)
        gate.set()
        await until(lambda: participation_of(scene).over == 2)
        assert len(scene.sent(SnapshotChunk, sender=GIVER)) < CHUNKS
        await scene.coordinator.finish_round(3, CLIENTS[1:])
        await come_back(scene, GIVER)
        await play(scene, 4)
        assert len(set((await complete(scene)).values())) == 1
        assert scene.refusals(LATE) == {}


async def test_a_corrupt_peers_other_model_is_refused_and_an_honest_ones_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It vouches for what the others hold, and sends something else, well sealed."""
    seal = RunSeals.seal_snapshot

    def seal_another(self: RunSeals, number: int, to: PartyId, chunk: int, part: bytes) -> bytes:
        if self._me == GIVER and chunk == 1:
            part = bytes([part[0] ^ 1]) + part[1:]
        return seal(self, number, to, chunk, part)

    monkeypatch.setattr(RunSeals, "seal_snapshot", seal_another)
    async with cohort(tmp_path) as scene:
        await play(scene, 1)
        await scene.stop(LATE)
        await play(scene, 2, members=PRESENT)
        lose_all(scene)
        await come_back(scene)
        await play(scene, 3)
        assert scene.refusals(LATE)[RejectReason.DIFFERENT_MODEL] >= 1
        assert await caught_up_to(scene) == [2]
        bodies = [each.body for each in scene.sent(SnapshotRequested)]
        assert {body.giver for body in bodies if isinstance(body, SnapshotRequested)} >= {GIVER, OTHERS[0]}
        assert len(set((await complete(scene)).values())) == 1


# Restarts, and the end ----------------------------------------------------------------------------------


@pytest.mark.parametrize("when", ["before", "after"])
async def test_who_dies_while_it_looks_at_a_model_looks_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """Before or after the model is on its disk; what follows from that is on no disk either way."""
    gate, looking = threading.Event(), threading.Event()
    take = snapshots.take

    def take_and_stand(*args: object) -> None:
        if not looking.is_set():
            if when == "after":
                take(*args)  # type: ignore[arg-type]  # Whatever it was given.
            looking.set()
            gate.wait()
            raise OSError("dead by now")
        take(*args)  # type: ignore[arg-type]

    async with cohort(tmp_path) as scene:
        await play(scene, 1)
        await scene.stop(LATE)
        await play(scene, 2, members=PRESENT)
        lose_all(scene)
        monkeypatch.setattr(snapshots, "take", take_and_stand)
        await scene.coordinator.open_round(3)
        await come_back(scene)
        await asyncio.to_thread(looking.wait)
        assert asks(scene) == ["checking"]
        await scene.stop(LATE)
        gate.set()
        await come_back(scene)
        await scene.coordinator.finish_round(3)
        assert (await caught_up_to(scene), rounds_of(scene)) == ([2], [1, 3])
        digests = await complete(scene)
    reference = reference_of(MANIFEST)
    play_plainly(reference, 1)
    play_plainly(reference, 2, away=[LATE])
    forget(reference)
    play_plainly(reference, 3)
    assert digests == dict.fromkeys(CLIENTS, reference.digest())


async def test_a_run_that_ends_before_it_has_caught_up_leaves_it_without_a_model(tmp_path: Path) -> None:
    async with cohort(tmp_path) as scene:
        await play(scene, 1)
        await ask_in_vain(scene)
        await scene.coordinator.tell(RunEnded(outcome="completed", reason="done"), CLIENTS)
        await scene.coordinator.sync([LATE])
        assert [fields["outcome"] for fields in scene.recorded(LATE, "ended")] == ["failed"]
        assert not (run_folder(scene, LATE) / "model.safetensors").exists()
        assert Key("run", MANIFEST.run_id) not in trainer(scene).runner.machines
