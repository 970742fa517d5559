"""A synthetic task that notes what its learner is given; its training can be held up, broken or spoilt."""

import threading
from collections.abc import Callable

import numpy as np

from hubbub.protocol.metrics import Scores
from hubbub_trainer.learning.synthetic import SyntheticLearner, SyntheticTask
from hubbub_trainer.learning.task import ProgressCallback, Theta, Training


class WatchedTask(SyntheticTask):
    """The memory that a training returns is filled with the number of trainings so far."""

    def __init__(
        self,
        parameters: int = 1_003,
        *,
        before: Callable[[], None] = lambda: None,
        spoil: Callable[[Theta], None] = lambda _: None,
    ) -> None:
        super().__init__(parameters)
        self.before = before
        self.spoil = spoil
        self.seeds: list[int] = []
        self.memories: list[float | None] = []
        self.evaluations = 0
        self.half_way = threading.Event()
        self.gate: threading.Event | None = None
        """The next training waits for it half-way."""

    def learner(self, *, index: int, clients: int, seed: int) -> "WatchedLearner":
        return WatchedLearner(super().learner(index=index, clients=clients, seed=seed), self)


class WatchedLearner(SyntheticLearner):
    def __init__(self, inner: SyntheticLearner, task: WatchedTask) -> None:
        vars(self).update(vars(inner))
        self._task = task

    def train(
        self, theta: Theta, *, steps: int, seed: int, progress: ProgressCallback, memory: Theta | None = None
    ) -> Training:
        task = self._task
        task.seeds.append(seed)
        task.memories.append(None if memory is None else float(memory[0]))
        task.half_way.set()
        gate, task.gate = task.gate, None
        if gate is not None:
            gate.wait()
        task.before()
        trained = super().train(theta, steps=steps, seed=seed, progress=progress).theta
        task.spoil(trained)
        return Training(trained, np.full_like(theta, len(task.seeds)))

    def evaluate(self, theta: Theta, *, memory: Theta | None = None) -> Scores:
        self._task.evaluations += 1
        return super().evaluate(theta, memory=memory)
