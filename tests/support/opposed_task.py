"""A task in which one client goes up and all others down, everywhere by the same amounts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hubbub.strategies.base import Theta
from hubbub_trainer.learning.synthetic import SyntheticTask
from hubbub_trainer.learning.task import ProgressCallback, Training
from support.recorded_run import SEED
from support.wrapped_learner import WrappedLearner


@dataclass
class OpposedLearner(WrappedLearner):
    """A client whose update is positive everywhere, or negative everywhere, and otherwise the same."""

    direction: int

    def train(
        self, theta: Theta, *, steps: int, seed: int, progress: ProgressCallback, memory: Theta | None = None
    ) -> Training:
        del steps, seed, progress, memory
        sizes = np.random.default_rng(SEED).uniform(0.5, 1.0, theta.size)
        return Training(theta=theta + (self.direction * sizes).astype(np.float32), memory=None)


class OpposedTask(SyntheticTask):
    """One client goes up and all others down: whoever it is, the sum is the same."""

    up = 0

    def learner(self, *, index: int, clients: int, seed: int) -> OpposedLearner:  # type: ignore[override]
        inner = super().learner(index=index, clients=clients, seed=seed)
        return OpposedLearner(inner, 1 if index == self.up else -1)
