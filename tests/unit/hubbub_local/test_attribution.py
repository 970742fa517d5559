"""Training and evaluation, measured apart."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import nn

from hubbub.run_options import RunOptions
from hubbub.runtime.telemetry import context
from hubbub_local.attribution import Attribution, MeasuredLearner, MeasuredTask
from hubbub_local.federation import make_parties
from hubbub_trainer.fingerprint import tensor_sizes
from hubbub_trainer.learning.networks import LenetTask
from hubbub_trainer.learning.synthetic import SyntheticTask
from hubbub_trainer.learning.task import Adjustable, HasLearningRate
from hubbub_trainer.learning.torch_learner import OwnTask
from hubbub_trainer.learning.torch_task import TorchTask
from hubbub_trainer.planning import draw_up_manifest
from support.numbers_task import NumbersTask


def test_training_and_evaluation_are_not_the_protocols_and_give_what_they_gave() -> None:
    attribution, plain = Attribution(), SyntheticTask(300)
    task = MeasuredTask(plain, attribution)
    ours, theirs = (each.learner(index=1, clients=2, seed=3) for each in (task, plain))
    theta = task.initial_model(3)

    with context(party="client-2"):
        trained = attribution.time(lambda: ours.train(theta, steps=50, seed=4, progress=lambda *_: None))
        scores = attribution.time(lambda: ours.evaluate(theta))

    assert np.array_equal(trained.theta, theirs.train(theta, steps=50, seed=4, progress=lambda *_: None).theta)
    assert scores == theirs.evaluate(theta)
    assert list(task.training_s) == [1]
    assert 0 < task.training_s[1] < attribution.aside_s["client-2"]
    assert attribution.read()["client-2"] < attribution.aside_s["client-2"] / 2


def test_an_adjusted_learner_is_measured_too_and_one_that_cannot_be_adjusted_does_not_say_it_can() -> None:
    attribution, plain = Attribution(), SyntheticTask(300)
    task, movable = MeasuredTask(plain, attribution), np.array([3, 30])
    learner, theta = task.learner(index=1, clients=2, seed=3), task.initial_model(3)
    assert isinstance(learner, Adjustable)

    adjusted = learner.adjusted(learning_rate=0.1, movable=movable)
    trained = adjusted.train(theta, steps=5, seed=4, progress=lambda *_: None).theta

    assert np.array_equal(np.flatnonzero(trained != theta), movable)
    assert list(task.training_s) == [1]
    plain_learner = NumbersTask([np.zeros(5, np.float32)]).learner(index=0, clients=1, seed=0)
    assert not isinstance(MeasuredLearner(plain_learner, 1, {}, attribution), Adjustable)


def test_a_measured_task_tells_its_learning_rate_and_its_layout_if_it_has_them(tmp_path: Path) -> None:
    lenet = LenetTask(data="mnist", cache_folder=tmp_path, announce=print)
    with_rate, without = (MeasuredTask(each, Attribution()) for each in (lenet, SyntheticTask()))

    assert isinstance(with_rate, HasLearningRate)
    assert with_rate.find_learning_rate() == lenet.find_learning_rate()
    assert tensor_sizes(with_rate) == tensor_sizes(lenet), "or its masks would be drawn over all tensors alike"
    assert tensor_sizes(MeasuredTask(NumbersTask([np.zeros(5, np.float32)]), Attribution())) == (5,)
    assert not isinstance(without, HasLearningRate)


class CountedTask(TorchTask):
    """A task that notes what was made."""

    def __init__(self) -> None:
        self.made: list[str] = []

    def model(self) -> nn.Module:
        self.made.append("model")
        return nn.Linear(4, 2)

    def optimiser(self, parameters: Iterator[nn.Parameter]) -> torch.optim.Optimizer:
        self.made.append("optimiser")
        return super().optimiser(parameters)


def test_nothing_is_made_to_ask_for_a_learning_rate_that_no_manifest_needs() -> None:
    counted, roster = CountedTask(), make_parties(clients=3, servers=2).roster
    task = MeasuredTask(OwnTask(counted, data=""), Attribution())
    assert counted.made == ["model"], "for its layout"

    def draw_up(strategy: str, learning_rate: float | None = None) -> list[str]:
        counted.made.clear()
        options = RunOptions(strategy=strategy, rho=0.5, local_steps=1, rounds=1, learning_rate=learning_rate)
        draw_up_manifest(task, options, roster=roster)
        return sorted(counted.made)

    initial = ["model"]
    assert draw_up("no-union") == draw_up("shared-mask", 0.5) == initial
    assert draw_up("shared-mask") == [*initial, "model", "optimiser"]
