"""A learner and a task around another, which pass everything on: a subclass overrides one method."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hubbub.protocol.metrics import Metric, Scores
from hubbub_trainer.learning.task import Adjustable, Learner, ProgressCallback, Task, Theta, Training


@dataclass
class WrappedLearner:
    """Another learner."""

    inner: Learner
    _changes: dict[str, Any] = field(default_factory=dict, init=False)
    """How the learner inside is adjusted when it trains."""

    @property
    def adjusted(self) -> Callable[..., Learner]:
        _ = self.inner.adjusted  # type: ignore[attr-defined]  # Raises if it has none.
        return self._adjust

    def _adjust(self, **changes: Any) -> Learner:
        """This learner itself, which counts rounds or the like."""
        self._changes = changes
        return self

    @property
    def samples(self) -> int:
        return self.inner.samples

    @property
    def examples(self) -> int:
        return self.inner.examples

    def train(
        self, theta: Theta, *, steps: int, seed: int, progress: ProgressCallback, memory: Theta | None = None
    ) -> Training:
        inner = (
            self.inner.adjusted(**self._changes)
            if isinstance(self.inner, Adjustable) and self._changes
            else self.inner
        )
        return inner.train(theta, steps=steps, seed=seed, progress=progress, memory=memory)

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

    @property
    def layout(self) -> Mapping[str, tuple[int, ...]]:
        layout: Mapping[str, tuple[int, ...]] = self.inner.layout  # type: ignore[attr-defined]  # Raises if it has none.
        return layout

    def count_parameters(self) -> int:
        return self.inner.count_parameters()

    def initial_model(self, seed: int) -> Theta:
        return self.inner.initial_model(seed)

    def learner(self, *, index: int, clients: int, seed: int) -> Learner:
        return self.inner.learner(index=index, clients=clients, seed=seed)
