"""A learner and a task around another, which pass everything on: a subclass overrides one method."""

from dataclasses import dataclass

from hubbub.protocol.metrics import Metric, Scores
from hubbub_trainer.learning.task import Learner, ProgressCallback, Task, Theta, Training


@dataclass
class WrappedLearner:
    """Another learner."""

    inner: Learner

    @property
    def samples(self) -> int:
        return self.inner.samples

    @property
    def examples(self) -> int:
        return self.inner.examples

    def train(
        self, theta: Theta, *, steps: int, seed: int, progress: ProgressCallback, memory: Theta | None = None
    ) -> Training:
        return self.inner.train(theta, steps=steps, seed=seed, progress=progress, memory=memory)

    def evaluate(self, theta: Theta, *, memory: Theta | None = None) -> Scores:
        return self.inner.evaluate(theta, memory=memory)


@dataclass
class WrappedTask:
    """Another task."""

    inner: Task

    @property
    def name(self) -> str:
        return self.inner.name

    @property
    def metrics(self) -> tuple[Metric, ...]:
        return self.inner.metrics

    def count_parameters(self) -> int:
        return self.inner.count_parameters()

    def initial_model(self, seed: int) -> Theta:
        return self.inner.initial_model(seed)

    def learner(self, *, index: int, clients: int, seed: int) -> Learner:
        return self.inner.learner(index=index, clients=clients, seed=seed)
