"""A running trainer and its ledger of models: which runs are refused, which count, which give their model up."""

import logging
from pathlib import Path

import pytest

from hubbub.errors import Code
from hubbub.messages.manifest import Manifest
from hubbub.messages.runs import RunJoined, RunRefused
from hubbub.messages.shares import ShareChunk
from hubbub_trainer.learning.synthetic import SyntheticTask
from hubbub_trainer.learning.task import Task, Theta
from hubbub_trainer.ledger import Ledger
from hubbub_trainer.policy import Policy
from hubbub_trainer.workspace import digest
from support.parties import roster_of
from support.trainer_scene import Scene, scene_of
from support.trainer_scene import draw_up as draw_up_for
from support.wrapped_learner import WrappedTask

TASK = SyntheticTask(203)


class Pretrained(WrappedTask):
    """A task whose model is the same whatever the seed is."""

    name = "pretrained"

    def initial_model(self, seed: int) -> Theta:
        del seed
        return self.inner.initial_model(0)


PRETRAINED = Pretrained(TASK)


def draw_up(number: int, *, task: Task = TASK, seed: int = 7, **changes: object) -> Manifest:
    initial = digest(task.initial_model(seed))
    return draw_up_for(task, seed=seed, initial_model_sha256=initial, nonce=f"{number:032x}", **changes)


FIRST, SECOND = draw_up(1), draw_up(2)


def policy(**limits: object) -> Policy:
    """The default for models, in a demo."""
    demo = Policy.for_demo(roster_of(FIRST).digest)
    return demo.model_copy(update={"max_runs_per_model": 1, **limits})


async def send_shares(scene: Scene) -> None:
    await scene.open_round(1)
    for aggregator in scene.aggregators:
        await scene.sealed_shares(aggregator)


async def test_a_second_run_from_the_model_is_refused_also_after_the_first_has_ended_and_a_restart(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with scene_of(tmp_path, FIRST, TASK, policy=policy()) as scene:
        await scene.join()
        await send_shares(scene)
        assert await scene.refusal(SECOND) is Code.POLICY_LEDGER
        scene.manifest = FIRST
        await scene.end("failed")
        await scene.restart()
        with caplog.at_level(logging.WARNING):
            assert await scene.refusal(draw_up(3)) is Code.POLICY_LEDGER
        assert f"the same model as run {FIRST.run_id[:12]} of {', '.join(FIRST.clients)}" in caplog.text
        assert "`hubbub ledger allow" in caplog.text
        await scene.pledge(draw_up(4, seed=8))


async def test_a_run_that_ends_before_a_share_left_does_not_use_its_model_up(tmp_path: Path) -> None:
    async with scene_of(tmp_path, FIRST, TASK, policy=policy()) as scene:
        await scene.join()
        await scene.restart()  # Its claim survives.
        assert await scene.refusal(SECOND) is Code.POLICY_LEDGER
        scene.manifest = FIRST
        await scene.end("failed")
        await scene.restart()
        await scene.pledge(draw_up(3))


async def test_two_runs_that_are_proposed_at_once_do_not_both_slip_through(tmp_path: Path) -> None:
    async with scene_of(tmp_path, FIRST, TASK, policy=policy()) as scene:
        for manifest in (FIRST, SECOND):
            await scene.propose(manifest)
        heard = [await scene.coordinator.hear(kind, 1) for kind in (RunJoined, RunRefused)]
        assert {envelope.run for answers in heard for envelope, _ in answers} == {FIRST.run_id, SECOND.run_id}


async def test_a_run_counts_before_its_first_share_leaves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[bool] = []
    async with scene_of(tmp_path, FIRST, TASK, policy=policy()) as scene:
        post, ledger = scene.trainer.runner.post, tmp_path / FIRST.clients[0] / "ledger.sqlite"
        send = post.send

        async def look_first(*place: object, **message: object) -> None:
            if isinstance(message["body"], ShareChunk):
                looked_into = Ledger(ledger)
                counted.extend(run.counted for entry in looked_into.list_entries() for run in entry.runs)
                looked_into.close()
            await send(*place, **message)  # type: ignore[arg-type]  # Passed on as they are.

        await scene.join()
        monkeypatch.setattr(post, "send", look_first)
        await send_shares(scene)
    assert counted
    assert all(counted)


async def test_a_model_that_ignores_the_seed_is_the_same_until_its_owner_allows_more(tmp_path: Path) -> None:
    manifests = [draw_up(number, task=PRETRAINED, seed=number) for number in range(3)]
    async with scene_of(tmp_path, manifests[0], PRETRAINED, policy=policy()) as scene:
        await scene.join()
        await send_shares(scene)
        assert await scene.refusal(manifests[1]) is Code.POLICY_LEDGER
        owners = Ledger(tmp_path / FIRST.clients[0] / "ledger.sqlite")  # As another process has it.
        owners.allow(digest(PRETRAINED.initial_model(0))[:12])
        owners.close()
        await scene.pledge(manifests[2])


# Void rounds, across runs -------------------------------------------------------------------------------


async def test_void_rounds_of_a_model_add_up_over_the_runs_that_began_from_it(tmp_path: Path) -> None:
    first, second, third = (draw_up(number, strategy="sec-union") for number in (1, 2, 3))
    async with scene_of(tmp_path, first, TASK, policy=policy(max_runs_per_model=9)) as scene:
        await scene.join()
        await scene.play_void_round(1)
        await scene.end("failed")
        await scene.restart()
        await scene.join(second)
        await scene.play_void_round(1)
        assert await scene.failure() is Code.POLICY_VOID_ROUNDS
        assert await scene.refusal(third) is Code.POLICY_LEDGER
