"""A user's task of numpy arrays: what is shared, that nothing else is kept, and what is refused."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hubbub.errors import ConfigurationError
from hubbub.protocol.metrics import BINARY, Metric, Scores, regression
from hubbub_trainer.learning.numpy_task import (
    Array,
    Data,
    Fit,
    NumpyLearner,
    NumpyTask,
    Rows,
    score_binary,
    score_classes,
    score_regression,
)
from hubbub_trainer.learning.registry import adopt_task, find_task, try_task
from hubbub_trainer.learning.task import Site, TaskFailed, Theta, name_tensors
from hubbub_trainer.learning.torch_task import TorchTask

SAMPLES = 40
TARGETS = (0.0, 4.0)


@dataclass
class Line:
    """A straight line in two pieces of different type, and a count of its steps, which is nobody's business."""

    slope: Array = field(default_factory=lambda: np.zeros((2, 1), np.float64))
    height: Array = field(default_factory=lambda: np.zeros(1, np.float32))
    steps: int = 0


class StraightLine(NumpyTask):
    metrics: tuple[Metric, ...] = regression(*TARGETS)

    def model(self) -> Line:
        return Line(slope=np.random.uniform(-0.1, 0.1, (2, 1)))  # noqa: NPY002  (A task may.)

    def data(self, site: Site) -> Data:
        dice = np.random.default_rng(site.index)
        inputs = dice.random((SAMPLES, 2))
        targets = inputs @ [1.0, 2.0] + 0.5
        return Data(train=(inputs[4:], targets[4:]), test=(inputs[:4], targets[:4]))

    def get(self, model: Line) -> Sequence[Array]:
        return [model.slope, model.height]

    def set(self, model: Line, arrays: Sequence[Array]) -> None:
        model.slope, model.height = arrays

    def fit(self, model: Line, train: Rows, how: Fit) -> None:
        inputs, targets = train
        for rows in how.batches(len(targets), size=8):
            error = inputs[rows] @ model.slope[:, 0] + model.height - targets[rows]
            model.slope = model.slope - 0.3 * (inputs[rows].T @ error)[:, None] / len(rows)
            model.height = model.height - np.float32(0.3 * error.mean())
            model.steps += 1

    def evaluate(self, model: Line, test: Rows) -> Scores:
        inputs, targets = test
        return score_regression(inputs @ model.slope[:, 0] + model.height, targets, *TARGETS)


def vary(**members: object) -> NumpyTask:
    task: NumpyTask = type("Varied", (StraightLine,), members)()
    return task


def learner_of(task: NumpyTask) -> tuple[NumpyLearner, Theta]:
    return task.learner(index=0, clients=2, seed=5), task.initial_model(5)


def train(learner: NumpyLearner, theta: Theta, *, steps: int = 30, seed: int = 1) -> Theta:
    return learner.train(theta, steps=steps, seed=seed, progress=lambda _done, _steps: None).theta


# What is shared -----------------------------------------------------------------------------------------


def test_theta_is_the_arrays_in_their_order_and_begins_the_same_for_the_same_seed() -> None:
    task = StraightLine()

    theta = task.initial_model(5)

    assert (task.name, task.layout, task.count_parameters()) == ("straight-line", {"0": (2, 1), "1": (1,)}, 3)
    assert theta.dtype == np.float32
    assert theta.tolist() == StraightLine().initial_model(5).tolist() != task.initial_model(6).tolist()
    assert {
        name: each.shape for name, each in name_tensors(task, theta, seed=5, buffers={}).items()
    } == task.layout


def test_a_model_is_given_its_arrays_in_the_shapes_and_types_that_it_had() -> None:
    given: list[Array] = []

    def take(_: NumpyTask, model: Line, arrays: Sequence[Array]) -> None:
        given.extend(arrays)
        model.slope, model.height = arrays

    learner, theta = learner_of(vary(set=take))
    learner.evaluate(theta)

    assert [(each.shape, str(each.dtype)) for each in given] == [((2, 1), "float64"), ((1,), "float32")]
    assert np.concatenate([each.ravel() for each in given]).astype(np.float32).tolist() == theta.tolist()


def test_training_learns_and_gives_the_same_bits_for_the_same_seed_and_others_for_another() -> None:
    learner, theta = learner_of(StraightLine())

    trained = train(learner, theta, steps=200)

    # θ is left as it is, and what came before leaves no trace.
    assert theta.tolist() == StraightLine().initial_model(5).tolist()
    assert trained.tolist() == train(learner, theta, steps=200).tolist() != train(learner, theta, seed=2).tolist()
    assert trained == pytest.approx([1.0, 2.0, 0.5], abs=0.1)
    error, samples = learner.evaluate(trained)["mse"]
    assert (samples, learner.samples, learner.examples) == (4, SAMPLES - 4, 4)
    assert isinstance(error, float)
    assert error < 0.01


def test_every_training_and_evaluation_begins_with_a_fresh_model() -> None:
    seen: list[int] = []

    def note(_: NumpyTask, model: Line, _rows: Rows) -> Scores:
        seen.append(model.steps)
        return {}

    learner, theta = learner_of(vary(evaluate=note))
    for _ in range(2):
        train(learner, theta)
        learner.evaluate(theta)

    assert seen == [0, 0]


def test_a_fit_is_told_of_the_place_of_its_round_and_of_its_steps() -> None:
    told: list[Fit] = []
    learner, theta = learner_of(vary(fit=lambda _task, _model, _rows, how: told.append(how)))

    train(learner.in_round(3, 10), theta, steps=7, seed=2)

    assert told == [Fit(steps=7, seed=2, number=3, rounds=10)]
    assert [len(rows) for rows in told[0].batches(5, size=4)] == [4] * 7


# Where it comes from ------------------------------------------------------------------------------------


def test_a_file_with_one_such_class_is_a_task_and_is_given_the_operators_data(tmp_path: Path) -> None:
    file = tmp_path / "line.py"
    file.write_text(
        "from hubbub_trainer.learning.numpy_task import NumpyTask\n\n\n"
        "class Given(NumpyTask):\n"
        "    name = 'given-line'\n\n"
        "    def data(self, site):\n"
        "        raise ValueError(site.data)\n\n"
        "    def model(self):\n"
        "        return None\n\n"
        "    def get(self, model):\n"
        "        return [__import__('numpy').zeros(3)]\n",
        encoding="utf-8",
    )

    task = find_task(str(file), data="/srv/patients")

    assert isinstance(task, NumpyTask)
    assert (task.name, task.site_data, task.count_parameters()) == ("given-line", "/srv/patients", 3)


def test_the_trial_at_the_start_passes_for_a_sound_task() -> None:
    try_task(adopt_task(StraightLine, data=""))


# What is refused ----------------------------------------------------------------------------------------


def spoil(model: Line, _rows: Rows, _how: Fit) -> None:
    model.height = np.zeros(2)


def explode(model: Line, _rows: Rows, _how: Fit) -> None:
    model.height = np.array([np.nan])


def outgrow(model: Line, _rows: Rows, _how: Fit) -> None:
    model.height = np.array([1e300])


@pytest.mark.parametrize(
    ("fit", "complaint"),
    [
        (spoil, "arrays of other shapes than the model had"),
        (explode, "is not finite any more"),
        (outgrow, "is not finite any more"),
    ],
)
def test_a_model_that_cannot_be_shared_after_training_is_a_failure_of_the_task(
    fit: Callable[[Line, Rows, Fit], None], complaint: str
) -> None:
    learner, theta = learner_of(vary(fit=lambda _task, *arguments: fit(*arguments)))

    with pytest.raises(TaskFailed, match=complaint):
        train(learner, theta)


def test_what_a_task_raises_stays_in_this_trainers_log(caplog: pytest.LogCaptureFixture) -> None:
    def fail(*_: object) -> None:
        raise ValueError("patient 7")

    learner, theta = learner_of(vary(fit=fail))

    with pytest.raises(TaskFailed, match="the task failed in training") as failed:
        train(learner, theta)

    assert "patient 7" not in str(failed.value)
    assert "patient 7" in caplog.text


@pytest.mark.parametrize(
    ("members", "complaint"),
    [
        ({"get": lambda _, __: [np.arange(3)]}, "must return arrays of floats, not int64"),
        ({"get": lambda _, __: []}, "must return arrays of floats, not nothing"),
        ({"data": lambda _, __: Data(train=(np.ones(3),))}, "no test samples here, so nothing can be scored"),
    ],
)
def test_a_task_that_cannot_take_part_says_why(members: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigurationError, match=complaint):
        learner_of(vary(**members))


def test_a_task_without_metrics_needs_no_test_samples_and_scores_nothing() -> None:
    learner, theta = learner_of(vary(metrics=(), data=lambda _, __: Data(train=(np.ones((3, 2)), np.ones(3)))))

    assert learner.evaluate(theta) == {}
    assert learner.examples == 0
    train(learner, theta)


# Scores -------------------------------------------------------------------------------------------------


class Outputs(torch.nn.Module):
    """A model that is given its outputs."""

    def forward(self, outputs: torch.Tensor) -> torch.Tensor:
        return outputs


def check_like_torch(task: type[TorchTask], outputs: Array, targets: Array, found: Scores) -> None:
    expected = task().evaluate(Outputs(), (torch.tensor(outputs), torch.tensor(targets)))

    assert found.keys() == expected.keys()
    for name, (sums, weight) in expected.items():
        assert found[name][0] == pytest.approx(sums, rel=1e-4)
        assert found[name][1] == weight


def test_scores_are_those_of_a_torch_task() -> None:
    dice = np.random.default_rng(3)
    logits, labels = dice.normal(size=(50, 3)), dice.integers(0, 3, 50)
    wide = dice.normal(2, 3, 50)

    check_like_torch(
        TorchTask, logits, labels, score_classes(np.exp(logits) / np.exp(logits).sum(1, keepdims=True), labels)
    )
    binary = type("Binary", (TorchTask,), {"metrics": "binary"})
    check_like_torch(binary, logits[:, 0], labels > 0, score_binary(1 / (1 + np.exp(-logits[:, 0])), labels))
    numbers = type("Numbers", (TorchTask,), {"metrics": "regression", "target_range": TARGETS})
    check_like_torch(numbers, wide, wide + logits[:, 0], score_regression(wide, wide + logits[:, 0], *TARGETS))
    assert [metric.name for metric in BINARY] == list(score_binary(np.ones(1), np.ones(1)))
