"""One trainer in a run that goes on from another: as one who was in that run, and as one who was not."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from hubbub.crypto.key_derivation import GroupSecret
from hubbub.errors import Code, RejectReason
from hubbub.ids import PartyId
from hubbub.machine.effects import Key
from hubbub.messages.manifest import Manifest, MetricClaim
from hubbub.messages.rounds import RoundScored
from hubbub.messages.runs import RunEnded, RunReady, RunRefused
from hubbub.messages.snapshots import SnapshotChunk, SnapshotRequested, count_chunks
from hubbub.store.sqlite import SqliteStore
from hubbub.strategies.base import Theta
from hubbub.strategies.scores import SCORES
from hubbub.trust.succession import EndorsedModel, gather, read_endorsement
from hubbub_trainer import snapshots
from hubbub_trainer.learning.synthetic import SyntheticTask
from hubbub_trainer.phases import admission, participation
from hubbub_trainer.phases.participation import Participation
from hubbub_trainer.policy import Policy
from hubbub_trainer.saved_model import SALT_BYTES, commit, derive_salt, read_kept_model, recall_for_successor
from hubbub_trainer.workspace import digest
from support.builders import client_names, make_cohort
from support.parties import roster_of
from support.saboteur import Saboteur
from support.succession import endorse_as
from support.trainer_scene import Scene, scene_of
from support.trainer_scene import draw_up as draw_up_for

TASK = SyntheticTask(203)
NAMES = client_names(4)
ME, SECOND, THIRD, FOURTH = NAMES
SALT = bytes(range(SALT_BYTES))
MODEL: Theta = np.linspace(-1, 1, TASK.count_parameters(), dtype=np.float32)


def draw_up(**changes: object) -> Manifest:
    return draw_up_for(TASK, 4, **{"rounds": 2, **changes})


def go_on(endorsed: Sequence[EndorsedModel], **changes: object) -> Manifest:
    commitment, predecessor = gather(endorsed)
    return draw_up(
        **{"initial_model_sha256": commitment, "predecessor": predecessor, "nonce": "2" * 32, **changes}
    )


def of_others(*former: PartyId, salt: bytes = SALT, model: Theta = MODEL, **changes: object) -> Manifest:
    """A run of all four that goes on from one that only some were in."""
    everybody = make_cohort(NAMES)
    before = draw_up(cohort=tuple(member for member in everybody if member.name in former), nonce="1" * 32)
    return go_on(endorse_as(before, commitment=commit(salt, model)), **changes)


FIRST = draw_up()
NEWCOMER = of_others(SECOND, THIRD)


# Those who were not in it -------------------------------------------------------------------------------


async def agree(scene: Scene, manifest: Manifest | None = None) -> None:
    """Everything up to the point where a newcomer asks for its model."""
    await scene.pledge(manifest)
    await scene.exchange()
    await scene.confirm_all()


async def await_request(scene: Scene, client: PartyId, *, times: int = 1) -> SnapshotRequested:
    """The newcomer's last request to a client, which is asked that often at least."""
    return (await scene.hear(scene.parties[client], SnapshotRequested, each=times))[-1][1]


async def await_turn(scene: Scene, client: PartyId) -> None:
    """Wait until it is for this client to send the model."""
    times = 1
    while (await await_request(scene, client, times=times)).giver != client:
        times += 1


async def send_model(
    scene: Scene,
    client: PartyId,
    model: Theta = MODEL,
    salt: Callable[[int], bytes] = lambda _: SALT,
    chunks: slice = slice(None),
) -> None:
    """The model that the run begins from, as it should be but for what a test says."""
    await scene.send_snapshot(client, 0, model, salt=salt, chunks=chunks)


def state_of(scene: Scene) -> object:
    machines, run = scene.trainer.runner.machines, scene.manifest.run_id
    return machines[Key("run", run) if Key("run", run) in machines else Key("admission", run)].state


def participation_of(scene: Scene) -> Participation:
    data = scene.trainer.runner.machines[Key("run", scene.manifest.run_id)].data
    assert isinstance(data, Participation)
    return data


def check_begin(scene: Scene, model: Theta = MODEL) -> None:
    """Check the newcomer's disk before the first round."""
    kept: dict[str, Theta] = load_file(scene.run_folder(ME) / "state-000000.safetensors")
    assert kept.keys() == {"theta", "accumulator", "history"}, "no memory of an optimiser"
    assert not kept["history"].size, "the first round has the first bound again"
    assert kept["theta"].tobytes() == model.tobytes()
    assert not kept["accumulator"].any()


async def test_a_newcomer_is_ready_once_it_has_the_model_and_begins_with_nothing_else(tmp_path: Path) -> None:
    async with scene_of(tmp_path, NEWCOMER, TASK) as scene:
        await agree(scene)
        request = await await_request(scene, SECOND)
        assert (request.after, request.giver) == (-1, SECOND)
        await scene.settle()
        assert state_of(scene) is admission.State.INHERITING
        assert not scene.heard(scene.coordinator, RunReady)
        await send_model(scene, SECOND)
        await scene.hear(scene.coordinator, RunReady)
        check_begin(scene)
        await scene.play_good_round(1)
        assert scene.dead() == []
        # Who was in neither run has no model to send, and is not asked for one.
        assert not scene.heard(scene.parties[FOURTH], SnapshotRequested)


async def test_a_wrong_model_is_counted_and_somebody_else_is_asked(tmp_path: Path) -> None:
    """At once, though a client that stays silent would be given its time."""
    wrong: tuple[Callable[[Scene, PartyId], Awaitable[None]], ...] = (
        partial(send_model, model=np.nextafter(MODEL, np.float32(9))),
        partial(send_model, model=np.where(MODEL == 0, np.float32(-0.0), MODEL)),
        partial(send_model, salt=lambda _: SALT[::-1]),
        partial(send_model, salt=lambda index: SALT if index else SALT[::-1]),
        partial(send_model, salt=lambda _: bytes(SALT_BYTES)),
    )
    async with scene_of(tmp_path, NEWCOMER, TASK) as scene:
        await agree(scene)
        for times, send_wrongly in enumerate(wrong, start=1):
            giver, following = (SECOND, THIRD) if times % 2 else (THIRD, SECOND)
            await await_turn(scene, giver)
            await send_wrongly(scene, giver)
            await await_turn(scene, following)
            assert scene.count(RejectReason.DIFFERENT_MODEL) == times
            assert not (scene.run_folder(ME) / "state-000000.safetensors").exists()
        await send_model(scene, THIRD)
        await scene.hear(scene.coordinator, RunReady)
        check_begin(scene)


async def test_what_is_no_snapshot_of_the_beginning_is_not_taken_for_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As of a round that nobody has played, which would hide the one that is wanted; and one that came in part."""
    async with scene_of(tmp_path, NEWCOMER, TASK) as scene:
        await agree(scene)
        await await_turn(scene, SECOND)
        await scene.send_snapshot(SECOND, 5, MODEL)
        await send_model(scene, THIRD, chunks=slice(1, None))
        await send_model(scene, FOURTH)
        await scene.settle()
        assert (state_of(scene), scene.dead()) == (admission.State.INHERITING, [])
        await scene.send_snapshot(SECOND, 0, MODEL, chunks=slice(0, 1))  # Without room for the salt.
        await scene.settle()
        assert scene.dead() == [RejectReason.WRONG_LENGTH.value]
        await send_model(scene, THIRD, chunks=slice(0, 1))
        await scene.hear(scene.coordinator, RunReady)
        check_begin(scene)
    assert not [record for record in caplog.records if record.exc_info], "it is not even looked at"


async def test_a_newcomer_that_is_killed_asks_again_unless_it_has_the_model(tmp_path: Path) -> None:
    """It was in the run that this one goes on from, and has lost its model; that makes it a newcomer, too."""
    async with scene_of(tmp_path, of_others(ME, SECOND), TASK) as scene:
        await agree(scene)
        await await_turn(scene, SECOND)
        await send_model(scene, SECOND, chunks=slice(0, 2))
        await scene.settle()
        await scene.restart()
        await await_request(scene, SECOND, times=2)
        assert state_of(scene) is admission.State.INHERITING
        await send_model(scene, SECOND, chunks=slice(2, None))
        await scene.hear(scene.coordinator, RunReady)
        await scene.restart()
        await scene.settle()
        check_begin(scene)
        await scene.play_good_round(1)
        await scene.restart()
        await scene.play_good_round(2)
        assert len(scene.digests()) == 2


async def test_a_newcomer_that_dies_while_it_looks_at_the_model_looks_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = asyncio.Event()
    async with scene_of(tmp_path, NEWCOMER, TASK) as scene:
        await agree(scene)
        await await_turn(scene, SECOND)
        with monkeypatch.context() as patch:

            async def hang(*_: object) -> object:
                looked.set()
                return await asyncio.Event().wait()

            patch.setattr(scene.trainer, "work", hang)
            await send_model(scene, SECOND)
            await looked.wait()
        await scene.restart()
        await scene.hear(scene.coordinator, RunReady)
        check_begin(scene)


def of_three(*former: int) -> tuple[Manifest, Manifest]:
    """A run of the first three of six, which goes on from one of others; and one of all, for the roster."""
    everybody = make_cohort(client_names(6))
    before = draw_up(cohort=tuple(everybody[place] for place in former), nonce="1" * 32)
    signed = endorse_as(before, commitment=commit(SALT, MODEL))
    both = draw_up(cohort=everybody)
    return go_on(signed, cohort=everybody[:3], roster_sha256=roster_of(both).digest), both


@pytest.mark.parametrize(
    "former", [(3, 4, 5), (0, 4, 5)], ids=["newcomers alone", "the only one that was in it has lost its model"]
)
async def test_a_model_that_nobody_could_send_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, former: tuple[int, ...]
) -> None:
    manifest, both = of_three(*former)
    async with scene_of(tmp_path, both, TASK) as scene:
        assert await scene.refusal(manifest) is Code.PROTOCOL_MANIFEST
    assert "nobody else in the cohort was in the run that it goes on from: name a client that was" in caplog.text


async def test_a_commitment_that_nobody_endorsed_is_refused_and_leaves_nothing_on_disk(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A coordinator could name as many predecessors as it likes."""
    async with scene_of(tmp_path, NEWCOMER, TASK) as scene:
        forged = NEWCOMER.model_copy(update={"initial_model_sha256": "0" * 64})
        assert await scene.refusal(forged) is Code.POLICY_ROSTER
        assert scene.trainer._ledger.list_entries() == []
    assert "the endorsement of client-2 does not hold" in caplog.text


# Those who were -----------------------------------------------------------------------------------------


async def complete(scene: Scene, manifest: Manifest | None = None) -> GroupSecret:
    """Play a whole run; the group secret as its clients still have it."""
    group = await scene.join(manifest)
    await scene.play_good_rounds(1, 2)
    await scene.end()
    return group


def endorsed_by_all(scene: Scene, run: Manifest) -> list[EndorsedModel]:
    """The trainer's endorsement on its disk, and those of the others, made by hand, of the same model."""
    mine = read_endorsement(scene.folders[ME] / "runs" / run.run_id / "endorsement.json")
    return [mine, *endorse_as(run, run.clients[1:], mine.commitment)]


def left_by(scene: Scene, run: Manifest) -> tuple[bytes, Theta]:
    left = recall_for_successor(scene.folders[ME] / "runs" / run.run_id)
    assert left is not None
    return left


async def test_a_completed_run_leaves_salt_and_endorsement_as_all_its_clients_would(tmp_path: Path) -> None:
    async with scene_of(tmp_path, FIRST, TASK) as scene:
        group = await complete(scene)
        salt, model = left_by(scene, FIRST)
        assert salt == derive_salt(group, 2)
        (mine, *_) = endorsed_by_all(scene, FIRST)
        assert mine.commitment == commit(salt, model)
        assert [mine] == endorse_as(FIRST, [ME], commit(salt, model))
        assert digest(model) == (scene.run_folder(ME) / "model.sha256").read_text("ascii").strip()
        assert {path.name for path in scene.run_folder(ME).iterdir()} == {
            *("model.safetensors", "model.sha256", "rounds.jsonl"),
            *("succession.json", "endorsement.json"),
        }


async def test_the_salt_is_the_same_for_who_was_absent_or_caught_up(tmp_path: Path) -> None:
    """It follows from the number of the last round, whatever else a client did or missed."""
    async with scene_of(tmp_path, FIRST, TASK) as scene:
        group = await scene.join()
        await scene.open_round(2)  # The order of round 1, and all of that round, never came.
        await await_request(scene, SECOND)
        group.advance_to(2)
        await scene.hand_over(SECOND, 2, MODEL)
        while participation_of(scene).over < 2:
            await scene.settle()
        await scene.end()
        salt, model = left_by(scene, FIRST)
        assert model.tobytes() == MODEL.tobytes()
        assert salt == derive_salt(group, 2)


@pytest.mark.parametrize("what", ["Ended", "forgotten"])
@pytest.mark.parametrize("when", ["before", "after"])
async def test_killed_at_the_very_end_it_leaves_the_same_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, when: str, what: str
) -> None:
    """Also where all that it was made of is gone already when it is to be written again.

    That an entry is done is not synced, and is forgotten here.
    """
    run = FIRST.run_id
    saboteur = Saboteur(lambda point: (point.when, point.what, point.key) == (when, what, Key("run", run)))
    async with scene_of(tmp_path, FIRST, TASK) as scene:
        group = await scene.join()
        await scene.play_good_rounds(1, 2)
        await scene.settle()
        with monkeypatch.context() as patch:
            patch.setattr(SqliteStore, "mark_done", lambda *_: None)
            await scene.start(ME, await scene.kill(), saboteur=saboteur)
            await scene.tell(RunEnded(outcome="completed", reason=""))
            await saboteur.struck.wait()
            image = await scene.kill(let_go=saboteur.let_go)
        saboteur.retire()
        await scene.start(ME, image)
        await scene.settle()
        salt, model = left_by(scene, FIRST)
        assert salt == derive_salt(group, 2)
        assert [endorsed_by_all(scene, FIRST)[0]] == endorse_as(FIRST, [ME], commit(salt, model))
        assert {path.name for path in scene.run_folder(ME).glob("*.safetensors")} == {"model.safetensors"}
        assert scene.trainer._vault.get(run, "group") is None
    assert not [record for record in caplog.records if record.exc_info], "nothing went wrong on the way"


@pytest.mark.parametrize("outcome", ["failed", "cancelled", "completed"])
async def test_a_run_that_is_not_completed_leaves_nothing_to_go_on_from(tmp_path: Path, outcome: str) -> None:
    """Nor one that a coordinator calls completed early: it could have clients sign models of different rounds."""
    async with scene_of(tmp_path, FIRST, TASK, joined=True) as scene:
        await scene.play_good_round(1)
        await scene.end(outcome)
        assert (scene.run_folder(ME) / "model.safetensors").exists()
        assert not (scene.run_folder(ME) / "endorsement.json").exists()
        assert not (scene.run_folder(ME) / "succession.json").exists()


async def test_the_totals_that_a_run_has_stalled_at_are_known_across_restarts(tmp_path: Path) -> None:
    """So much slower, it learns nothing that the scores could show."""
    claims = tuple(MetricClaim.of(metric) for metric in TASK.metrics)
    patient = draw_up(metrics=claims, learning_rate=1e-6, rounds=9, patience=2)
    async with scene_of(tmp_path, patient, TASK, joined=True) as scene:
        for number in (1, 2, 3):
            await scene.play_good_round(number)
            await scene.restart()
            for aggregator in scene.aggregators:
                await scene.release(aggregator, number, phase=SCORES.name)
            await scene.hear(scene.coordinator, RoundScored, number=number)
            assert not (scene.run_folder(ME) / "endorsement.json").exists()
        await scene.restart()
        await scene.end()
        assert (scene.run_folder(ME) / "endorsement.json").exists()


async def test_an_heir_begins_with_its_own_copy_and_sends_it_to_who_asks(tmp_path: Path) -> None:
    async with scene_of(tmp_path, FIRST, TASK) as scene:
        await complete(scene)
        salt, model = left_by(scene, FIRST)
        await scene.join(go_on(endorsed_by_all(scene, FIRST)))
        check_begin(scene, model)
        assert not scene.heard(scene.parties[SECOND], SnapshotRequested)
        await scene.restart()
        await scene.ask_for_model(THIRD, after=-1, giver=SECOND)
        for after in (-1, 0):
            await scene.ask_for_model(FOURTH, after=after)
        chunks = count_chunks(scene.manifest, 0)
        heard = await scene.hear(scene.parties[FOURTH], SnapshotChunk, each=chunks)
        await scene.settle()
        assert {envelope.round for envelope, _ in heard} == {0}
        assert not scene.heard(scene.parties[THIRD], SnapshotChunk)
        opened = [
            scene.peers.seals[FOURTH].open_snapshot(0, ME, body.index, envelope.payload)
            for envelope, body in heard
        ]
        assert {part[:SALT_BYTES] for part in opened} == {salt}
        assert snapshots.check_initial(scene.manifest, opened).tobytes() == model.tobytes()
        await scene.play_good_round(1)
        await scene.ask_for_model(THIRD, after=-1)
        await scene.settle()
        assert not scene.heard(scene.parties[THIRD], SnapshotChunk), "it has gone on"
        assert scene.dead() == []


async def test_an_heir_that_is_asked_before_all_have_confirmed_sends_its_copy_then(tmp_path: Path) -> None:
    async with scene_of(tmp_path, FIRST, TASK) as scene:
        await complete(scene)
        await scene.pledge(go_on(endorsed_by_all(scene, FIRST)))
        await scene.exchange()
        await scene.ask_for_model(FOURTH, after=-1)
        await scene.settle()
        assert state_of(scene) is admission.State.AGREEING
        assert not scene.heard(scene.parties[FOURTH], SnapshotChunk)
        await scene.restart()
        await scene.confirm_all()
        chunks = count_chunks(scene.manifest, 0)
        heard = await scene.hear(scene.parties[FOURTH], SnapshotChunk, each=chunks)
        await scene.settle()
        assert {sent.index for _, sent in heard} == set(range(chunks))
        assert participation_of(scene).sent == {FOURTH: participation.SentSnapshots(count=1, number=0)}, (
            "the next may follow"
        )
        await scene.play_good_round(1)
        assert scene.dead() == []


async def test_nobody_sends_a_beginning_that_anybody_can_rebuild(tmp_path: Path) -> None:
    async with scene_of(tmp_path, FIRST, TASK, joined=True) as scene:
        await scene.ask_for_model(SECOND, after=-1)
        await scene.settle()
        assert not scene.heard(scene.parties[SECOND], SnapshotChunk)
        assert state_of(scene) is participation.State.JOINED


def spoil_model(folder: Path) -> None:
    kept = read_kept_model(folder)
    (folder / "model.safetensors").write_bytes(replace(kept, theta=kept.theta + np.float32(1)).write())


def write(name: str, content: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_text(content, encoding="utf-8")


async def test_an_heir_with_another_copy_refuses(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    other = "the initial model here is not the one that the manifest commits to"
    unreadable = "does not hold the model that its run ended with any more"
    spoilt: tuple[tuple[Callable[[Path], object], str], ...] = (
        (spoil_model, other),
        (write("succession.json", json.dumps({"salt": "00" * SALT_BYTES})), other),
        (write("succession.json", "{}"), unreadable),
        (write("succession.json", "[]"), unreadable),
        (write("succession.json", '{"salt": "xy"}'), unreadable),
        (write("succession.json", ""), unreadable),
        (write("model.safetensors", ""), unreadable),
        (write("model.safetensors", "no model"), unreadable),
    )
    async with scene_of(tmp_path, FIRST, TASK, SyntheticTask(101)) as scene:
        await complete(scene)
        endorsed, folder = endorsed_by_all(scene, FIRST), scene.run_folder(ME)
        right = {name: (folder / name).read_bytes() for name in ("succession.json", "model.safetensors")}
        for number, (spoil, why) in enumerate(spoilt):
            caplog.clear()
            spoil(folder)
            assert await scene.refusal(go_on(endorsed, nonce=f"{number:032x}")) is Code.PROTOCOL_TASK
            assert why in caplog.text, number
            for name, content in right.items():
                (folder / name).write_bytes(content)
        another = go_on(endorsed, task="synthetic:101", parameters=101)
        assert await scene.refusal(another) is Code.PROTOCOL_TASK
        why = "has 203 parameters here, the manifest says 101: draw it up for the predecessor's task"
        assert why in caplog.text


# All successors of a run begin from one model ---------------------------------------------------------------


ONE_RUN_PER_MODEL = Policy.for_demo(roster_of(FIRST).digest).model_copy(update={"max_runs_per_model": 1})


@pytest.mark.parametrize("former", [(SECOND, THIRD), NAMES], ids=["newcomer", "heir"])
async def test_a_second_successor_is_refused_after_a_restart(tmp_path: Path, former: tuple[PartyId, ...]) -> None:
    async with scene_of(tmp_path, FIRST, TASK, policy=ONE_RUN_PER_MODEL) as scene:
        if former == NAMES:
            await complete(scene)
            propose = partial(go_on, endorsed_by_all(scene, FIRST))
        else:
            propose = partial(of_others, *former)
        await scene.pledge(propose())
        await scene.restart()
        assert await scene.refusal(propose(nonce="3" * 32)) is Code.POLICY_LEDGER
        await scene.propose(propose())  # The first one again, which it has joined.
        scene.manifest = propose()
        await scene.end("failed")
        # Nothing of the first one has left, so another may take its place.
        await scene.pledge(propose(nonce="4" * 32))
        # A run that goes on from another is another matter.
        await scene.pledge(of_others(THIRD, FOURTH, model=MODEL + 1))


async def test_a_newcomer_to_a_model_that_it_began_from_before_is_never_ready(tmp_path: Path) -> None:
    """The model comes sealed from a peer, so it is known only then: as a model that other runs went on from."""
    async with scene_of(tmp_path, FIRST, TASK, policy=ONE_RUN_PER_MODEL) as scene:
        await agree(scene, NEWCOMER)
        await await_turn(scene, SECOND)
        await send_model(scene, SECOND)
        await scene.hear(scene.coordinator, RunReady)
        await agree(scene, of_others(THIRD, FOURTH))
        await await_turn(scene, THIRD)
        await send_model(scene, THIRD)
        ((_, said),) = await scene.hear(scene.coordinator, RunRefused)
        await scene.settle()
        assert said.code is Code.POLICY_LEDGER
        assert not [each for each in scene.coordinator.heard if isinstance(each.body, RunReady)][1:]
