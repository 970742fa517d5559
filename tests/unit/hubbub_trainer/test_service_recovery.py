"""A trainer that is killed, wherever it stands, goes on from its disk and ends where it would have anyway."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import shutil
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pytest

from hubbub.crypto.key_derivation import CONTRIBUTION_BYTES, GroupSecret
from hubbub.crypto.sealing import CHUNK_KEY_BYTES, Kem, seal_overhead
from hubbub.disk import replacing
from hubbub.errors import Code, RejectReason
from hubbub.ids import PartyId
from hubbub.machine.effects import Key
from hubbub.messages.envelope import Message
from hubbub.messages.manifest import Manifest
from hubbub.messages.rounds import RoundApplied
from hubbub.messages.runs import GroupConfirmed, GroupContribution, RunJoined, RunKeys, RunReady, RunRefused
from hubbub.messages.shares import ShareChunk
from hubbub.messages.snapshots import SnapshotRequested
from hubbub.protocol.weights import SHARE_BYTES, add
from hubbub.runtime import spool
from hubbub.runtime.state_folder import STATE_FILE
from hubbub.transport.topology import DELIVERY_LIMIT
from hubbub_trainer import saved_model
from hubbub_trainer.learning.synthetic import SyntheticTask
from hubbub_trainer.learning.task import Theta
from hubbub_trainer.saved_model import read_kept_model
from hubbub_trainer.task_runner import MOST_BEGINNINGS
from support.saboteur import Point, Saboteur
from support.trainer_scene import Scene, draw_up, scene_of
from support.watched_task import WatchedTask

TASK = SyntheticTask(1_003)
MANIFEST = draw_up(TASK)
UNION = draw_up(TASK, strategy="sec-union", q=3)
ME, SECOND, THIRD = MANIFEST.clients
joined = partial(scene_of, joined=True)


def check_sets(scene: Scene) -> None:
    """However often a chunk was sent: it is of one set, says one thing, and depends on one history."""
    for aggregator in scene.aggregators:
        for place, copies in scene.sent_sets(aggregator).items():
            assert len(set(copies)) == 1, place


# Kills wherever the store is touched --------------------------------------------------------------------


async def haunt(scene: Scene, saboteur: Saboteur) -> None:
    """Kill the trainer wherever the saboteur holds it, and start it again; it may be held while it starts."""
    starting = asyncio.ensure_future(asyncio.sleep(0))
    while True:
        striking = asyncio.ensure_future(saboteur.struck.wait())
        await asyncio.wait({striking, starting}, return_when=asyncio.FIRST_COMPLETED)
        if not striking.done():
            await starting  # What went wrong there is what is wrong here.
            await striking
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        image = await scene.kill(let_go=saboteur.let_go)
        starting = asyncio.ensure_future(scene.start(ME, image, saboteur=saboteur))


@asynccontextmanager
async def haunted(scene: Scene, chosen: Callable[[Point], bool]) -> AsyncIterator[Saboteur]:
    """From here on the trainer dies at every chosen point, once."""
    saboteur = Saboteur(chosen)
    await scene.start(ME, await scene.kill(), saboteur=saboteur)
    haunting = asyncio.ensure_future(haunt(scene, saboteur))
    failing = asyncio.current_task()
    haunting.add_done_callback(lambda done: None if done.cancelled() or failing is None else failing.cancel())
    try:
        yield saboteur
    finally:
        saboteur.retire()
        haunting.cancel()
        for outcome in await asyncio.gather(haunting, return_exceptions=True):
            if isinstance(outcome, Exception):
                raise outcome


History = Callable[[Scene], Awaitable[None]]


async def with_a_wasted_round(scene: Scene) -> None:
    """Its union is released, and then it is void."""
    await scene.play_void_round(1)
    await scene.play_good_round(2)


async def with_a_missed_and_a_void_round(scene: Scene) -> None:
    """In the first round the others' shares were there in time, ours was not."""
    await scene.play_good_round(1, members=(SECOND, THIRD))
    await scene.play_void_round(2)
    await scene.play_good_round(3)


PEERS_MODEL = TASK.initial_model(8)


async def with_a_loss(scene: Scene) -> None:
    """Two rounds are in nobody's inbox; a peer's model leads past them, and the round after them is played."""
    await scene.play_good_round(1)
    await scene.open_round(4)
    await scene.hand_over(SECOND, 3, PEERS_MODEL)
    await scene.play_good_round(4)


async def lose_sums(scene: Scene) -> None:
    """The round's shares were sent, and of its sums one never comes; two rounds later a peer helps out."""
    await scene.open_round(1)
    await scene.release(scene.aggregators[0], 1)
    for number in (2, 3):
        await scene.open_round(number)
    await scene.hear(scene.parties[SECOND], SnapshotRequested)
    await scene.hand_over(SECOND, 2, PEERS_MODEL)


async def with_lost_sums(scene: Scene) -> None:
    await lose_sums(scene)
    await scene.play_good_round(3)


async def with_a_strayed_round(scene: Scene) -> None:
    """The first round was released to clients that were told something else than we were."""
    await scene.open_round(1)
    for aggregator in scene.aggregators:
        await scene.release(aggregator, 1, transcript="7b" * 32)
    await scene.hear(scene.parties[SECOND], SnapshotRequested)
    await scene.hand_over(SECOND, 1, PEERS_MODEL)
    await scene.play_good_round(2)


async def play_to_the_end(scene: Scene, history: History) -> tuple[list[str], Theta]:
    """The notes of the rounds, and the model."""
    await scene.join()
    await history(scene)
    await scene.end()
    return scene.digests(), read_kept_model(scene.run_folder(ME)).theta


@pytest.mark.parametrize(
    ("manifest", "history", "applied"),
    [(UNION, with_a_wasted_round, 1), (MANIFEST, with_a_missed_and_a_void_round, 2)],
    ids=["two-phases", "one-phase"],
)
async def test_killed_at_every_event_it_ends_with_the_same_model(
    tmp_path: Path, manifest: Manifest, history: History, applied: int
) -> None:
    async with scene_of(tmp_path / "calm", manifest, TASK) as scene:
        expected = await play_to_the_end(scene, history)
    run = manifest.run_id
    async with (
        scene_of(tmp_path / "haunted", manifest, TASK) as scene,
        haunted(scene, lambda point: point.key.run == run) as saboteur,
    ):
        notes, model = await play_to_the_end(scene, history)
        check_sets(scene)
        assert scene.dead() == []
    assert notes == expected[0]
    assert len(notes) == applied
    np.testing.assert_array_equal(model, expected[1])
    killed = {(point.when, point.what) for point in saboteur.points}
    events = {
        *("Proposed", "Prepared", "KeysArrived", "ContributionArrived", "GroupAgreed", "PeerConfirmed"),
        *("RoundOrdered", "beginning", "Go", "Trained", "SharesSent", "SumArrived", "VoidAnnounced", "Decoded"),
        *("Concluded", "Closed", "RoundOver", "Ended", "forgotten"),
    }
    assert killed == {(when, what) for when in ("before", "after") for what in events}
    between = {(point.when, point.what) for point in saboteur.points if point.key == Key("admission", run)}
    assert {("before", "forgotten"), ("after", "forgotten")} <= between, "when the participation is there already"
    begun = {(point.when, point.what) for point in saboteur.points if point.key == Key("run", run)}
    assert {("before", "beginning"), ("after", "beginning")} <= begun, "when it is not yet, and when it just is"


SAMPLES = {SECOND: 40, THIRD: 7}


def told(scene: Scene, client: PartyId, kind: type[Message]) -> list[bytes]:
    """All contents of a kind that the real client has told a peer so far, in order."""
    heard = [each for each in scene.parties[client].heard if isinstance(each.body, kind)]
    if kind is GroupContribution:
        return [scene.peers.seals[client].open_contribution(each.sender, each.payload) for each in heard]
    return [each.payload for each in heard]


async def join_weighted(scene: Scene) -> None:
    """The peers deal shares of zero to all, and add their own numbers to what they were dealt."""
    await scene.pledge()
    await scene.tell(RunKeys(keys=scene.peers.run_keys))
    for client in scene.by_hand:
        await scene.hear(scene.parties[client], GroupContribution)
        mine = told(scene, client, GroupContribution)[0]
        scene.peers.parts |= {ME: mine[:CONTRIBUTION_BYTES], client: client.encode().ljust(CONTRIBUTION_BYTES)}
        await scene.deal(client, to=ME, part=scene.peers.parts[client] + bytes(SHARE_BYTES))
    group = scene.peers.agree()
    for client in scene.by_hand:
        await scene.hear(scene.parties[client], GroupConfirmed)
        mine = told(scene, client, GroupContribution)[0]
        share = int.from_bytes(mine[CONTRIBUTION_BYTES:], "big")
        mask = int.from_bytes(group.key_for(f"samples {client}")[:SHARE_BYTES], "big")
        masked = add((share, SAMPLES[client], mask)).to_bytes(SHARE_BYTES, "big")
        body = GroupConfirmed(confirmation=group.confirmation())
        await scene.say(scene.parties[client], body, round_number=0, phase="", payload=masked)
    await scene.hear(scene.coordinator, RunReady)


async def test_killed_at_every_event_of_its_admission_it_tells_one_sum_of_shares_and_finds_the_total(
    tmp_path: Path,
) -> None:
    """Two sums under one mask would give away their difference, and two sets of shares the number itself."""
    manifest = draw_up(TASK, weights="samples")
    struck: Counter[tuple[str, str]] = Counter()

    def chosen(point: Point) -> bool:
        # There are two events of a kind, one for each peer. Others that came again and again would kill for ever.
        if point.key != Key("admission", manifest.run_id):
            return False
        struck[point.when, point.what] += 1
        return struck[point.when, point.what] <= 2

    async with scene_of(tmp_path, manifest, TASK) as scene, haunted(scene, chosen):
        await join_weighted(scene)
        await scene.settle()
        contents = [set(told(scene, client, GroupContribution)) for client in scene.by_hand]
        sums = {each for client in scene.by_hand for each in told(scene, client, GroupConfirmed)}
        secrets = scene.trainer.context_of(manifest.run_id).secrets
        samples = TASK.learner(index=0, clients=3, seed=manifest.seed).samples

        assert [len(each) for each in contents] == [1, 1]
        assert len(sums) == 1
        assert secrets.cohort_samples() == samples + sum(SAMPLES.values())
        assert (scene.dead(), scene.failures) == ([], [])
        events = {"Prepared", "KeysArrived", "ContributionArrived", "GroupAgreed", "PeerConfirmed"}
        assert struck.keys() >= {(when, what) for when in ("before", "after") for what in events}


@pytest.mark.parametrize("when", ["before", "after"])
async def test_killed_when_it_is_admitted_it_takes_part_with_its_keys(tmp_path: Path, when: str) -> None:
    """Once only: another death would bring its keys back in another way."""

    def chosen(point: Point) -> bool:
        return (point.when, point.what, point.key.kind) == (when, "beginning", "run")

    async with (
        scene_of(tmp_path, MANIFEST, TASK) as scene,
        haunted(scene, lambda point: chosen(point) and point.key.run == MANIFEST.run_id) as saboteur,
    ):
        await scene.join()
        await scene.play_good_round(1)
        assert len(saboteur.points) == 1
        assert (scene.dead(), scene.failures) == ([], [])


@pytest.mark.parametrize(
    ("history", "applied"),
    [(with_a_loss, 2), (with_lost_sums, 1), (with_a_strayed_round, 1)],
    ids=["skipped-rounds", "lost-sums", "strayed"],
)
async def test_killed_at_every_event_it_catches_up_alike(tmp_path: Path, history: History, applied: int) -> None:
    manifest = draw_up(TASK, min_clients=3, chunk_bytes=2048)
    async with scene_of(tmp_path / "calm", manifest, TASK) as scene:
        expected = await play_to_the_end(scene, history)
    run = manifest.run_id
    async with scene_of(tmp_path / "haunted", manifest, TASK) as scene:
        await scene.join()
        await scene.settle()  # It says that it is ready before the store has all of the hand-over.
        events = CATCHING_UP | ({"OtherTranscript", "Strayed"} if history is with_a_strayed_round else set())
        async with haunted(scene, lambda point: point.key.run == run and point.what in events) as saboteur:
            await history(scene)
            await scene.settle()
            left = {key.kind for key in scene.trainer.runner.machines if key.run == run}
            assert left == {"run"}, "what is behind it stays behind it"
            await scene.end()
            check_sets(scene)
            assert (scene.dead(), scene.failures) == ([], [])
            notes, model = scene.digests(), read_kept_model(scene.run_folder(ME)).theta
    assert (notes, len(notes)) == (expected[0], applied)
    np.testing.assert_array_equal(model, expected[1])
    killed = {(point.when, point.what) for point in saboteur.points}
    assert killed >= {(when, what) for when in ("before", "after") for what in events}


async def test_a_round_that_was_abandoned_stays_so_after_a_stop_before_it_was_forgotten(tmp_path: Path) -> None:
    """A trainer that is stopped writes down that it has done this, and so does not do it again."""
    async with joined(tmp_path, draw_up(TASK, min_clients=3), TASK) as scene:
        saboteur = Saboteur(lambda point: (point.what, point.key.kind) == ("forgotten", "catchup"))
        await scene.start(ME, await scene.kill(), saboteur=saboteur)
        await lose_sums(scene)
        await saboteur.struck.wait()
        await scene.stop(ME)
        saboteur.retire()
        await scene.start(ME, scene.folders[ME])
        await scene.play_good_round(3)
        await scene.settle()
        assert not [key for key in scene.trainer.runner.machines if key.kind == "round"]


CATCHING_UP = {
    *("RoundOrdered", "beginning", "Lost", "AskDue", "PeerVouched", "SnapshotArrived", "SnapshotTaken"),
    *("CaughtUp", "Go", "forgotten"),
}


def at(when: str, what: str) -> Callable[[Point], bool]:
    return lambda point: (point.when, point.what) == (when, what)


# Before the first round ---------------------------------------------------------------------------------


async def test_a_client_has_one_key_and_one_part_of_the_group_secret_for_ever(tmp_path: Path) -> None:
    """Also if it does not come to know that it has dealt it."""
    async with scene_of(tmp_path, MANIFEST, TASK) as scene:
        await scene.pledge()
        async with haunted(scene, at("after", "KeysArrived")):
            await scene.exchange()
            heard = await scene.hear(scene.parties[SECOND], GroupContribution)
            await scene.confirm_all()
            await scene.hear(scene.coordinator, RunReady)
        parts = {scene.peers.seals[SECOND].open_contribution(ME, envelope.payload) for envelope, _ in heard}
        assert parts == {scene.peers.parts[ME]}
        await scene.restart()
        await scene.propose()  # Old news: it has joined, with the key that it made at first.
        await scene.play_good_round(1)


async def test_who_has_lost_what_it_knew_of_a_run_never_joins_it_again(tmp_path: Path) -> None:
    async with scene_of(tmp_path, MANIFEST, TASK) as scene:
        await scene.pledge()
        image = await scene.kill()
        for path in image.glob(f"{STATE_FILE}*"):
            path.unlink()
        await scene.start(ME, image)
        await scene.propose()
        assert (await scene.hear(scene.coordinator, RunRefused))[0][1].code is Code.PROTOCOL_JOINED_BEFORE
        assert len(await scene.hear(scene.coordinator, RunJoined)) == 1
        await scene.pledge(draw_up(TASK, nonce="1" * 32))


# Training -----------------------------------------------------------------------------------------------


async def test_training_that_was_cut_off_is_done_again_with_the_same_batches(tmp_path: Path) -> None:
    task = WatchedTask()
    task.gate = gate = threading.Event()
    async with joined(tmp_path, MANIFEST, task, demo_seed=None) as scene:
        await scene.open_round(1)
        await asyncio.to_thread(task.half_way.wait)
        await scene.restart(let_go=gate.set)
        await scene.play_good_rounds(1, 2)
    first, again, second = task.seeds
    assert first == again != second
    assert task.memories == [None, None, 2.0], "what the training that was cut off left is not gone on with"


async def test_training_that_the_process_died_in_twice_is_not_tried_again(tmp_path: Path) -> None:
    task, gates = WatchedTask(), [threading.Event() for _ in range(MOST_BEGINNINGS)]
    async with joined(tmp_path, MANIFEST, task, demo_seed=None) as scene:
        task.gate = gates[0]
        await scene.open_round(1)
        for gate, following in zip(gates, (*gates[1:], None), strict=True):
            await asyncio.to_thread(task.half_way.wait)
            await scene.settle()
            image = scene.folders[ME].with_name(f"died {len(task.seeds)} times")
            # As its disk was when it died: what it does when it is stopped is not in there.
            shutil.copytree(scene.folders[ME], image)
            task.half_way.clear()
            task.gate = following
            await scene.kill(let_go=gate.set)
            await scene.start(ME, image)
        await scene.play_good_rounds(1, 2)
        await scene.settle()
        notes = [json.loads(line) for line in scene.digests()]
        assert scene.failures == []
    assert [note.get("trouble") for note in notes] == [["training"], None]
    assert len(task.seeds) == MOST_BEGINNINGS + 1, "that of the second round"


# Sharing ------------------------------------------------------------------------------------------------


def count_copies(scene: Scene) -> dict[int, int]:
    """The number of times that each chunk has come to the first aggregator."""
    return {index: len(copies) for (_, _, index), copies in scene.sent_sets(scene.aggregators[0]).items()}


def encrypted_chunks(scene: Scene) -> dict[tuple[PartyId, str, int], set[bytes]]:
    """The different ciphertexts of each chunk that aggregators were sent, without the sealed keys before them."""
    sealed_key = seal_overhead(Kem.X25519) + CHUNK_KEY_BYTES
    found: dict[tuple[PartyId, str, int], set[bytes]] = {}
    for aggregator in scene.aggregators:
        for envelope in aggregator.heard:
            if isinstance(envelope.body, ShareChunk) and envelope.sender == ME:
                place = (aggregator.name, envelope.phase, envelope.body.index)
                found.setdefault(place, set()).add(envelope.payload[sealed_key:])
    return found


@pytest.mark.parametrize("sent", [0, 1, 2, 3])
async def test_a_share_set_that_was_sent_in_part_is_sent_again_and_is_the_same(tmp_path: Path, sent: int) -> None:
    """Each chunk goes to two aggregators, one after the other."""
    async with joined(tmp_path, MANIFEST, TASK, demo_seed=None) as scene:
        await scene.restart_while_sending(sent)
        await scene.play_good_round(1)
        check_sets(scene)
        copies = count_copies(scene)
        assert copies == {index: 2 if 2 * index < sent else 1 for index in copies}
        assert {len(each) for each in encrypted_chunks(scene).values()} == {1}, "a nonce serves one text"
        assert scene.dead() == []


@pytest.mark.parametrize(("when", "times"), [("before", 2), ("after", 1)])
async def test_a_share_set_is_sent_again_only_if_it_is_not_known_to_be_sent_and_nothing_is_trained_again(
    tmp_path: Path, when: str, times: int
) -> None:
    task = WatchedTask()
    async with joined(tmp_path, MANIFEST, task, demo_seed=None) as scene:
        chosen = {(when, "Trained"), (when, "SharesSent")}
        async with haunted(scene, lambda point: (point.when, point.what) in chosen) as saboteur:
            await scene.play_good_round(1)
        assert len(saboteur.points) == 2
        check_sets(scene)
        assert set(count_copies(scene).values()) == {times}
        await scene.play_good_round(2)
    assert task.memories == [None, 1.0]


@pytest.mark.parametrize("what", ["Decoded", "SharesSent"])
@pytest.mark.parametrize("when", ["before", "after"])
async def test_between_two_phases_it_goes_on_from_the_same_sums(tmp_path: Path, when: str, what: str) -> None:
    """The other real client is never killed: whatever it has in its transcripts, the first one has too."""
    async with joined(tmp_path, UNION, TASK, real=2) as scene:
        async with haunted(scene, at(when, what)):
            await scene.play_good_round(1)
            check_sets(scene)
        for phase in ("union", "signs"):
            sets = [await scene.sealed_shares(scene.aggregators[0], 1, phase, client=each) for each in scene.real]
            (transcript,) = {body.transcript for chunks in sets for _, body in chunks}
            assert len({len(chunks) for chunks in sets}) == 1, "they have one V"
            assert transcript
        assert scene.digests(ME) == scene.digests(SECOND)


# The end of a round -------------------------------------------------------------------------------------


def group_of(scene: Scene) -> GroupSecret:
    kept = scene.trainer._vault.get(scene.manifest.run_id, "group")
    assert kept is not None
    return GroupSecret.from_bytes(kept)


@pytest.mark.parametrize(
    ("when", "what"),
    [("after", "Decoded"), *((when, what) for what in ("Concluded", "forgotten") for when in ("before", "after"))],
)
async def test_a_round_is_concluded_once_and_the_secret_steps_once(tmp_path: Path, when: str, what: str) -> None:
    async with scene_of(tmp_path, MANIFEST, TASK) as scene:
        group = await scene.join()
        async with haunted(scene, lambda point: point.key.round == 1 and at(when, what)(point)) as saboteur:
            await scene.play_good_round(1)
            await scene.settle()
        assert len(saboteur.points) == 1
        assert len(scene.digests()) == 1
        group.step()
        assert (group_of(scene).round, group_of(scene).key_for("model")) == (2, group.key_for("model"))
        told = {body.model_hmac for _, body in await scene.hear(scene.coordinator, RoundApplied, number=1)}
        assert len(told) == 1
        await scene.play_good_round(2)


async def test_void_rounds_count_across_a_restart(tmp_path: Path) -> None:
    async with joined(tmp_path, UNION, TASK) as scene:
        await scene.play_void_round(1)
        await scene.restart()
        await scene.play_void_round(2)
        assert await scene.failure() is Code.POLICY_VOID_ROUNDS


# Disks --------------------------------------------------------------------------------------------------


async def test_a_disk_that_is_full_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once when the update is to be kept, once when the model is."""
    task, failures = WatchedTask(), [errno.ENOSPC] * 2

    @contextmanager
    def write(path: Path) -> Iterator[BinaryIO]:
        if failures and task.seeds:
            raise OSError(failures.pop(), os.strerror(errno.ENOSPC))
        with replacing(path) as stream:
            yield stream

    monkeypatch.setattr("hubbub.runtime.effects.PAUSE_S", 0.0)
    async with joined(tmp_path, MANIFEST, task, demo_seed=None) as scene:
        with monkeypatch.context() as patch:
            patch.setattr(saved_model, "replacing", write)
            await scene.play_good_round(1)
        assert failures == []
        await scene.play_good_round(2)
        assert len(scene.digests()) == 2
        assert scene.failures == []
    first, again, *_ = task.seeds
    assert first == again


async def test_a_disk_that_is_long_full_loses_no_sum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More attempts than all that are fetched at a time may be delivered."""
    left, real = [10 * DELIVERY_LIMIT], spool._write

    def write(slot: Path, number: int, name: bytes, payload: bytes) -> None:
        if left[0]:
            left[0] -= 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(slot, number, name, payload)

    monkeypatch.setattr("hubbub.runtime.effects.PAUSE_S", 0.0)
    async with joined(tmp_path, MANIFEST, TASK) as scene:
        monkeypatch.setattr(spool, "_write", write)
        await scene.play_good_round(1)
        assert left == [0]
        await scene.play_good_round(2)
        assert len(scene.digests()) == 2
        assert scene.failures == []
        assert scene.dead() == []


def flip(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


@pytest.mark.parametrize("damage", [flip, Path.unlink], ids=["flipped", "gone"])
async def test_a_model_that_the_disk_lost_ends_the_run_and_the_file_is_named(
    tmp_path: Path, damage: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    """To go on from the initial model instead would be to take part with another than everybody has."""
    async with joined(tmp_path, MANIFEST, TASK) as scene:
        await scene.play_good_round(1)
        image = await scene.kill()
        (kept,) = image.rglob("state-*.safetensors")
        damage(kept)
        await scene.start(ME, image)
        await scene.open_round(2)
        assert await scene.failure() is Code.DISK_FAILED
        assert not [
            each for aggregator in scene.aggregators for each in scene.sent_sets(aggregator) if each[0] == 2
        ]
    assert f"failed: {kept.parent}/state-" in caplog.text
    assert "look whether its disk is failing, and begin another run" in caplog.text


async def test_a_sum_that_the_disk_changed_is_no_false_sum(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Aggregators are not to be blamed for what happened here."""
    write, slots = spool._write, list[Path]()

    def write_and_flip(slot: Path, number: int, name: bytes, payload: bytes) -> None:
        write(slot, number, name, payload)
        slots.append(slot)
        flip(slot)

    async with joined(tmp_path, MANIFEST, TASK) as scene:
        monkeypatch.setattr(spool, "_write", write_and_flip)
        await scene.open_round(1)
        for aggregator in scene.aggregators:
            await scene.release(aggregator, 1)
        assert await scene.failure() is Code.DISK_FAILED
        assert scene.count(RejectReason.FALSE_SUM) == 0
    assert any(f"failed: {slot} does not hold" in caplog.text for slot in slots)


def files_with(folder: Path, secret: bytes) -> set[str]:
    return {path.name for path in folder.rglob("*") if path.is_file() and secret in path.read_bytes()}


async def test_secrets_are_in_the_state_alone_and_go_when_they_have_served(tmp_path: Path) -> None:
    state = {STATE_FILE, f"{STATE_FILE}-wal", f"{STATE_FILE}-shm"}
    async with joined(tmp_path, MANIFEST, TASK, demo_seed=None) as scene:
        await scene.open_round(1)
        for aggregator in scene.aggregators:
            await scene.sealed_shares(aggregator)
        vault, run, folder = scene.trainer._vault, MANIFEST.run_id, scene.folders[ME]
        names = ("run key", "client secret", "contribution", "outbox 1 signs", "group")
        found = {name: vault.get(run, name) or b"" for name in names}
        # The rest of what is kept of the group secret, its round and its confirmation, is no secret.
        found["group"] = found["group"][8:40]
        for name, secret in found.items():
            assert len(secret) >= 32, name
            assert set() < files_with(folder, secret) <= state, name

        await scene.play_good_round(1)
        await scene.settle()
        for name in ("contribution", "outbox 1 signs", "group"):
            assert files_with(folder, found[name]) == set(), f"{name} is of no use any more"
        found["second group"] = group_of(scene).to_bytes()[8:40]
        assert set() < files_with(folder, found["second group"]) <= state

        await scene.end()
        for name, secret in found.items():
            assert files_with(folder, secret) == set(), name
        left = {path.name for path in scene.run_folder(ME).iterdir()}
        assert left == {"model.safetensors", "model.sha256", "rounds.jsonl"}
