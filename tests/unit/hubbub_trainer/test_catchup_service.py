"""A real trainer whose inbox has lost something, among peers made by hand; and one that such a peer asks."""

import asyncio
import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest

from hubbub.crypto.key_derivation import GroupSecret
from hubbub.errors import RejectReason
from hubbub.ids import PartyId, RunId
from hubbub.machine.effects import Key
from hubbub.messages.rounds import RoundApplied, RoundDropped
from hubbub.messages.shares import ShareChunk
from hubbub.messages.snapshots import ModelVouched, SnapshotChunk, SnapshotRequested, Voucher, count_chunks
from hubbub.protocol.layout import pack_chunk, plan_chunks
from hubbub.protocol.packing import residue_type
from hubbub.runtime.publisher import overlapping
from hubbub.runtime.runner import Transition
from hubbub.strategies.base import Theta
from hubbub.transport.base import Address, Transport
from hubbub_trainer import snapshots
from hubbub_trainer.events import SnapshotTaken
from hubbub_trainer.learning.synthetic import SyntheticTask
from hubbub_trainer.phases import catchup
from hubbub_trainer.phases import round as rounds
from hubbub_trainer.run_context import RunContext
from hubbub_trainer.saved_model import read_kept_model
from hubbub_trainer.workspace import digest, model_hmac
from support.aio import until
from support.builders import TRANSCRIPT, make_claims, make_vectors
from support.frames import decode
from support.held_task import HeldTask, Silence
from support.spooled import spooled_in
from support.trainer_scene import Release, Scene, draw_up, scene_of
from support.wrapping import WrappedTransport

TASK = SyntheticTask(1_003)
MANIFEST = draw_up(TASK, min_clients=3)
ME, SECOND, THIRD = MANIFEST.clients
MODEL, OTHER_MODEL = TASK.initial_model(8), TASK.initial_model(9)
joined = partial(scene_of, joined=True)


def find_states(scene: Scene, kind: str) -> dict[int, str]:
    """The states of its machines of a kind, by round."""
    return {key.round: live.state.value for key, live in scene.trainer.runner.machines.items() if key.kind == kind}


def count_shares(scene: Scene, number: int) -> int:
    heard = [envelope for party in scene.aggregators for envelope in party.heard]
    return sum(isinstance(envelope.body, ShareChunk) and envelope.round == number for envelope in heard)


def spooled(scene: Scene) -> list[str]:
    """Chunks of snapshots."""
    return [name for name in spooled_in(scene.folders[ME] / "spool") if ".after-" in name]


# Lost ---------------------------------------------------------------------------------------------------


async def test_a_round_after_one_that_never_was_is_not_begun_before_a_peers_model_is_here(tmp_path: Path) -> None:
    async with joined(tmp_path, MANIFEST, TASK) as scene:
        await scene.play_good_round(1)
        await scene.open_round(4)
        for peer in (SECOND, THIRD):
            ((_, request),) = await scene.hear(scene.parties[peer], SnapshotRequested)
            assert request == SnapshotRequested(after=1, giver=SECOND)
        await scene.send_snapshot(SECOND, 3, MODEL)
        await scene.vouch(3, MODEL, by=[SECOND])
        await scene.settle()
        assert (find_states(scene, "round"), find_states(scene, "catchup")) == ({4: "queued"}, {3: "asking"})
        assert count_shares(scene, 4) == 0
        await scene.vouch(3, MODEL, by=[THIRD])
        await scene.play_good_round(4)
        assert (len(scene.digests()), scene.dead(), scene.failures) == (2, [], [])
        assert [entry.fields["up_to"] for entry in await scene.read_log() if entry.kind == "caught-up"] == [3]


async def test_what_is_left_of_a_round_whose_order_was_lost_is_nobodys_fault(tmp_path: Path) -> None:
    async with joined(tmp_path, MANIFEST, TASK) as scene:
        await scene.open_round(3)
        for number, queued in ((2, {3}), (4, {3, 4})):  # The order of round 4 is on its way.
            await scene.void(number)
            await scene.settle()
            assert (scene.dead(), find_states(scene, "round")) == ([], dict.fromkeys(sorted(queued), "queued"))
        await scene.void(5)
        await scene.settle()
        assert scene.dead() == [RejectReason.TOO_EARLY.value] * 2, "no more than one round is ahead of its order"


async def test_what_belonged_to_the_rounds_before_is_gone(tmp_path: Path) -> None:
    """The accumulator, the optimiser's memory, the keys of those rounds and what was spooled."""
    gate = Silence((0, 2))
    async with joined(tmp_path, MANIFEST, HeldTask(TASK, gate)) as scene:
        group = scene.peers.agree()
        await scene.play_good_round(1)
        assert scene.space_of().accumulator.any()
        await scene.open_round(4)
        await scene.hand_over(SECOND, 3, MODEL)
        await wait_for_state(scene, "round", {4: "training"})
        space = scene.space_of()
        assert space.theta.tobytes() == MODEL.tobytes()
        assert (space.applied, space.memory, bool(space.accumulator.any())) == (3, None, False)
        group.advance_to(4)
        kept = scene.trainer._vault.get(scene.manifest.run_id, "group")
        assert kept is not None
        for mine in (space.group_secret, GroupSecret.from_bytes(kept)):
            assert (mine.round, mine.key_for("model")) == (4, group.key_for("model"))
        assert not spooled(scene)
        await scene.restart(let_go=gate.lift_all)  # What was taken survives.
        await scene.play_good_round(4)
        await scene.end()
        assert len(scene.digests()) == 2
        assert digest(read_kept_model(scene.run_folder(ME)).theta) in scene.digests()[1]


async def wait_for_state(scene: Scene, kind: str, expected: dict[int, str]) -> None:
    await until(lambda: find_states(scene, kind) == expected)


@pytest.mark.parametrize(
    ("sealed_for", "model", "reason"),
    [(2, OTHER_MODEL, RejectReason.DIFFERENT_MODEL), (1, MODEL, RejectReason.BROKEN_SEAL)],
    ids=["another model", "sealed for another place"],
)
async def test_another_model_is_refused_and_counted_and_the_next_peer_is_asked(
    tmp_path: Path, sealed_for: int, model: Theta, reason: RejectReason
) -> None:
    async with joined(tmp_path, MANIFEST, TASK) as scene:
        await scene.open_round(3)
        await scene.hear(scene.parties[SECOND], SnapshotRequested)
        before = scene.space_of().theta
        await scene.vouch(2, MODEL)
        await scene.send_snapshot(SECOND, 2, model, sealed_for=sealed_for)
        (_, (_, second)) = await scene.hear(scene.parties[THIRD], SnapshotRequested, each=2)
        assert second.giver == THIRD
        assert scene.count(reason) == 1
        assert (scene.space_of().theta is before, scene.space_of().applied) == (True, 0)
        assert not spooled(scene), "what was refused is gone"
        await scene.send_snapshot(THIRD, 2, MODEL)
        await scene.play_good_round(3)
        assert scene.failures == []


async def test_a_run_that_ends_while_we_ask_leaves_no_model_and_says_so(tmp_path: Path) -> None:
    async with joined(tmp_path, MANIFEST, TASK) as scene:
        await scene.play_good_round(1)
        await scene.hand_over(SECOND, 3, MODEL)  # Nobody asked for it.
        await scene.play_good_round(2)
        assert (len(scene.digests()), scene.dead(), spooled(scene)) == (2, [], [])
        await scene.open_round(5)
        await scene.hear(scene.parties[SECOND], SnapshotRequested)
        await scene.end()
        await check_ended_without_a_model(scene)
        assert find_states(scene, "round") == find_states(scene, "catchup") == {}


async def check_ended_without_a_model(scene: Scene) -> None:
    (*_, last) = await scene.read_log()
    assert (last.kind, last.fields["outcome"]) == ("ended", "failed")
    assert not (scene.run_folder(ME) / "model.safetensors").exists()


# Told something else than the others --------------------------------------------------------------------


OTHER_TRANSCRIPT = "7b" * 32
UNION = MANIFEST.model_copy(update={"strategy": "sec-union", "q": 3})


async def release_by(scene: Scene, transcript: str, members: Sequence[PartyId]) -> None:
    """The union of round 1, released over share sets with this transcript."""
    for aggregator in scene.aggregators:
        await scene.release(aggregator, 1, members, phase="union", transcript=transcript)


@pytest.mark.parametrize("members", [MANIFEST.clients, (SECOND, THIRD)], ids=["as a member", "left out"])
async def test_who_was_told_something_else_says_nothing_of_the_round_and_takes_a_peers_model(
    tmp_path: Path, members: tuple[PartyId, ...]
) -> None:
    manifest = UNION.model_copy(update={"min_clients": 2})
    async with joined(tmp_path, manifest, TASK) as scene:
        await scene.open_round(1)
        await release_by(scene, OTHER_TRANSCRIPT, members)
        ((_, request),) = await scene.hear(scene.parties[SECOND], SnapshotRequested)
        assert request == SnapshotRequested(after=0, giver=SECOND)
        await scene.restart()
        await release_by(scene, OTHER_TRANSCRIPT, members)  # Delivered twice.
        await scene.void(1)
        await scene.settle()

        assert find_states(scene, "round") == {}
        assert (scene.digests(), scene.failures, scene.dead()) == ([], [], [])
        heard = [envelope for party in (*scene.aggregators, scene.coordinator) for envelope in party.heard]
        assert not [each for each in heard if each.phase == "signs"]
        assert not [each for each in heard if isinstance(each.body, RoundApplied | RoundDropped)]
        log = await scene.read_log()
        refused = [entry.fields["reason"] for entry in log if entry.kind == "refused"]
        assert refused == [RejectReason.DIFFERENT_TRANSCRIPT] * len(scene.aggregators)
        assert not [entry for entry in log if entry.kind == "released"]

        await scene.hand_over(SECOND, 1, MODEL)
        await scene.open_round(2)
        await scene.sealed_shares(scene.aggregators[0], 2, "union")
        assert (scene.space_of().applied, scene.space_of().theta.tobytes()) == (1, MODEL.tobytes())


async def release_blindly(scene: Scene, members: tuple[PartyId, ...]) -> None:
    """Sums of round 1, which came to be without this client: zeros, over a transcript that it does not know."""
    vectors = make_vectors(scene.manifest)
    zeros = [np.zeros(vector.length, residue_type(vector.modulus)) for vector in vectors]
    said = {"members": members, "vectors": make_claims(scene.manifest), "transcript": TRANSCRIPT}
    for aggregator in scene.aggregators:
        release = Release(scene, aggregator, ME)
        for index, chunk in enumerate(plan_chunks(vectors, scene.manifest.chunk_bytes)):
            packed = pack_chunk(chunk, vectors, [zeros[each.vector][each.elements] for each in chunk])
            await release.send(index, packed, said)


async def test_who_was_away_and_comes_back_to_sums_of_something_else_is_no_exception(tmp_path: Path) -> None:
    async with joined(tmp_path, MANIFEST.model_copy(update={"min_clients": 2}), TASK) as scene:
        await release_blindly(scene, (SECOND, THIRD))
        await scene.open_round(1)
        await scene.hear(scene.parties[SECOND], SnapshotRequested)
        await scene.settle()
        assert (find_states(scene, "round"), count_shares(scene, 1)) == ({}, 0)
        assert scene.count(RejectReason.DIFFERENT_TRANSCRIPT) == len(scene.aggregators)
        assert (scene.digests(), scene.failures, scene.dead()) == ([], [], [])


async def test_who_was_told_something_else_in_a_run_that_has_ended_leaves_without_a_model(tmp_path: Path) -> None:
    async with joined(tmp_path, UNION, TASK) as scene:
        await scene.open_round(1)
        await scene.sealed_shares(scene.aggregators[0], 1, "union")
        await scene.end(last_round=1)
        await release_by(scene, OTHER_TRANSCRIPT, MANIFEST.clients)
        await wait_for_state(scene, "run", {})
        await check_ended_without_a_model(scene)


# Overtaken while it worked ------------------------------------------------------------------------------


async def test_training_for_a_round_that_was_overtaken_ends_quietly(tmp_path: Path) -> None:
    gate = Silence((0, 1))
    async with joined(tmp_path, MANIFEST, HeldTask(TASK, gate)) as scene:
        await scene.open_round(1)
        await wait_for_state(scene, "round", {1: "training"})
        await scene.open_round(3)
        await scene.hand_over(SECOND, 2, MODEL)
        await wait_for_state(scene, "catchup", {2: "checking"})
        gate.lift_all()
        await scene.play_good_round(3)
        await scene.settle()
        assert (scene.failures, scene.dead(), find_states(scene, "round")) == ([], [], {})


async def test_training_that_waits_for_its_turn_is_not_begun_for_an_overtaken_round(tmp_path: Path) -> None:
    """Other runs of this trainer may have the only slot."""
    slots = asyncio.Semaphore(1)
    async with joined(tmp_path, MANIFEST, TASK, slots=slots) as scene:
        async with slots:
            await scene.open_round(1)
            await wait_for_state(scene, "round", {1: "training"})
            await scene.open_round(3)
            await scene.hand_over(SECOND, 2, MODEL)
            await wait_for_state(scene, "round", {3: "training"})
        await scene.play_good_round(3)
        assert (scene.failures, scene.dead(), count_shares(scene, 1)) == ([], [], 0)


async def test_sums_beside_a_peers_model_break_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The round wants to conclude when its keys are gone, before it is known that the model is another."""
    taking, concluding, concluded = threading.Event(), threading.Event(), threading.Event()
    read, take = snapshots.read, snapshots.take_snapshot

    def read_slowly(run: RunContext, key: Key, *, client: PartyId, number: int) -> list[bytes]:
        taking.set()
        concluding.wait()
        return read(run, key, client=client, number=number)

    def take_slowly(run: RunContext, key: Key, job: catchup.TakeSnapshot) -> SnapshotTaken:
        taken = take(run, key, job)
        concluded.wait()
        return taken

    def watch(moment: Transition) -> None:
        if moment.before is rounds.State.CONCLUDING:
            concluded.set()

    monkeypatch.setattr(snapshots, "read", read_slowly)
    monkeypatch.setattr(snapshots, "take_snapshot", take_slowly)
    async with joined(tmp_path, MANIFEST, TASK) as scene:
        scene.observer = watch
        try:
            for number in (1, 2, 3):
                await scene.open_round(number)
            await scene.hear(scene.parties[SECOND], SnapshotRequested)
            await scene.hand_over(SECOND, 2, MODEL)
            await asyncio.to_thread(taking.wait)
            for aggregator in scene.aggregators:
                await scene.release(aggregator, 1)
            await wait_for_state(scene, "round", {1: "concluding", 2: "queued", 3: "queued"})
            concluding.set()
            await asyncio.to_thread(concluded.wait)
        finally:
            concluding.set()
            concluded.set()
        await scene.play_good_round(3)
        assert (scene.failures, scene.dead()) == ([], [])
        assert (len(scene.digests()), scene.space_of().applied) == (1, 3)


class SlowShares(WrappedTransport):
    """Another transport; the second chunk of a share set and all that follow wait for a gate."""

    def __init__(self, inner: Transport) -> None:
        super().__init__(inner)
        self._left = 1
        self.waiting = asyncio.Event()
        self.gate = asyncio.Event()

    async def publish(self, address: Address, body: bytes) -> None:
        if isinstance(decode(body).body, ShareChunk):
            if not self._left:
                self.waiting.set()
                await self.gate.wait()
            self._left = max(0, self._left - 1)
        await super().publish(address, body)


async def test_nothing_more_is_sent_of_a_round_that_was_overtaken(tmp_path: Path) -> None:
    """Above all no second set: the name of the first went with the round."""
    slow: list[SlowShares] = []

    def slow_down(inner: Transport) -> Transport:
        slow.append(SlowShares(inner))
        return slow[-1]

    with patch("hubbub_trainer.round_jobs.overlapping", partial(overlapping, 1)):
        async with joined(tmp_path, MANIFEST, TASK) as scene:
            await scene.restart(wrap=slow_down)
            await scene.open_round(1)
            await slow[0].waiting.wait()
            await scene.open_round(3)
            await scene.hand_over(SECOND, 2, MODEL)
            await wait_for_state(scene, "round", {3: "sharing"})
            slow[0].gate.set()
            await scene.play_good_round(3)
            assert count_shares(scene, 1) == 2, "one was out, one was on its way"
            assert count_shares(scene, 3) > 2
            sets = {copies[0][0] for server in scene.aggregators for copies in scene.sent_sets(server).values()}
            assert len(sets) == 2, "one of each round"
            assert scene.failures == []


# Giving -------------------------------------------------------------------------------------------------


def check_given(scene: Scene, number: int) -> None:
    """The third client was sent our model and history, as they are."""
    chunks = {
        envelope.body.index: scene.peers.seals[THIRD].open_snapshot(
            number, ME, envelope.body.index, envelope.payload
        )
        for envelope in scene.parties[THIRD].heard
        if isinstance(envelope.body, SnapshotChunk) and envelope.round == number
    }
    theta, history, _ = snapshots.join(MANIFEST, [chunks[index] for index in sorted(chunks)], number=number)
    assert theta.tobytes() == scene.space_of().theta.tobytes()
    assert history == scene.space_of().history
    assert history, "the rounds of the scene move the model"


async def test_a_peer_that_asks_is_told_and_given_the_model_of_the_last_round(tmp_path: Path) -> None:
    async with joined(tmp_path, MANIFEST, TASK) as scene:
        third = scene.parties[THIRD]
        await scene.play_good_round(1)
        await scene.play_void_round(2)
        await scene.ask_for_model(THIRD, after=0, giver=SECOND)
        ((_, said),) = await scene.hear(third, ModelVouched)
        await scene.settle()
        assert not scene.heard(third, SnapshotChunk), "who is not asked for its model vouches and sends none"
        group, space = scene.peers.agree(), scene.space_of()
        for voucher, number in zip(said.vouchers, (1, 2), strict=True):
            group.advance_to(number)
            # Also after a void round, whose model is the one before.
            found = model_hmac(group, digest(space.theta), space.history)
            assert voucher == Voucher(round=number, released=1, model_hmac=found)
        assert not scene.heard(scene.parties[SECOND], ModelVouched)
        await scene.restart()
        await scene.ask_for_model(THIRD, after=0)
        await scene.hear(third, SnapshotChunk, each=count_chunks(MANIFEST, 2))
        check_given(scene, 2)


async def test_who_is_in_no_run_with_us_is_given_nothing(tmp_path: Path) -> None:
    async with joined(tmp_path, MANIFEST, TASK) as scene:
        await scene.play_good_round(1)
        stranger = scene.aggregators[0]
        body = SnapshotRequested(after=0, giver=ME)
        await scene.say(stranger, body, round_number=1, phase="")
        other_run = RunId("ab" * 32)
        await scene.parties[THIRD].say(body, to=ME, role=scene.parties[THIRD].role, run=other_run, round_number=1)
        await scene.settle()
        assert len(scene.dead()) == 2
        for party in scene.parties.values():
            assert not scene.heard(party, SnapshotChunk)
            assert not scene.heard(party, ModelVouched)
