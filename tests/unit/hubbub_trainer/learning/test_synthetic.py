import hashlib
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from hubbub.errors import ConfigurationError, LocalError
from hubbub_trainer.learning.synthetic import SyntheticTask
from hubbub_trainer.learning.task import Theta
from support.patience import HANG_S
from support.read_scores import read_scores

SEED = 2**100 + 3


def ignore(_done: int, _steps: int) -> None:
    pass


def train(index: int, theta: Theta | None = None) -> str:
    """Train one client of five and return the digest of its model."""
    task = SyntheticTask()
    start = task.initial_model(7) if theta is None else theta
    learner = task.learner(index=index, clients=5, seed=7)
    trained = learner.train(start, steps=20, seed=SEED + index, progress=ignore).theta
    return hashlib.sha256(trained.tobytes()).hexdigest()


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
    expected = [train(index) for index in range(4)]

    with ThreadPoolExecutor(4) as pool:
        in_threads = list(pool.map(train, range(4)))
    script = f"""
import hashlib
from hubbub_trainer.learning.synthetic import SyntheticTask
task = SyntheticTask()
for index in range(4):
    learner = task.learner(index=index, clients=5, seed=7)
    trained = learner.train(task.initial_model(7), steps=20, seed={SEED} + index, progress=lambda *_: None).theta
    print(hashlib.sha256(trained.tobytes()).hexdigest())
"""
    in_process = subprocess.run(
        [sys.executable, "-c", script], check=True, timeout=HANG_S, capture_output=True, text=True
    )

    assert in_threads == expected
    assert in_process.stdout.split() == expected
    assert len(set(expected)) == 4


def test_bits_do_not_depend_on_where_the_model_lies_in_memory() -> None:
    theta = SyntheticTask().initial_model(7)
    expected = train(0)

    for shift in range(1, 16):
        room = np.empty(theta.size + 16, dtype=np.float32)
        room[shift : shift + theta.size] = theta
        assert train(0, room[shift : shift + theta.size]) == expected


def test_model_that_is_given_stays_as_it_is() -> None:
    task = SyntheticTask()
    theta = task.initial_model(7)
    theta.flags.writeable = False

    trained = task.learner(index=0, clients=2, seed=7).train(theta, steps=3, seed=1, progress=ignore).theta

    assert trained is not theta
    assert np.array_equal(theta, task.initial_model(7))
    assert not np.array_equal(trained, theta)


def test_plain_descent_has_no_memory_and_takes_none() -> None:
    task = SyntheticTask()
    theta = task.initial_model(7)
    learner = task.learner(index=0, clients=2, seed=7)

    assert learner.train(theta, steps=1, seed=1, progress=ignore).memory is None
    with pytest.raises(LocalError, match="has no memory"):
        learner.train(theta, steps=1, seed=1, progress=ignore, memory=np.zeros_like(theta))


def test_each_seed_decides_on_its_own_part() -> None:
    task = SyntheticTask()
    theta = task.initial_model(7)
    learner = task.learner(index=0, clients=2, seed=7)
    trained = learner.train(theta, steps=3, seed=1, progress=ignore).theta

    assert not np.array_equal(theta, task.initial_model(8))
    assert not np.array_equal(trained, learner.train(theta, steps=3, seed=2, progress=ignore).theta)
    other_data = task.learner(index=0, clients=2, seed=8)
    assert not np.array_equal(trained, other_data.train(theta, steps=3, seed=1, progress=ignore).theta)


@pytest.mark.parametrize("parameters", [10, 11, 19, 4_096])
def test_every_parameter_is_trained_at_any_size(parameters: int) -> None:
    task = SyntheticTask(parameters)
    theta = task.initial_model(7)

    trained = task.learner(index=0, clients=2, seed=7).train(theta, steps=5, seed=1, progress=ignore).theta

    assert trained.shape == (parameters,)
    assert trained.dtype == np.float32
    assert np.count_nonzero(trained != theta) == parameters


def test_progress_ends_with_the_last_step() -> None:
    reports: list[tuple[int, int]] = []
    task = SyntheticTask(100)

    task.learner(index=0, clients=2, seed=7).train(
        task.initial_model(7), steps=47, seed=1, progress=lambda done, steps: reports.append((done, steps))
    )

    assert reports[-1] == (47, 47)
    assert reports == sorted(set(reports))
    assert len(reports) <= 20


def test_fewer_parameters_than_classes_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="at least 10 parameters"):
        SyntheticTask(9)


def test_model_of_another_size_is_refused() -> None:
    learner = SyntheticTask(100).learner(index=0, clients=2, seed=7)

    with pytest.raises(LocalError, match="100 elements"):
        learner.train(np.zeros(101, dtype=np.float32), steps=1, seed=1, progress=ignore)
    with pytest.raises(LocalError, match="100 elements"):
        learner.evaluate(np.zeros(99, dtype=np.float32))
