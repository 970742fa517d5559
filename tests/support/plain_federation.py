"""Every strategy of Beguier et al. in the open: what the federation must equal, bit for bit.

Written from the paper with numpy alone; nothing is shared, packed or sent. Marks, signs and factors are added as
plain integers, and dropout is what it means for the sums: members contribute, everybody steps, who was left out
keeps its whole update. Sums of numbers as they are, which the paper's Alg. 1 is for, are here too. So are levels
on a mask and means of whole updates in fixed point, which are not in the paper. Nobody keeps sums or levels.
"""

import hashlib
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from hubbub.crypto.stream import AesCtrStream
from hubbub_trainer.fingerprint import tensor_sizes
from hubbub_trainer.learning.task import Adjustable, Learner, Task

Floats = NDArray[np.float32]
Integers = NDArray[np.int64]
MASKED = "shared-mask"
OWN_MODELS = frozenset({"eastly-tss", "eastly-he"})
SPREAD = {1: 1.0, 2: 2.2, 3: 3.0, 4: 4.0}
BatchSeed = Callable[[int, int], int]
"""Client index and round number to the seed of its batches."""
MaskKey = Callable[[int], bytes]
"""Round number to the key of the stream that all clients draw their mask from."""
MarksKey = Callable[[int, int], bytes]
"""Client index and round number to the key of the stream that its marks are drawn from."""


@dataclass(frozen=True, slots=True)
class FixedPoint:
    """Q(x) = ⌊2^a·min(x, alpha_max)⌋ with the largest a for which C of them stay under 2^32 (section 2.4)."""

    a: int
    alpha_max: float

    @classmethod
    def for_clients(cls, clients: int, alpha_max: float, bits: int = 32) -> "FixedPoint":
        a = 64
        while clients * math.floor(Fraction(2) ** a * Fraction(alpha_max)) >= 2**bits:
            a -= 1
        return cls(a, alpha_max)

    def write(self, x: float) -> int:
        return math.floor(Fraction(2) ** self.a * Fraction(min(x, self.alpha_max)))

    def write_signed(self, x: float) -> int:
        """To the nearest, and half-way to the even one; at the edge of the range no further than its last unit."""
        return max(
            -self.write(self.alpha_max),
            min(round(Fraction(2) ** self.a * Fraction(x)), self.write(self.alpha_max)),
        )

    def read(self, n: int) -> float:
        return float(Fraction(n) / Fraction(2) ** self.a)


@dataclass(slots=True, eq=False)
class PlainClient:
    learner: Learner
    delta: Floats
    """δ, the error accumulator."""
    memory: Floats | None = None
    """The optimiser's, which lives on from round to round."""
    theta: Floats | None = None
    """Its own model, where clients have models of their own; then also what it drew for the round."""
    factor: float = 0.0
    ternary: Integers = field(default_factory=lambda: np.zeros(0, dtype=np.int64))


@dataclass(slots=True)
class Member:
    """A client whose input is in the sums: X, and D and α of TopBinary."""

    client: PlainClient
    x: Floats
    signs: Integers = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    alpha: float = 0.0
    marks: Integers = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    blocks: list[int] = field(default_factory=list)
    """Those that it chose, where blocks are chosen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """What the clients agreed to do."""

    strategy: str = "no-union"
    q: int = 1
    alpha_rule: str = "norm"
    feedback: str = "lost"
    block: int = 1
    bits: int = 2
    learning_rate: float | None = None
    server_momentum: float = 0.0
    weights: str = "equal"
    max_samples: int = 1_000_000
    kappa: float = math.inf
    first_factor_bound: float = math.inf
    factor_floor: float = 0.0


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
        method: Method | None = None,
        marks_key: MarksKey = lambda *_: bytes(32),
        mask_key: MaskKey = lambda _: bytes(32),
    ) -> None:
        self._method = method or Method()
        if self._method.strategy not in RULES:
            raise LookupError(f"{self._method.strategy} has no plaintext twin: write one in {__name__}")
        self.theta: Floats = task.initial_model(seed)
        self.union: Integers = np.arange(self.theta.size)
        """V of the last round."""
        self.alone_share: float | None = None
        """Of V, how much a single member chose."""
        self.velocity: Floats | None = None
        self.means: list[float] = []
        """The mean factor that each round was applied with, where the method has one."""
        self._kept = math.floor(Fraction(str(rho)) * self.theta.size)
        self._steps = local_steps
        self._batch_seed = batch_seed
        self._marks_key = marks_key
        self._mask_key = mask_key
        self._tensors = tensor_sizes(task)
        self._q = FixedPoint.for_clients(clients, alpha_max)
        self._signed_q = FixedPoint.for_clients(clients, alpha_max, bits=31)
        self._mean_q = FixedPoint.for_clients(2, alpha_max, bits=31)
        self.clients = [
            PlainClient(task.learner(index=index, clients=clients, seed=seed), np.zeros_like(self.theta))
            for index in range(clients)
        ]
        if self._method.strategy in OWN_MODELS:
            for client in self.clients:
                client.theta = self.theta

    def play_round(
        self, number: int, members: Collection[int] | None = None, *, idle: Collection[int] = ()
    ) -> None:
        """One round over these members (by default all); all step, also who is no member or did not train."""
        chosen = range(len(self.clients)) if members is None else members
        if self._method.strategy == MASKED:
            self.union = draw_mask(self._tensors, self._kept, self._mask_key(number))
        inside: list[Member] = []
        for index, client in enumerate(self.clients):
            if index not in idle:
                client.delta = self._train(index, number) * self._scale(index) + client.delta
            if client.theta is not None:
                # Every client has a factor for its own model, also one that sends nothing.
                client.factor, client.ternary = draw_ternary(client.delta, self._marks_key(index, number))
            if index in chosen:
                member = Member(client, client.delta)
                self._compress(member, self._marks_key(index, number))
                inside.append(member)
        before = self.theta
        RULES[self._method.strategy](self, inside)
        if self._method.server_momentum:
            self._go_on(before)

    def _go_on(self, before: Floats) -> None:
        """Server momentum: θ + v instead of θ + U, where v = β·v + U and U is what the round has added."""
        step, share = self.theta - before, np.float32(self._method.server_momentum)
        slowed = np.zeros_like(step) if self.velocity is None else share * self.velocity
        velocity = slowed + step
        self.velocity = np.where(np.abs(velocity) >= np.float32(1e-30), velocity, np.float32(0))
        self.theta = before + self.velocity

    def _samples(self, index: int) -> int:
        """The samples that a client counts as."""
        if self._method.weights == "equal":
            return 1
        return min(max(self.clients[index].learner.samples, 1), self._method.max_samples)

    def _weight(self, index: int) -> float:
        """w = n/Σn, over the whole cohort, whoever is a member."""
        return self._samples(index) / sum(map(self._samples, range(len(self.clients))))

    def _scale(self, index: int) -> np.float32:
        """Where a mean over members is taken, the update is scaled by C·w first."""
        plain = self._method.weights == "equal" or self._method.strategy in {"fedavg", "secure-fedavg", "bonawitz"}
        return np.float32(1 if plain else len(self.clients) * self._weight(index))

    def forget(self, index: int) -> None:
        """A client has lost rounds and takes the model from another: what it had not sent yet is lost, too."""
        client = self.clients[index]
        client.delta, client.memory = np.zeros_like(self.theta), None

    def _train(self, index: int, number: int) -> Floats:
        client, seed = self.clients[index], self._batch_seed(index, number)
        learner, masked = client.learner, self._method.strategy == MASKED
        if masked or self._method.learning_rate is not None:
            assert isinstance(learner, Adjustable)
            movable = self.union if masked else None
            learner = learner.adjusted(learning_rate=self._method.learning_rate, movable=movable)
        theta = self.theta if client.theta is None else client.theta
        training = learner.train(
            theta, steps=self._steps, seed=seed, progress=lambda *_: None, memory=client.memory
        )
        client.memory = training.memory
        return training.theta - theta

    # TopBinary (section 3.1) ----------------------------------------------------------------------------

    def _compress(self, member: Member, key: bytes) -> None:
        """D = sgn(Top-k(X)), and α by the rule; ties go to the lower index."""
        x = member.x
        if member.client.theta is not None:
            return
        if self._method.strategy == MASKED:
            change = x[self.union]
            mean = math.fsum(abs(float(value)) for value in change) / change.size
            member.alpha = SPREAD[self._method.bits] * mean
            member.marks = choose_levels(change, self._q.read(self._q.write(member.alpha)), self._method.bits, key)
            return
        if self._method.block > 1:
            member.blocks = choose_blocks(x, self._method.block, self._kept // self._method.block)
            count = math.ceil(x.size / self._method.block)
            member.marks = draw_marks(np.array(member.blocks, dtype=np.int64), count, self._method, key)
            return
        kept = np.lexsort((np.arange(x.size), -np.abs(x)))[: self._kept]
        member.signs = np.zeros(x.size, dtype=np.int64)
        member.signs[kept] = np.sign(x[kept]).astype(np.int64)
        if self._method.strategy.startswith("topbinary"):
            member.signs[kept] = np.where(x[kept] < 0, -1, 1)  # A bit a sign: a zero's has to be one of the two.
        member.alpha = self._choose_alpha(x, np.flatnonzero(member.signs))
        member.marks = draw_marks(np.flatnonzero(member.signs), x.size, self._method, key)

    def _choose_alpha(self, x: Floats, chosen: Integers) -> float:
        if not chosen.size:
            return 0.0
        if self._method.alpha_rule == "mean":
            return math.fsum(abs(float(value)) for value in x[chosen]) / chosen.size
        return math.sqrt(math.fsum(float(value) ** 2 for value in x)) / math.sqrt(chosen.size)

    # What the members' inputs come to -------------------------------------------------------------------

    def _average(self, members: Sequence[Member]) -> None:
        """FedAvg: every member weighs as much as it has samples, if these count (Eq. 2)."""
        weights = [self._samples(self.clients.index(member.client)) for member in members]
        total = np.zeros(self.theta.size, dtype=np.float64)
        for member, weight in zip(members, weights, strict=True):
            total += member.x.astype(np.float64) * weight
            member.client.delta = np.zeros_like(member.x)
        self.theta = self.theta + (total / sum(weights)).astype(np.float32)

    def _aggregate_directly(self, members: Sequence[Member]) -> None:
        """DirectAgg: (1/C)·Σ α_i·D_i."""
        total = np.zeros(self.theta.size, dtype=np.float64)
        for member in members:
            alpha = self._send_float(member)
            total += float(alpha) * member.signs
        self._unite(members)
        self.theta = self.theta + (total / len(members)).astype(np.float32)

    def _aggregate_separately(self, members: Sequence[Member]) -> None:
        """SepAgg: (1/C)·Σ α_i times (1/C)·Σ D_i."""
        alpha = np.float32(sum(float(self._send_float(member)) for member in members))
        self._unite(members)
        self._step(members, float(alpha) / len(members))

    def _aggregate_securely(self, members: Sequence[Member]) -> None:
        """SepAgg on V, with α in fixed point (section 3.2)."""
        if self._method.block > 1:
            self._unite_blocks(members)
        else:
            self._unite(members)
        factors = [self._q.write(member.alpha) for member in members]
        mean = self._q.read(sum(factors)) / len(members)
        applied = self._bound(mean)
        share = applied / mean if mean else 1.0
        inside = np.isin(np.arange(self.theta.size), self.union)
        for member, factor in zip(members, factors, strict=True):
            lost_too = self._method.feedback == "paper"
            sent = member.signs if lost_too else np.where(inside, member.signs, 0)
            alpha = np.float32(self._q.read(factor) * share)
            member.client.delta = member.x - alpha * sent.astype(np.float32)
        self.means.append(applied)
        self._step(members, applied)

    def _add_levels(self, members: Sequence[Member]) -> None:
        """shared-mask: θ moves by (mean α)·(mean level) on V, where a level is a number from -1 to 1."""
        top = 2**self._method.bits - 1
        mean = self._q.read(sum(self._q.write(member.alpha) for member in members)) / len(members)
        self.means.append(self._bound(mean))
        total = np.sum([2 * member.marks - top for member in members], axis=0)
        mean_level = total.astype(np.float32) / np.float32(len(members) * top)
        theta = self.theta.copy()
        theta[self.union] = mean_level * np.float32(self.means[-1]) + theta[self.union]
        self.theta = theta
        for client in self.clients:
            client.delta = np.zeros_like(self.theta)

    def _average_in_fixed_point(self, members: Sequence[Member]) -> None:
        """secure-fedavg, bonawitz: weights of the whole cohort add up to 1, and the whole step is bounded."""
        units = []
        for member in members:
            weight = self._weight(self.clients.index(member.client))
            units.append([self._mean_q.write_signed(float(x) * weight) for x in member.x])
        total = [sum(each) for each in zip(*units, strict=True)]
        mean = math.sqrt(sum(each * each for each in total) / len(total)) / 2**self._mean_q.a
        self.means.append(self._bound(mean))
        share = self.means[-1] / mean if self.means[-1] < mean else 1.0
        self.theta = self.theta + np.array([self._mean_q.read(each) * share for each in total], np.float32)
        for member in members:
            member.client.delta = np.zeros_like(self.theta)

    def _add_ternary(self, members: Sequence[Member]) -> None:
        """EaSTFLy: everybody applies the mean of the ternary vectors by its own factor, to its own model."""
        mean = np.sum([member.client.ternary for member in members], axis=0)
        for client in self.clients:
            assert client.theta is not None
            client.theta = client.theta + (mean * (client.factor / len(members))).astype(np.float32)
        for member in members:
            member.client.delta = np.zeros_like(self.theta)

    def _bound(self, mean: float) -> float:
        """At most κ times the lower median of the means that were applied before, of those that are not zero."""
        before = sorted(applied for applied in self.means if applied > 0)
        if not before:
            return min(mean, self._method.first_factor_bound)
        half = before[: math.ceil(len(before) / 2)]
        return min(mean, max(self._method.kappa * half[-1], self._method.factor_floor))

    def _add_numbers(self, members: Sequence[Member]) -> None:
        """θ = Σ x_i, on V if it is sparse; a client says at most k numbers then, the largest."""
        sent = []
        for member in members:
            said = member.signs != 0 if self._method.strategy == "sparse-sum" else np.ones(member.x.size, bool)
            sent.append([self._signed_q.write_signed(float(x)) for x in np.where(said, member.x, 0)])
            member.signs = np.sign(sent[-1])
        self._unite(members)
        self.theta = np.array([self._signed_q.read(sum(units)) for units in zip(*sent, strict=True)], np.float32)
        for client in self.clients:
            client.delta = np.zeros_like(self.theta)

    @staticmethod
    def _send_float(member: Member) -> np.float32:
        """α as a 32-bit float; α·D leaves the accumulator."""
        alpha = np.float32(member.alpha)
        member.client.delta = member.x - alpha * member.signs.astype(np.float32)
        return alpha

    def _unite(self, members: Sequence[Member]) -> None:
        """V, by the marks (section 3.2.2)."""
        choosers = np.sum([member.signs != 0 for member in members], axis=0)
        self.union = np.flatnonzero(choosers)
        if self._method.strategy in {"no-union", "two-phases", "sum"}:
            self.union = np.arange(self.theta.size)
        if self._method.strategy == "sec-union":
            total = np.sum([member.marks for member in members], axis=0)
            self.union = np.flatnonzero(total % 2**self._method.q)
        alone = int(np.count_nonzero(choosers == 1))
        self.alone_share = alone / np.count_nonzero(choosers) if choosers.any() else None

    def _unite_blocks(self, members: Sequence[Member]) -> None:
        """V is whole blocks, and everybody speaks about all of it: a plus or a minus, and α over V."""
        total = np.sum([member.marks for member in members], axis=0) % 2**self._method.q
        block_of = [index // self._method.block for index in range(self.theta.size)]
        self.union = np.array([i for i, block in enumerate(block_of) if total[block]], dtype=np.int64)
        for member in members:
            member.signs = np.zeros(self.theta.size, dtype=np.int64)
            for index in self.union:
                member.signs[index] = -1 if member.x[index] < 0 else 1
            said = member.x[self.union]
            member.alpha = self._choose_alpha(said, np.arange(said.size))
        choosers = [sum(block in member.blocks for member in members) for block in set(block_of)]
        self.alone_share = choosers.count(1) / (len(choosers) - choosers.count(0)) if any(choosers) else None

    def _step(self, members: Sequence[Member], mean_factor: float) -> None:
        directions = np.sum([member.signs for member in members], axis=0)[self.union]
        mean_signs = directions.astype(np.float32) / np.float32(len(members))
        theta = self.theta.copy()
        theta[self.union] = mean_signs * np.float32(mean_factor) + theta[self.union]
        self.theta = theta

    def digest(self) -> str:
        """SHA-256 of θ as little-endian float32."""
        assert self._method.strategy not in OWN_MODELS
        return digest_model(self.theta)

    def digests(self) -> list[str]:
        """The same of every client's model."""
        return list(map(digest_model, self.models))

    @property
    def models(self) -> list[Floats]:
        """θ once for every client, or the models of their own."""
        return [self.theta if client.theta is None else client.theta for client in self.clients]


def digest_model(theta: Floats) -> str:
    return hashlib.sha256(theta.astype("<f4").tobytes()).hexdigest()


RULES = {
    "fedavg": PlainFederation._average,
    "topbinary-direct": PlainFederation._aggregate_directly,
    "topbinary-sep": PlainFederation._aggregate_separately,
    "sum": PlainFederation._add_numbers,
    "sparse-sum": PlainFederation._add_numbers,
    MASKED: PlainFederation._add_levels,
    **dict.fromkeys(("secure-fedavg", "bonawitz"), PlainFederation._average_in_fixed_point),
    **dict.fromkeys(OWN_MODELS, PlainFederation._add_ternary),
    **dict.fromkeys(
        ("no-union", "sec-union", "partial-sec-union", "plaintext-union", "two-phases"),
        PlainFederation._aggregate_securely,
    ),
}
"""Strategy to what its members' inputs come to; `two-phases` is no-union in two phases."""


def draw_mask(tensors: Sequence[int], n: int, key: bytes) -> Integers:
    """n coordinates; of each tensor as many as its share by the root of its size, those with the least words.

    Shares are rounded down, and what is then missing goes to the tensors that lost most by it. A tensor whose
    share is at least its size is chosen whole, and the others share what is left.
    """
    shares = [Fraction(0)] * len(tensors)
    roots = [Fraction(math.isqrt(size * 4**32), 2**32) for size in tensors]
    while True:
        parts = [place for place in range(len(tensors)) if shares[place] < tensors[place]]
        left = n - sum(size for place, size in enumerate(tensors) if place not in parts)
        for place in parts:
            shares[place] = left * roots[place] / sum(roots[each] for each in parts)
        if not any(shares[place] >= tensors[place] for place in parts):
            break
        shares = [
            Fraction(0) if share < size else Fraction(size) for share, size in zip(shares, tensors, strict=True)
        ]
    counts = [math.floor(share) for share in shares]
    by_loss = sorted(range(len(tensors)), key=lambda place: (counts[place] - shares[place], place))
    for place in by_loss[: n - sum(counts)]:
        counts[place] += 1
    stream, mask, start = AesCtrStream(key), list[int](), 0
    for size, count in zip(tensors, counts, strict=True):
        words = [0] * size
        if 0 < count < size:
            drawn = np.zeros(4 * size, dtype=np.uint8)
            stream.fill(drawn)
            words = [int.from_bytes(drawn[4 * place : 4 * place + 4].tobytes(), "little") for place in range(size)]
        least = sorted(range(size), key=lambda place: (words[place], place))[:count]
        mask += [start + place for place in sorted(least)]
        start += size
    return np.array(mask, dtype=np.int64)


def choose_levels(change: Floats, alpha: float, bits: int, key: bytes) -> Integers:
    """A level from 0 to 2^b - 1 for each change, the nearer of two more often; one bit is the sign."""
    top, stream, word = 2**bits - 1, AesCtrStream(key), np.zeros(4, dtype=np.uint8)
    levels = []
    for value in map(float, change):
        if bits == 1:
            part = math.copysign(1, value) if value else 0.0
        else:
            part = max(-1.0, min(1.0, value / alpha)) if alpha else 0.0
        stream.fill(word)
        levels.append(math.floor((part + 1) * (top / 2) + int.from_bytes(word.tobytes(), "little") / 2**32))
    return np.array(levels, dtype=np.int64)


def draw_ternary(x: Floats, key: bytes) -> tuple[float, Integers]:
    """max |x|, and each x's sign where a word of the stream is below |x| over that."""
    stream, word, factor = AesCtrStream(key), np.zeros(4, dtype=np.uint8), float(max(map(abs, x)))
    ternary = np.zeros(x.size, dtype=np.int64)
    for index, value in enumerate(map(float, x)):
        if factor:
            stream.fill(word)
            is_drawn = int.from_bytes(word.tobytes(), "little") < abs(value) * (2.0**32 / factor)
            ternary[index] = int(np.sign(value)) if is_drawn else 0
    return factor, ternary


def choose_blocks(x: Floats, block: int, count: int) -> list[int]:
    """The blocks of largest norm, none of them all zeros, ascending; ties go to the lower one."""
    starts = range(0, x.size, block)
    norms = [math.fsum(float(value) ** 2 for value in x[start : start + block]) for start in starts]
    largest = sorted(range(len(norms)), key=lambda place: (-norms[place], place))[:count]
    return sorted(place for place in largest if norms[place] > 0)


def draw_marks(chosen: Integers, n: int, method: Method, key: bytes) -> Integers:
    """R ∈ Z*_{2^q} at the chosen indices, in their order: each is 1 + a word of the stream, reduced.

    Words have 1, 2 or 4 bytes, little-endian. Those from the largest multiple of 2^q - 1 on are left out, for they
    would make small marks likelier. With q = 1 there is one mark and nothing is drawn.
    """
    marks = np.zeros(n, dtype=np.int64)
    values = 2**method.q - 1
    size = 1 if method.q <= 8 else 2 if method.q <= 16 else 4
    limit = 256**size // values * values
    stream, word = AesCtrStream(key), np.zeros(size, dtype=np.uint8)
    for index in chosen:
        drawn = limit if method.q > 1 else 0
        while drawn >= limit:
            stream.fill(word)
            drawn = int.from_bytes(word.tobytes(), "little")
        marks[index] = 1 + drawn % values
    return marks
