"""Ways to agree on V, and one run with one of them: everybody's inputs in one place, summed in the open."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hubbub.parameters import Parameters
from hubbub.protocol import aggregate, compression
from hubbub.protocol.dense import dense_bits
from hubbub_trainer.learning.task import Task, Training

CLIENTS, SERVERS = 5, 2
SEED_BITS = 256
COARSE_Q = 8
# The references' union loses nothing.
EXACT = 32

Floats = NDArray[np.float32]
Integers = NDArray[np.int64]
Mask = NDArray[np.bool_]


# What the compact wire carries ----------------------------------------------------------------------------


def phase_bits(*vectors: tuple[int, int]) -> int:
    """One phase of secure sums of n elements mod m: C full shares up, S-1 partial sums across, C sums down."""
    passes = 2 * CLIENTS + SERVERS - 1
    return passes * sum(dense_bits(n, m) for n, m in vectors) + CLIENTS * (SERVERS - 1) * SEED_BITS


# The ways -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """How V is agreed on, and who says what about it."""

    name: str
    rho: float = 0.1
    q: int = 1
    block: int = 1
    """Indices are chosen in blocks of so many neighbours, by their norm: one mark for a block."""
    everybody: bool = False
    """All give a sign for all of V, whoever chose it; otherwise each for what it chose itself."""
    alpha: str = "norm"
    """The paper's ‖X‖/√k, or `support`: the root mean square of X over V, or over what is said of it."""
    refresh: int = 1
    """A union every so many rounds; in between, the last V."""
    parts: int = 1
    """From the second round on, the union is over one part in so many of the blocks; the rest of V stays."""
    floats: bool = False
    """Factors as 32-bit floats, as the insecure baselines send them; otherwise in fixed point."""
    coarse: int = 0
    """Two levels: first the union over blocks of so many indices, with marks of 8 bits, then inside of them."""

    @property
    def keeps(self) -> bool:
        """Whether V may hold indices of earlier rounds."""
        return self.refresh > 1 or self.parts > 1

    @property
    def signs_modulus(self) -> int:
        """What the signs are added in.

        If everybody speaks, the sum is known from how many say plus: C + 1 values. What an odd number of clients
        chose (q = 1) has an odd sum, and an odd m > C already tells odd sums up to ±C apart.
        """
        if self.everybody:
            return CLIENTS + 1
        if self.q == 1 and not self.keeps:
            return CLIENTS + 1 + CLIENTS % 2
        return 2 * CLIENTS + 1


# One run -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Told:
    """What one round carried, and what it told."""

    bits: int
    union_size: int
    alone: float = 0.0
    """Of V's blocks, those that a single client chose."""
    single: float = 0.0
    """Of V's indices, those where D is one client's sign, whoever's it is."""
    unanimous: float = 0.0
    """Of V's indices, those where D tells everybody's sign, as all are the same."""


class Run:
    """The clients of one run: model, accumulators, and what the released sums have told everybody."""

    def __init__(self, task: Task, way: Way, seed: int, train: Callable[..., Training]) -> None:
        self.theta: Floats = task.initial_model(seed)
        self._way = way
        self._train = train
        self._parameters = Parameters(
            parameters=self.theta.size,
            clients=CLIENTS,
            servers=SERVERS,
            rho=way.rho,
            q=way.q if way.q < EXACT else 1,
        )
        self._deltas: list[Floats] = [np.zeros_like(self.theta) for _ in range(CLIENTS)]
        self._memories: list[Floats | None] = [None] * CLIENTS
        self._marks = np.random.default_rng([0x6D61726B, seed])
        self._block_of = np.arange(self.theta.size) // way.block
        self._blocks = int(self._block_of[-1]) + 1
        # Public: everybody derives it from the manifest.
        self._part_of = np.random.default_rng([0x70617274, seed]).permutation(self._blocks) % way.parts
        self._support: Mask = np.zeros(self._blocks, dtype=np.bool_)

    def play(self, number: int) -> Told:
        """Train, agree on V, add signs and factors, step."""
        wanted = []
        for index in range(CLIENTS):
            training = self._train(index, number, self.theta, self._memories[index])
            self._memories[index] = training.memory
            wanted.append(training.theta - self.theta + self._deltas[index])
        fresh = self._candidates(number)
        chosen = [self._choose(x, fresh) for x in wanted]
        bits = self._unite(chosen, fresh)
        support = np.flatnonzero(self._support[self._block_of])
        spoken = [self._speak(x, mine, support) for x, mine in zip(wanted, chosen, strict=True)]
        bits += self._add(wanted, spoken, support)
        choosers = np.sum(chosen, axis=0)[self._support]
        speakers = np.count_nonzero(np.stack(spoken)[:, support], axis=0)
        sums = np.abs(np.stack(spoken)[:, support].sum(axis=0, dtype=np.int32))
        return Told(bits, support.size, _share(choosers == 1), _share(speakers == 1), _share(sums == CLIENTS))

    def _candidates(self, number: int) -> Mask:
        """The blocks that this round's union is over: known to all from the manifest and the round's number."""
        if self._way.parts > 1 and number > 1:
            mine: Mask = self._part_of == number % self._way.parts
            return mine
        return np.full(self._blocks, (number - 1) % self._way.refresh == 0)

    def _choose(self, x: Floats, fresh: Mask) -> Mask:
        """The top blocks among the candidates (in a round without any, within V)."""
        among = np.flatnonzero(fresh if fresh.any() else self._support)
        energies = np.sqrt(np.bincount(self._block_of, weights=x.astype(np.float64) ** 2)).astype(np.float32)
        wanted = self._parameters.kept // self._way.block
        if self._way.parts > 1:
            wanted = wanted * among.size // self._blocks
        chosen = np.zeros(self._blocks, dtype=np.bool_)
        chosen[among[compression.top_k(energies[among], min(wanted, among.size))]] = True
        return chosen

    def _unite(self, chosen: Sequence[Mask], fresh: Mask) -> int:
        """Add the marks of the candidates; V is what is not zero, and what stays of the last one."""
        if not fresh.any():
            return 0
        bits = 0
        if self._way.coarse:
            fresh, bits = self._activate(chosen)
        total = sum(np.where(mine & fresh, self._draw_marks(self._way.q, mine.size), 0) for mine in chosen)
        kept = self._support if self._way.parts > 1 else np.zeros_like(fresh)
        self._support = np.where(fresh, total % 2**self._way.q != 0, kept)
        return bits + phase_bits((int(np.count_nonzero(fresh)), 2**self._way.q))

    def _activate(self, chosen: Sequence[Mask]) -> tuple[Mask, int]:
        """The first of two levels: what lies in a coarse block whose marks do not add up to zero."""
        coarse = np.arange(self._blocks) // self._way.coarse
        count = int(coarse[-1]) + 1
        touched = [np.bincount(coarse, weights=mine) > 0 for mine in chosen]
        total = sum(np.where(mine, self._draw_marks(COARSE_Q, count), 0) for mine in touched)
        active = total % 2**COARSE_Q != 0
        return active[coarse], phase_bits((count, 2**COARSE_Q))

    def _draw_marks(self, q: int, count: int) -> Integers:
        return self._marks.integers(1, 2**q, size=count)

    def _speak(self, x: Floats, mine: Mask, support: Integers) -> NDArray[np.int8]:
        """The signs that a client sends, 0 elsewhere; zero has a sign, too, where everybody must give one."""
        signs = np.zeros(x.size, dtype=np.int8)
        if self._way.everybody:
            signs[support] = np.where(x[support] < 0, -1, 1)
        else:
            said = support[mine[self._block_of[support]]]
            signs[said] = np.sign(x[said])
        return signs

    def _add(self, wanted: Sequence[Floats], spoken: Sequence[NDArray[np.int8]], support: Integers) -> int:
        """The sums of signs and factors, and what they do to model and accumulators."""
        point = self._parameters.fixed_point
        factors = [self._factor(x, mine, support) for x, mine in zip(wanted, spoken, strict=True)]
        if self._way.floats:
            factors = [float(np.float32(factor)) for factor in factors]
        else:
            factors = [point.from_ring(point.to_ring(factor)) for factor in factors]
        alpha = float(np.float32(sum(factors))) if self._way.floats else sum(factors)
        for index, (x, mine) in enumerate(zip(wanted, spoken, strict=True)):
            self._deltas[index] = compression.accumulate_error(x, factors[index], mine)
        directions: NDArray[np.int32] = np.stack(spoken)[:, support].sum(axis=0, dtype=np.int32)
        after = self.theta.copy()
        after[support] = aggregate.apply_sum(self.theta[support], directions, alpha / CLIENTS, CLIENTS)
        self.theta = after
        return phase_bits((support.size, self._way.signs_modulus), (1, point.modulus))

    def _factor(self, x: Floats, mine: NDArray[np.int8], support: Integers) -> float:
        if self._way.alpha == "support":
            said = np.count_nonzero(mine)
            return math.sqrt(float((x[support].astype(np.float64) ** 2).sum()) / said) if said else 0.0
        return compression.scaling_factor(x, compression.top_k(x, self._parameters.kept))


def _share(which: Mask) -> float:
    return float(which.mean()) if which.size else 0.0
