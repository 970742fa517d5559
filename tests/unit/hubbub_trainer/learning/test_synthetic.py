"""The synthetic task: it learns, its bits depend on nothing but seeds, and it has any size."""

import numpy as np
import pytest

from hubbub.errors import ConfigurationError, LocalError
from hubbub.protocol.compression import Indices
from hubbub_trainer.learning.synthetic import SyntheticTask
from hubbub_trainer.learning.task import HasLearningRate, Theta
from hubbub_trainer.workspace import digest
from support.learners import check_same_everywhere, ignore, read_scores

SEED = 2**100 + 3


def train(theta: Theta) -> str:
    """Train one client of five and return the digest of its model."""
    learner = SyntheticTask().learner(index=0, clients=5, seed=7)
    return digest(learner.train(theta, steps=20, seed=SEED, progress=ignore).theta)


def test_model_learns_in_a_few_rounds() -> None:
    task = SyntheticTask()
    learners = [task.learner(index=index, clients=5, seed=7) for index in range(5)]
    theta = task.initial_model(7)
    before = [read_scores(learner, theta) for learner in learners]

    for turn in range(3):
        models = [learner.train(theta, steps=10, seed=turn, progress=ignore).theta for learner in learners]
        theta = np.mean(models, axis=0, dtype=np.float32)

    after = [read_scores(learner, theta) for learner in learners]
    assert sum(score.examples for score in after) == sum(learner.examples for learner in learners) == 1_000
    assert sum(score.correct for score in before) < 200
    assert sum(score.correct for score in after) > 900
    assert max(score.loss for score in after) < min(score.loss for score in before)


def test_bits_are_the_same_in_threads_and_in_a_process_of_its_own() -> None:
    check_same_everywhere(SyntheticTask(), data="auto", clients=4, steps=20, seed=SEED)


def test_bits_depend_on_the_seeds_and_not_on_where_the_model_lies_in_memory() -> None:
    task = SyntheticTask()
    theta = task.initial_model(7)
    theta.flags.writeable = False
    expected = train(task.initial_model(7))

    for shift in (1, 2, 3, 4, 8, 15):
        room = np.empty(theta.size + 16, dtype=np.float32)
        room[shift : shift + theta.size] = theta
        assert train(room[shift : shift + theta.size]) == expected
    assert train(theta) == expected
    assert np.array_equal(theta, task.initial_model(7)), "the model that was given is as it was"
    assert not np.array_equal(theta, task.initial_model(8))
    learner, other_data = (task.learner(index=0, clients=2, seed=seed) for seed in (7, 8))
    trained = learner.train(theta, steps=3, seed=1, progress=ignore).theta
    assert not np.array_equal(trained, learner.train(theta, steps=3, seed=2, progress=ignore).theta)
    assert not np.array_equal(trained, other_data.train(theta, steps=3, seed=1, progress=ignore).theta)


@pytest.mark.parametrize("parameters", [10, 11, 19, 4_096])
def test_every_parameter_is_trained_at_any_size(parameters: int) -> None:
    task = SyntheticTask(parameters)
    theta = task.initial_model(7)

    trained = task.learner(index=0, clients=2, seed=7).train(theta, steps=5, seed=1, progress=ignore).theta

    assert trained.shape == (parameters,)
    assert trained.dtype == np.float32
    assert np.count_nonzero(trained != theta) == parameters


def test_only_movable_coordinates_move_and_at_the_rate_that_is_asked_for() -> None:
    task = SyntheticTask(1_003)
    learner, theta = task.learner(index=0, clients=2, seed=7), task.initial_model(7)
    movable = np.array([0, 5, 500, 1_000, 1_002])

    def step(*, rate: float | None, movable: Indices | None, steps: int = 1) -> Theta:
        adjusted = learner.adjusted(learning_rate=rate, movable=movable)
        assert adjusted.evaluate(theta) == learner.evaluate(theta)
        return adjusted.train(theta, steps=steps, seed=1, progress=ignore).theta - theta

    assert np.array_equal(np.flatnonzero(step(rate=None, movable=movable, steps=4)), movable)
    np.testing.assert_array_equal(
        step(rate=None, movable=movable)[movable], step(rate=None, movable=None)[movable]
    )
    np.testing.assert_allclose(
        step(rate=0.5, movable=None), 5 * step(rate=0.1, movable=None), rtol=1e-3, atol=1e-6
    )
    assert not isinstance(task, HasLearningRate), "its rate depends on the scale of its data"


def test_another_size_is_refused_and_so_is_a_memory() -> None:
    learner = SyntheticTask(100).learner(index=0, clients=2, seed=7)
    theta = np.zeros(100, dtype=np.float32)
    reports: list[tuple[int, int]] = []

    training = learner.train(theta, steps=47, seed=1, progress=lambda *report: reports.append(report))

    assert training.memory is None
    assert reports[-1] == (47, 47)
    with pytest.raises(LocalError, match="has no memory"):
        learner.train(theta, steps=1, seed=1, progress=ignore, memory=theta)
    with pytest.raises(LocalError, match="100 elements"):
        learner.train(np.zeros(101, dtype=np.float32), steps=1, seed=1, progress=ignore)
    with pytest.raises(LocalError, match="100 elements"):
        learner.evaluate(np.zeros(99, dtype=np.float32))
    with pytest.raises(ConfigurationError, match="at least 10 parameters"):
        SyntheticTask(9)
