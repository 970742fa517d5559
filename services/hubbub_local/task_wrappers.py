"""Tasks that wrap another: their base class, and a task that begins with a given model."""

from __future__ import annotations

from hubbub.protocol.metrics import Metric
from hubbub_trainer.learning.task import (
    HasLayout,
    HasLearningRate,
    HasOwnPace,
    HasRanges,
    Learner,
    NamesTensors,
    Task,
    Theta,
)


class TaskWrapper:
    """Base class that leaves everything to the wrapped task; a subclass changes some of it."""

    def __init__(self, inner: Task) -> None:
        self._inner = inner
        self.name = inner.name
        # As attributes of this object, and only if the task has them: services look for them.
        if isinstance(inner, HasLayout):
            self.layout = inner.layout
        if isinstance(inner, HasOwnPace):
            self.pace = inner.pace
        if isinstance(inner, HasLearningRate):
            self.find_learning_rate = inner.find_learning_rate
        if isinstance(inner, HasRanges):
            self.ranges = inner.ranges
        if isinstance(inner, NamesTensors):
            self.name_tensors = inner.name_tensors

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """The metrics that are scored; a task may find only when it is tried that it has nothing to score."""
        return self._inner.metrics

    def count_parameters(self) -> int:
        """Return N."""
        return self._inner.count_parameters()

    def initial_model(self, seed: int) -> Theta:
        """Make the model that a run starts from."""
        return self._inner.initial_model(seed)

    def learner(self, *, index: int, clients: int, seed: int) -> Learner:
        """Make the learner of one client."""
        return self._inner.learner(index=index, clients=clients, seed=seed)


class ContinuedTask(TaskWrapper):
    """A task whose runs begin with a model that was trained before."""

    def __init__(self, inner: Task, theta: Theta) -> None:
        super().__init__(inner)
        self._theta = theta

    def initial_model(self, seed: int) -> Theta:
        """Return the trained model, whatever the seed."""
        del seed
        return self._theta.copy()
