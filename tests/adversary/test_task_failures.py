"""A model is chosen so that training fails at the client that holds a rare attribute, and at no other."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from hubbub.ids import PartyId
from hubbub.messages.envelope import Message
from hubbub.messages.manifest import Manifest
from hubbub.messages.rounds import RoundApplied
from hubbub.messages.runs import PartyFailed
from hubbub_coordinator.phases import run as runs
from hubbub_trainer.learning.task import ProgressCallback, Task, Theta, Training
from hubbub_trainer.task_runner import TaskRunner
from support.corrupt_party import DEMO_SEED, SEED, TASK, Scene, corrupt_federation, draw_up
from support.plain_run import run_plainly
from support.wrapped_learner import WrappedLearner, WrappedTask

VICTIM, *OTHERS = draw_up().clients
CHOSEN = TASK.initial_model(SEED)
"""Whoever draws up the manifest chooses the model that a run begins with."""


@dataclass
class RareLearner(WrappedLearner):
    """A client's learner. On the chosen model it fails if this client holds the attribute.

    That stands for a model on which the loss overflows for samples that only this client has.
    """

    fault: str

    def train(
        self, theta: Theta, *, steps: int, seed: int, progress: ProgressCallback, memory: Theta | None = None
    ) -> Training:
        training = self.inner.train(theta, steps=steps, seed=seed, progress=progress, memory=memory)
        if self.fault and np.array_equal(theta, CHOSEN):
            if self.fault == "exception":
                raise ArithmeticError("the loss is not finite")
            training.theta[5] = np.nan
        return training


@dataclass
class RareTask(WrappedTask):
    """A task in which the first client holds the attribute."""

    fault: str

    def learner(self, *, index: int, clients: int, seed: int) -> RareLearner:
        inner = self.inner.learner(index=index, clients=clients, seed=seed)
        return RareLearner(inner, "" if index else self.fault)


def tell_the_coordinator(self: TaskRunner, key: object, space: object, what: str, error: BaseException) -> None:
    """Without the rule a job that fails ends the run."""
    del self, key, space, what
    raise error


def draw_up_rounds(strategy: str, wire: str) -> Manifest:
    block = {"block": 2} if strategy == "sec-union in blocks" else {}
    return draw_up(strategy=strategy.removesuffix(" in blocks"), wire=wire, rounds=3, **block)


@pytest.mark.parametrize("fault", ["nan", "exception"])
async def test_without_the_rule_the_run_fails_and_names_who_holds_the_attribute(
    tmp_path: Path, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TaskRunner, "_keep_at_home", tell_the_coordinator)
    async with corrupt_federation(draw_up(), tmp_path, task=RareTask(TASK, fault)) as scene:
        state, run = await scene.run()

        assert state is runs.State.FAILED
        assert run.failed_party == VICTIM
        assert {each.sender for each in scene.sent if isinstance(each.body, PartyFailed)} == {VICTIM}


@pytest.mark.parametrize("wire", ["paper", "compact"])
@pytest.mark.parametrize(
    ("strategy", "fault"),
    [
        ("no-union", "nan"),
        ("sec-union", "nan"),
        ("sec-union", "exception"),
        ("sec-union in blocks", "nan"),
        ("partial-sec-union", "nan"),
    ],
)
async def test_what_leaves_who_holds_the_attribute_is_what_leaves_everybody(
    tmp_path: Path, strategy: str, wire: str, fault: str
) -> None:
    manifest = draw_up_rounds(strategy, wire)
    task: Task = RareTask(TASK, fault)
    async with corrupt_federation(manifest, tmp_path, task=task) as scene:
        state, run = await scene.run()

        assert (state, run.released, run.void) == (runs.State.COMPLETED, 3, 0)
        assert [data.members for _, data in scene.rounds()] == [frozenset(manifest.clients)] * 3
        assert scene.refused() == {}
        victim, *others = (what_leaves(scene, client) for client in (VICTIM, *OTHERS))
        assert others == [victim] * len(OTHERS)
        failures = [count_failures(scene, client) for client in manifest.clients]
        assert failures == [1, 0, 0], "its owner is told"
        digests = scene.digests()
        if "blocks" not in strategy:  # There it adds signs of its own choice, which count for nothing.
            reference = run_plainly(manifest, TASK, demo_seed=DEMO_SEED)
            reference.play_round(1, idle=[0])
            reference.play_round(2)
            reference.play_round(3)
            assert set(digests.values()) == {reference.digest()}, "the others' sums, and its own from then on"
    assert len(set(digests.values())) == 1


def count_failures(scene: Scene, client: PartyId) -> float | None:
    registry = scene.trainer(client).counters.registry
    return registry.get_sample_value("hubbub_task_failures_total", {"what": "training"})


def what_leaves(scene: Scene, client: PartyId) -> list[tuple[str, int, str, int, dict[str, object]]]:
    """Everything that a client sends, in order: kind, place, size, and what it says without what is drawn."""
    return [
        (each.kind, each.round, each.phase, len(each.payload), say_openly(each.body))
        for each in scene.sent
        if each.sender == client
    ]


def say_openly(body: Message) -> dict[str, object]:
    """A message's fields, without those that differ between any two clients."""
    drawn = set() if isinstance(body, RoundApplied) else {"set_id", "run_key", "model_hmac"}
    return body.model_dump(mode="json", exclude=drawn)
