"""A task whose clients are silent in chosen rounds: dropout without waiting for any clock."""

import threading
from dataclasses import dataclass

from hubbub_trainer.learning.task import ProgressCallback, Task, Theta, Training
from support.patience import HANG_S
from support.wrapped_learner import WrappedLearner, WrappedTask


class Silence:
    """Holds chosen clients back in chosen rounds until it is told that the round has its verdict."""

    def __init__(self, *silent: tuple[int, int], patience_s: float = HANG_S) -> None:
        self._patience_s = patience_s
        self._gates = {pair: threading.Event() for pair in silent}

    def wait(self, index: int, number: int) -> None:
        gate = self._gates.get((index, number))
        if gate is not None and not gate.wait(self._patience_s):
            raise TimeoutError(f"client {index} was never let go in round {number}")

    def lift(self, number: int) -> None:
        for (_, held), gate in self._gates.items():
            if held == number:
                gate.set()

    def hold_again(self, number: int) -> None:
        """From now on, as at first: for a run after another."""
        for (_, held), gate in self._gates.items():
            if held == number:
                gate.clear()

    def lift_all(self) -> None:
        for gate in self._gates.values():
            gate.set()

    def held(self, number: int) -> set[int]:
        return {index for index, held in self._gates if held == number}


@dataclass
class HeldLearner(WrappedLearner):
    """A learner that is silent when it is told to be. It trains once a round, so it can count the rounds."""

    index: int
    silence: Silence
    number: int = 0

    def train(
        self, theta: Theta, *, steps: int, seed: int, progress: ProgressCallback, memory: Theta | None = None
    ) -> Training:
        self.number += 1
        self.silence.wait(self.index, self.number)
        return super().train(theta, steps=steps, seed=seed, progress=progress, memory=memory)


@dataclass
class HeldTask(WrappedTask):
    """A task whose learners can be silenced."""

    silence: Silence

    def learner(self, *, index: int, clients: int, seed: int) -> HeldLearner:
        return HeldLearner(self.inner.learner(index=index, clients=clients, seed=seed), index, self.silence)

    def load(self, name: str) -> Task:
        """Load this one task."""
        assert name == self.inner.name
        return self
