"""An aggregator may ask a client for its share set again; a corrupt one gains nothing by it.

It gets three more copies of what it has, to the bit, and nothing of another phase, round or aggregator.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from hubbub.errors import RejectReason
from hubbub.ids import SetId
from hubbub.messages.manifest import Manifest
from hubbub.messages.rounds import RoundApplied
from hubbub.messages.shares import MAX_RESENDS, DenseShareChunk, ResendSet, ShareSeed
from hubbub_trainer.learning.synthetic import SyntheticTask
from hubbub_trainer.workspace import digest
from support.aio import until
from support.builders import SET_ID, make_manifest
from support.stand_in import StandIn
from support.trainer_scene import Scene, scene_of

TASK = SyntheticTask(1_003)
REQUESTS = 50


def draw_up(strategy: str = "no-union", wire: str = "paper") -> Manifest:
    return make_manifest(
        clients=3,
        servers=2,
        min_clients=2,
        strategy=strategy,
        wire=wire,
        rho=0.1,
        parameters=TASK.count_parameters(),
        task=TASK.name,
        initial_model_sha256=digest(TASK.initial_model(7)),
        seed=7,
        chunk_bytes=256,
    )


@asynccontextmanager
async def client_in_round(folder: Path, manifest: Manifest) -> AsyncIterator[Scene]:
    """A client that was told to train; no aggregator is honest."""
    async with scene_of(folder, manifest, TASK) as scene:
        await scene.join()
        await scene.open_round(1)
        yield scene


async def find_set(scene: Scene, aggregator: StandIn, phase: str = "signs") -> SetId:
    ((_, body), *_) = await scene.sealed_shares(aggregator, 1, phase)
    return body.set_id


async def ask(
    scene: Scene, party: StandIn, set_id: str, *, number: int = 1, phase: str = "signs", times: int = 1
) -> None:
    """Ask, and wait until the client has answered."""
    for _ in range(times):
        await scene.say(party, ResendSet(set_id=SetId(set_id)), round_number=number, phase=phase)
    await settle(scene)


async def settle(scene: Scene) -> None:
    """Return when the client has done all that it was asked for."""
    await scene.settle()
    await until(lambda: not scene.trainer.runner.effects.jobs)


def count_chunks(party: StandIn) -> int:
    return sum(isinstance(each.body, DenseShareChunk | ShareSeed) for each in party.heard)


def copies(scene: Scene, aggregator: StandIn, phase: str = "signs") -> Sequence[int]:
    """How often each chunk of a phase came; all copies of one are the same set, transcript and share."""
    found = [each for (_, name, _), each in scene.sent_sets(aggregator).items() if name == phase]
    assert all(len(set(each)) == 1 for each in found), "another share of the same input"
    return [len(each) for each in found]


async def test_a_set_is_sent_again_a_few_times_as_it_was_and_to_nobody_else(tmp_path: Path) -> None:
    async with client_in_round(tmp_path, draw_up()) as scene:
        greedy, other = scene.aggregators
        set_id = await find_set(scene, greedy)
        await scene.sealed_shares(other)

        await ask(scene, greedy, set_id, times=REQUESTS)

        assert set(copies(scene, greedy)) == {1 + MAX_RESENDS}
        assert set(copies(scene, other)) == {1}
        assert scene.dead() == [RejectReason.OVER_LIMIT] * (REQUESTS - MAX_RESENDS)

        await scene.restart()
        await ask(scene, greedy, set_id)

        assert set(copies(scene, greedy)) == {1 + MAX_RESENDS}, "the client counts across restarts"
        for aggregator in scene.aggregators:
            await scene.release(aggregator)
        await scene.hear(scene.coordinator, RoundApplied)


async def test_a_client_that_was_started_again_sends_the_same_set(tmp_path: Path) -> None:
    async with client_in_round(tmp_path, draw_up("sec-union")) as scene:
        first, second = scene.aggregators
        await find_set(scene, second, "union")
        await settle(scene)
        await scene.restart()

        await ask(scene, first, await find_set(scene, first, "union"), phase="union")

        assert set(copies(scene, first, "union")) == {2}


async def test_no_set_is_made_or_sent_for_a_phase_that_was_not_reached_or_is_over(tmp_path: Path) -> None:
    async with client_in_round(tmp_path, draw_up("sec-union")) as scene:
        early, _ = scene.aggregators
        union = await find_set(scene, early, "union")
        await ask(scene, early, SET_ID, phase="signs")
        await ask(scene, early, SET_ID, number=2, phase="union")
        assert scene.dead() == [RejectReason.TOO_EARLY] * 2

        for aggregator in scene.aggregators:
            await scene.release(aggregator, phase="union")
        signs = await find_set(scene, early)
        await ask(scene, early, union, phase="union")
        assert signs not in {SET_ID, union}
        for aggregator in scene.aggregators:
            await scene.release(aggregator)
        await scene.hear(scene.coordinator, RoundApplied)
        await ask(scene, early, signs)

        assert scene.dead() == [RejectReason.TOO_EARLY] * 2 + [RejectReason.OVER] * 2
        assert set(copies(scene, early, "union")) == set(copies(scene, early)) == {1}


async def test_only_an_aggregator_may_ask_and_only_for_the_set_that_it_was_sent(tmp_path: Path) -> None:
    async with client_in_round(tmp_path, draw_up()) as scene:
        aggregator, _ = scene.aggregators
        set_id = await find_set(scene, aggregator)

        await ask(scene, scene.coordinator, set_id)
        await ask(scene, scene.parties[scene.by_hand[0]], set_id)
        await ask(scene, aggregator, SET_ID)
        await ask(scene, aggregator, set_id, phase="union")

        expected = [*[RejectReason.WRONG_SENDER] * 2, RejectReason.UNEXPECTED, RejectReason.UNKNOWN_PHASE]
        assert scene.dead() == expected
        assert set(copies(scene, aggregator)) == {1}


@pytest.mark.parametrize("owed", ["share", "seed"])
async def test_on_the_compact_wire_the_full_share_goes_to_its_holder_alone(tmp_path: Path, owed: str) -> None:
    manifest = draw_up(wire="compact")
    async with client_in_round(tmp_path, manifest) as scene:
        await until(lambda: all(count_chunks(each) for each in scene.aggregators))
        await settle(scene)
        before = {each.name: count_chunks(each) for each in scene.aggregators}
        holder, seeded = sorted(scene.aggregators, key=count_chunks, reverse=True)
        asks = holder if owed == "share" else seeded
        (set_id,) = {body.set_id for each in holder.heard if isinstance(body := each.body, DenseShareChunk)}

        await ask(scene, asks, set_id)

        more = {each.name: count_chunks(each) - before[each.name] for each in scene.aggregators}
        assert more == {holder.name: before[holder.name] if owed == "share" else 0, seeded.name: 0}
        assert scene.dead() == ([] if owed == "share" else [RejectReason.UNEXPECTED])
