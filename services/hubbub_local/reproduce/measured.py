"""Task wrapper that measures training and evaluation apart from the protocol."""

from __future__ import annotations

import time

from hubbub.protocol.metrics import Scores
from hubbub_local.attribution import Attribution
from hubbub_trainer.learning.task import Learner, ProgressCallback, Task, Theta, Training


class MeasuredTask:
    """Wraps a task, and counts the CPU seconds of each client's training."""

    def __init__(self, inner: Task, attribution: Attribution) -> None:
        self._inner = inner
        self._attribution = attribution
        self.training_s: dict[int, float] = {}
        self.name, self.metrics = inner.name, inner.metrics
        self.count_parameters, self.initial_model = inner.count_parameters, inner.initial_model

    def learner(self, *, index: int, clients: int, seed: int) -> MeasuredLearner:
        """Make a client's learner."""
        inner = self._inner.learner(index=index, clients=clients, seed=seed)
        return MeasuredLearner(inner, index, self.training_s, self._attribution)


class MeasuredLearner:
    """One client's learner; its work is excluded from the party's protocol time."""

    def __init__(self, inner: Learner, index: int, training_s: dict[int, float], attribution: Attribution) -> None:
        self._inner = inner
        self._index = index
        self._training_s = training_s
        self._attribution = attribution
        self.samples, self.examples = inner.samples, inner.examples

    def train(
        self, theta: Theta, *, steps: int, seed: int, progress: ProgressCallback, memory: Theta | None = None
    ) -> Training:
        """Train."""
        began_s = time.thread_time()
        with self._attribution.put_aside():
            training = self._inner.train(theta, steps=steps, seed=seed, progress=progress, memory=memory)
        spent_s = time.thread_time() - began_s
        self._training_s[self._index] = self._training_s.get(self._index, 0.0) + spent_s
        return training

    def evaluate(self, theta: Theta, *, memory: Theta | None = None) -> Scores:
        """Score a model."""
        with self._attribution.put_aside():
            return self._inner.evaluate(theta, memory=memory)
