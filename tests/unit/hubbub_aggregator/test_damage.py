"""An aggregator whose disk has damaged a share set asks for the same one again, and releases the same sum."""

from __future__ import annotations

from pathlib import Path

import pytest

from hubbub.errors import Code, RejectReason
from hubbub.ids import PartyId
from hubbub.machine.effects import Key
from hubbub.messages.rounds import PhaseReleased
from hubbub.messages.runs import PartyFailed
from hubbub.messages.shares import MAX_RESENDS, ResendSet, SetReceived
from hubbub_aggregator.events import AnswerOverdue
from hubbub_aggregator.journal import PhaseOutcome
from support import compact_scene
from support.aggregator_scene import CLIENTS, PLAN, Scene, make_set, running_scene, scene_of
from support.compact_scene import CompactScene, running_compact
from support.damage import DAMAGES, Damage, damage_writes, flip, full_slots

ANNA, BERT, CARL = CLIENTS


def phase_of(scene: Scene) -> Key:
    return Key("phase", scene.run, 1, "signs")


def count_damaged(scene: Scene) -> float | None:
    return scene.aggregator.counters.registry.get_sample_value("hubbub_sets_damaged_total")


async def hear_request(scene: Scene, client: PartyId, count: int = 1) -> None:
    heard = await scene.clients[client].hear(ResendSet, count, round_number=1)
    assert {(each.phase, body.set_id) for each, body in heard} == {("signs", make_set(client, 1).set_id)}


async def send_again(scene: Scene, client: PartyId, count: int = 1) -> None:
    """Answer the request as a client does: all chunks of the set."""
    await hear_request(scene, client, count)
    for index in range(len(PLAN)):
        await scene.send_chunk(client, index)


async def release_from_damaged(scene: Scene, damage: Damage) -> None:
    for slot in full_slots(scene.folder):
        damage(slot)
    await scene.close(1)
    for client in CLIENTS:
        await send_again(scene, client)
    await scene.check_sum(1)
    await scene.coordinator.hear(PhaseReleased)


async def hear_failure(scene: Scene) -> Code:
    ((_, failed),) = await scene.coordinator.hear(PartyFailed)
    return failed.code


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("restarts", [False, True])
async def test_sets_that_are_damaged_before_they_are_added_come_again_and_the_sum_is_the_same(
    tmp_path: Path, damage: Damage, caplog: pytest.LogCaptureFixture, *, restarts: bool
) -> None:
    async with scene_of(tmp_path) as scene:
        async with scene.start():
            await scene.join()
            await scene.send_sets(1)
            receipts, slots = await scene.hear_receipts(), full_slots(tmp_path)
            if not restarts:
                await release_from_damaged(scene, damage)
        if restarts:
            async with scene.start():
                await release_from_damaged(scene, damage)
        assert count_damaged(scene) == len(CLIENTS)
        assert await scene.hear_receipts() == receipts
        assert not [each for each in scene.coordinator.heard if isinstance(each.body, PartyFailed)]
        assert scene.aggregator.counters.rejections(RejectReason.BROKEN_SEAL) == 0
    assert any(f"{place} " in caplog.text for place in (*slots, slots[0].parent))
    assert "is asked for its share set again; look whether the disk fails" in caplog.text


@pytest.mark.parametrize("damage", DAMAGES)
async def test_a_chunk_that_is_damaged_before_it_is_checked_comes_again_and_then_earns_the_receipt(
    tmp_path: Path, damage: Damage, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_scene(tmp_path) as scene:
        with monkeypatch.context() as patch:
            damage_writes(patch, damage, lambda ref: ref.sender == ANNA and ref.index == 0)
            for index in range(len(PLAN)):
                await scene.send_chunk(ANNA, index)
            await hear_request(scene, ANNA)
        assert not [each for each in scene.coordinator.heard if isinstance(each.body, SetReceived)]
        await send_again(scene, ANNA)
        await scene.send_sets(1)
        await scene.close(1)
        await scene.check_sum(1)
        assert count_damaged(scene) == 1


async def test_a_restart_while_it_waits_asks_once_more(tmp_path: Path) -> None:
    async with scene_of(tmp_path) as scene:
        async with scene.start():
            await scene.join()
            await scene.send_sets(1)
            for slot in full_slots(tmp_path):
                flip(slot)
            await scene.close(1)
            await hear_request(scene, ANNA)
            await scene.send_chunk(ANNA, 0)
            await scene.empty_inbox()
        async with scene.start() as aggregator:
            await send_again(scene, ANNA, 2)
            await send_again(scene, BERT)
            await send_again(scene, CARL)
            await scene.check_sum(1)
            await scene.coordinator.hear(PhaseReleased)
            assert aggregator.journal.find(phase_of(scene)) == PhaseOutcome(CLIENTS)


async def test_what_comes_instead_of_the_set_is_refused_and_nothing_of_the_release_changes(tmp_path: Path) -> None:
    async with running_scene(tmp_path) as scene:
        await scene.send_sets(1, (ANNA, BERT))
        await scene.send_chunk(CARL, 0)
        for slot in full_slots(tmp_path):
            flip(slot)
        await scene.close(1, (ANNA, BERT))
        await hear_request(scene, ANNA)
        for index in range(len(PLAN)):
            other = make_set(ANNA, 2)
            sealed = scene.seal(ANNA, index, other.share(index), set_id=other.set_id)
            await scene.send_chunk(ANNA, index, set_id=other.set_id, payload=sealed)
            await scene.send_chunk(CARL, index)
        assert set(await scene.bury(len(PLAN))) == {RejectReason.SECOND_SET}
        await send_again(scene, ANNA)
        await send_again(scene, BERT)
        await scene.check_sum(1, (ANNA, BERT))
        await scene.coordinator.hear(PhaseReleased)
        assert scene.aggregator.journal.find(phase_of(scene)) == PhaseOutcome((ANNA, BERT))
        assert scene.late("share-chunk") == len(PLAN), "a client that was left out is late as ever"
        assert not [each for each in scene.clients[CARL].heard if isinstance(each.body, ResendSet)]


@pytest.mark.parametrize("silent", [True, False])
async def test_a_set_that_does_not_come_again_or_comes_broken_ends_the_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, *, silent: bool
) -> None:
    async with running_scene(tmp_path) as scene:
        await scene.send_sets(1)
        for slot in full_slots(tmp_path):
            flip(slot)
        await scene.close(1)
        await hear_request(scene, ANNA)
        if silent:
            await scene.aggregator.runner.feed(phase_of(scene), AnswerOverdue(at_s=0.0))
        else:
            await scene.send_chunk(ANNA, 0, payload=bytes(len(scene.seal(ANNA, 0))))
        assert await hear_failure(scene) is Code.DISK_FAILED
        assert scene.aggregator.counters.rejections(RejectReason.BROKEN_SEAL) == (not silent)
    assert (f"{ANNA} did not send again what the disk has damaged" in caplog.text) is silent


async def test_a_disk_that_damages_the_set_each_time_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_scene(tmp_path) as scene:
        damage_writes(monkeypatch, flip, lambda ref: ref.sender == ANNA)
        for index in range(len(PLAN)):
            await scene.send_chunk(ANNA, index)
        for count in range(1, MAX_RESENDS + 1):
            await send_again(scene, ANNA, count)
        assert await hear_failure(scene) is Code.DISK_FAILED
    assert "look whether its disk is failing, and begin another run" in caplog.text


# On the compact wire --------------------------------------------------------------------------------------


async def send_full_again(scene: CompactScene) -> None:
    """Only the one share that is sent in full lies on disk."""
    client = scene.owes_all()
    await scene.clients[client].hear(ResendSet, round_number=1)
    for index in range(len(compact_scene.PLAN)):
        await scene.send_full(client, index)


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("combines", [False, True])
async def test_a_damaged_share_comes_again_on_the_compact_wire(
    tmp_path: Path, damage: Damage, *, combines: bool
) -> None:
    async with running_compact(tmp_path, combines=combines) as scene:
        await scene.deal_all()
        for slot in full_slots(tmp_path):
            damage(slot)
        await scene.order_close()
        if combines:
            await scene.send_partials()
        await send_full_again(scene)
        await scene.check_release()
        asked = [name for name, each in scene.clients.items() for e in each.heard if isinstance(e.body, ResendSet)]
        assert asked == [scene.owes_all()]


async def test_a_damaged_sum_of_another_aggregator_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_compact(tmp_path, combines=True) as scene:
        await scene.deal_all()
        damage_writes(monkeypatch, flip, lambda ref: ref.set_id == "partial")
        await scene.order_close()
        await scene.send_partials()
        assert await hear_failure(scene) is Code.DISK_FAILED
