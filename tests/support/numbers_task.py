"""A task that learns nothing: each client says its numbers, the same in every round."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hubbub.protocol.metrics import Metric, Scores
from hubbub_trainer.learning.task import ProgressCallback, Theta, Training


@dataclass(frozen=True)
class NumbersLearner:
    numbers: Theta
    samples: int = 1
    examples: int = 0

    def train(
        self, theta: Theta, *, steps: int, seed: int, progress: ProgressCallback, memory: Theta | None = None
    ) -> Training:
        del steps, seed, progress
        return Training(theta + self.numbers, memory)

    def evaluate(self, theta: Theta, *, memory: Theta | None = None) -> Scores:
        del theta, memory
        return {}


@dataclass(frozen=True)
class NumbersTask:
    inputs: Sequence[Theta]
    name: str = "numbers"
    metrics: tuple[Metric, ...] = ()

    def count_parameters(self) -> int:
        return self.inputs[0].size

    def initial_model(self, seed: int) -> Theta:
        del seed
        return np.zeros(self.count_parameters(), np.float32)

    def learner(self, *, index: int, clients: int, seed: int) -> NumbersLearner:
        del clients, seed
        return NumbersLearner(self.inputs[index])


@dataclass(frozen=True, kw_only=True)
class RangedTask(NumbersTask):
    """Numbers with ranges of their own."""

    ranges: Sequence[float]
