"""Algorithm 2 of Beguier et al. with V = [1, N], in the open: what the secure federation must equal, bit for bit.

Written from the paper with numpy alone; nothing is shared, packed or sent. Signs and factors are added as plain
integers, and dropout is what it means for the sums: members contribute, everybody steps, who was left out keeps
its whole update.
"""

import hashlib
import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from hubbub_trainer.learning.task import Learner, Task

Floats = NDArray[np.float32]
BatchSeed = Callable[[int, int], int]
"""Client index and round number to the seed of its batches."""


@dataclass(frozen=True, slots=True)
class FixedPoint:
    """Q(x) = ⌊2^a·min(x, alpha_max)⌋ with the largest a for which C of them stay under 2^32 (section 2.4)."""

    a: int
    alpha_max: float

    @classmethod
    def for_clients(cls, clients: int, alpha_max: float) -> "FixedPoint":
        a = 64
        while clients * math.floor(Fraction(2) ** a * Fraction(alpha_max)) >= 2**32:
            a -= 1
        return cls(a, alpha_max)

    def write(self, x: float) -> int:
        return math.floor(Fraction(2) ** self.a * Fraction(min(x, self.alpha_max)))

    def read(self, n: int) -> float:
        return float(Fraction(n) / Fraction(2) ** self.a)


@dataclass(slots=True)
class PlainClient:
    learner: Learner
    delta: Floats
    """δ, the error accumulator."""


class PlainFederation:
    """All clients and their sums, in one place."""

    def __init__(
        self,
        task: Task,
        *,
        clients: int,
        rho: float,
        local_steps: int,
        seed: int,
        alpha_max: float,
        batch_seed: BatchSeed,
    ) -> None:
        self.theta: Floats = task.initial_model(seed)
        self._kept = math.floor(Fraction(str(rho)) * self.theta.size)
        self._steps = local_steps
        self._batch_seed = batch_seed
        self._q = FixedPoint.for_clients(clients, alpha_max)
        self.clients = [
            PlainClient(task.learner(index=index, clients=clients, seed=seed), np.zeros_like(self.theta))
            for index in range(clients)
        ]

    def play_round(self, number: int, members: Collection[int] | None = None) -> None:
        """One round over these members (by default all); everybody steps, also who is no member."""
        chosen = range(len(self.clients)) if members is None else members
        signs_sum = np.zeros(self.theta.size, dtype=np.int64)
        factor_sum = 0
        for index, client in enumerate(self.clients):
            x = self._train(index, number) + client.delta
            client.delta = x
            if index in chosen:
                signs, factor = self._compress(x)
                signs_sum += signs
                factor_sum += factor
                client.delta = x - np.float32(self._q.read(factor)) * signs.astype(np.float32)
        mean_signs = signs_sum.astype(np.float32) / np.float32(len(chosen))
        mean_factor = np.float32(self._q.read(factor_sum) / len(chosen))
        self.theta = mean_signs * mean_factor + self.theta

    def _train(self, index: int, number: int) -> Floats:
        seed = self._batch_seed(index, number)
        trained = self.clients[index].learner.train(
            self.theta, steps=self._steps, seed=seed, progress=lambda *_: None
        )
        return trained - self.theta

    def _compress(self, x: Floats) -> tuple[NDArray[np.int64], int]:
        """D = sgn(Top-k(X)) and Q(α) with α = ‖X‖₂ / ‖D‖₂; ties go to the lower index."""
        largest_first = np.lexsort((np.arange(x.size), -np.abs(x)))
        signs = np.zeros(x.size, dtype=np.int64)
        kept = largest_first[: self._kept]
        signs[kept] = np.sign(x[kept]).astype(np.int64)
        nonzeros = int(np.abs(signs).sum())
        if not nonzeros:
            return signs, 0
        norm = math.sqrt(math.fsum(float(value) ** 2 for value in x))
        return signs, self._q.write(norm / math.sqrt(nonzeros))

    def digest(self) -> str:
        """SHA-256 of θ as little-endian float32."""
        return hashlib.sha256(self.theta.astype("<f4").tobytes()).hexdigest()
