"""Learners that are trained and scored in tests: quietly, by name, and with the same bits everywhere."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from hubbub_trainer.learning.task import Learner, Task, Theta
from hubbub_trainer.workspace import digest
from support.patience import HANG_S


def ignore(_done: int, _steps: int) -> None:
    """Take no notice of a training's progress."""


class Classified(NamedTuple):
    """Sums over the examples, and their number."""

    correct: int
    loss: float
    examples: int


def read_scores(learner: Learner, theta: Theta) -> Classified:
    """Evaluate a model; both metrics are over the same examples."""
    scores = learner.evaluate(theta)
    (correct, examples), (loss, same) = scores["accuracy"], scores["loss"]
    assert isinstance(correct, float | int)
    assert isinstance(loss, float)
    assert examples == same
    return Classified(int(correct), loss, int(examples))


ELSEWHERE = """
from pathlib import Path
from hubbub_trainer.learning.registry import load_task
from support.learners import describe_training
task = load_task({name!r}, data={data!r}, cache_folder=Path("unused"))
for index in range({clients}):
    print(describe_training(task.learner(index=index, clients={clients}, seed=7), task, index, {steps}, {seed}))
"""


def describe_training(learner: Learner, task: Task, index: int, steps: int, seed: int) -> str:
    """The bits of a client's model after a training, and of its loss."""
    trained = learner.train(task.initial_model(7), steps=steps, seed=seed + index, progress=ignore).theta
    return f"{digest(trained)} {read_scores(learner, trained).loss.hex()}"


def check_same_everywhere(task: Task, *, data: str, clients: int, steps: int, seed: int) -> None:
    """Check that clients train to the same bits here, in threads and in a process of its own."""
    learners = [task.learner(index=index, clients=clients, seed=7) for index in range(clients)]

    def train(index: int) -> str:
        return describe_training(learners[index], task, index, steps, seed)

    expected = [train(index) for index in range(clients)]
    with ThreadPoolExecutor(clients) as pool:
        assert list(pool.map(train, range(clients))) == expected
    script = ELSEWHERE.format(name=task.name, data=data, clients=clients, steps=steps, seed=seed)
    command = [sys.executable, "-c", f"import sys; sys.path[:] = {sys.path!r}\n{script}"]
    done = subprocess.run(command, check=True, timeout=HANG_S, capture_output=True, text=True)
    assert done.stdout.splitlines() == expected
    assert len(set(expected)) == clients
