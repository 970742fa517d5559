"""The examples' own metrics: learnt by averaging models in the open, summed as clients sum them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hubbub.protocol.metrics import ScoreSheet
from hubbub.protocol.ring import Residues
from hubbub_trainer.learning.registry import find_task, try_task
from hubbub_trainer.learning.task import Learner, Task, Theta

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
CLIENTS, ROUNDS, STEPS, SEED = 3, 10, 20, 7


def train(task: Task, learners: list[Learner]) -> Theta:
    """Federated averaging."""
    theta = task.initial_model(SEED)
    memories: list[Theta | None] = [None] * len(learners)
    for number in range(ROUNDS):
        trainings = [
            learner.train(theta, steps=STEPS, seed=number, progress=lambda *_: None, memory=memory)
            for learner, memory in zip(learners, memories, strict=True)
        ]
        theta = np.mean([each.theta for each in trainings], axis=0, dtype=np.float32)
        memories = [each.memory for each in trainings]
    return theta


def add_up(task: Task, learners: list[Learner], theta: Theta) -> dict[str, float]:
    """The metrics over all clients, from the sum of what they would share."""
    sheet = ScoreSheet(task.metrics, clients=len(learners))
    shared = [sheet.encode(learner.evaluate(theta), learner.examples) for learner in learners]
    sums: Residues = np.stack(shared).sum(axis=0, dtype=np.uint64).astype(np.uint32)

    assert sheet.plausible(sums, len(learners))
    return sheet.decode(sums, len(learners))


@pytest.mark.parametrize(
    ("file", "headline", "good"), [("breast_cancer.py", "auc", 0.97), ("diabetes.py", "r2", 0.25)]
)
def test_an_example_reaches_a_good_headline_metric(
    file: str, headline: str, good: float, caplog: pytest.LogCaptureFixture
) -> None:
    task = find_task(str(EXAMPLES / file), data="")
    try_task(task)
    learners: list[Learner] = [task.learner(index=index, clients=CLIENTS, seed=SEED) for index in range(CLIENTS)]

    before = add_up(task, learners, task.initial_model(SEED))
    after = add_up(task, learners, train(task, learners))

    assert task.metrics[0].name == headline
    assert before[headline] < good < after[headline]
    assert not caplog.records, "all targets are in their range"
