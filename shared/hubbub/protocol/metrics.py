"""Metrics: named scores of a model, which clients sum securely; not in the paper.

A task declares its metrics with their bounds, and its `evaluate` returns for each name a sum over its examples and
their number (or weight). There are three kinds, by what is summed for an example and what is computed from it:

    mean   a number between low and high                  its mean: accuracy, loss, mean squared error
    r2     squared error, target and squared target       1 - squared error / variance of the targets
    auc    a one in the bin of its probability, positives and negatives apart
                                                          the area under the ROC curve

A client turns its means into components between 0 and 1, and contributes them as integers. By default each client
counts once. A value that is missing, undefined or not finite counts as the worst that the bounds allow, so that a
failed evaluation looks like a bad one.

Everything is decoded from the summed integers in exact arithmetic, so that all clients report the same bits.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hubbub.errors import ConfigurationError
from hubbub.protocol.layout import Vector
from hubbub.protocol.ring import Residues

MetricKind: TypeAlias = Literal["mean", "r2", "auc"]
Scores: TypeAlias = Mapping[str, tuple[float | Sequence[float], float]]
"""Result of `evaluate`: for each metric its sum (or sums) over the examples, and the number of examples."""
ScoreWeights: TypeAlias = Literal["equal", "examples"]

NAME = "scores"
"""Name of the phase, of its vector and of the traffic category."""
MODULUS = 2**32
NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,39}$"
MIN_BINS, MAX_BINS = 2, 4096
WORST_R2 = -1.0
"""Lowest R² that is reported, since R² has no lower bound."""
_TERMS = {"mean": 1, "r2": 3}
_DIGITS = 7
"""Significant digits of a decoded metric; the rest is rounding."""


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric as a task declares it."""

    name: str
    low: float = 0.0
    high: float = 1.0
    """Bounds of one example's value; for r2 those of the targets. An AUC has none of its own."""
    higher_is_better: bool = True
    kind: MetricKind = "mean"
    bins: int = 0
    """Bins of an AUC's histogram of probabilities, for positives and again for negatives."""

    def __post_init__(self) -> None:
        if re.fullmatch(NAME_PATTERN, self.name) is None:
            raise ConfigurationError(
                f"a metric's name has 1 to 40 letters, digits, dots, hyphens or underscores, not {self.name!r}"
            )
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise ConfigurationError(
                f"the bounds of {self.name} are {self.low} and {self.high}: give finite ones, the lower first"
            )
        if self.kind == "auc" and not MIN_BINS <= self.bins <= MAX_BINS:
            raise ConfigurationError(f"the histogram of {self.name} needs {MIN_BINS} to {MAX_BINS} bins")
        if self.kind != "auc" and self.bins:
            raise ConfigurationError(f"{self.name} is no AUC: leave its bins out")
        if self.kind != "mean" and not self.higher_is_better:
            raise ConfigurationError(f"{self.name}: of an AUC and of R², more is better")

    @property
    def width(self) -> int:
        """The number of components that are summed for it."""
        return 2 * self.bins if self.kind == "auc" else _TERMS[self.kind]

    @property
    def range(self) -> tuple[float, float]:
        """The lowest and the highest value that it can have."""
        if self.kind == "mean":
            return self.low, self.high
        return (WORST_R2, 1.0) if self.kind == "r2" else (0.0, 1.0)

    @property
    def best(self) -> float:
        """The best value that it can have."""
        return self.range[self.higher_is_better]

    @property
    def worst(self) -> float:
        """The value that an undefined score counts as."""
        return self.range[not self.higher_is_better]

    def normalise(self, total: float | Sequence[float], weight: float) -> NDArray[np.float64]:
        """Turn sums over a client's examples into components between 0 and 1; the worst ones if that fails."""
        means = np.atleast_1d(np.asarray(total, dtype=np.float64))
        if means.shape != (self.width,) or not (math.isfinite(weight) and weight > 0 and np.isfinite(means).all()):
            return self._worst_components()
        means = means / weight
        span = self.high - self.low
        if self.kind == "mean":
            means = (means - self.low) / span
        elif self.kind == "r2":
            error, target, squared = means
            means = np.array(
                [
                    error / span**2,
                    (target - self.low) / span,
                    (squared - 2 * self.low * target + self.low**2) / span**2,
                ]
            )
        return np.clip(means, 0.0, 1.0) if np.isfinite(means).all() else self._worst_components()

    def _worst_components(self) -> NDArray[np.float64]:
        if self.kind == "mean":
            return np.array([0.0 if self.higher_is_better else 1.0])
        if self.kind == "r2":
            return np.array([1.0, 0.5, 0.25])
        worst = np.zeros(self.width)
        worst[0] = worst[-1] = 0.5  # All positives in the lowest bin, all negatives in the highest.
        return worst

    def evaluate(self, components: Sequence[Fraction]) -> float:
        """Compute the metric from the mean components."""
        if self.kind == "mean":
            return float(Fraction(self.low) + components[0] * (Fraction(self.high) - Fraction(self.low)))
        if self.kind == "r2":
            error, target, squared = components
            variance = squared - target**2
            return max(self.worst, float(1 - error / variance)) if variance > 0 else self.worst
        return self._area(components[: self.bins], components[self.bins :])

    def _area(self, positives: Sequence[Fraction], negatives: Sequence[Fraction]) -> float:
        """Compute the chance that a positive is in a higher bin than a negative; the same bin counts as a half."""
        pairs = sum(positives, Fraction()) * sum(negatives, Fraction())
        if not pairs:
            return self.worst
        won, below = Fraction(), Fraction()
        for positive, negative in zip(positives, negatives, strict=True):
            won += positive * (below + negative / 2)
            below += negative
        return float(won / pairs)


def bin_probabilities(probabilities: NDArray[np.floating], positive: NDArray[np.bool_], bins: int) -> list[float]:
    """Sort predicted probabilities into an AUC's histogram: the bins of positives, then those of negatives."""
    # NaN goes to the worst bin of its kind.
    known = np.where(np.isnan(probabilities), np.where(positive, 0.0, 1.0), np.clip(probabilities, 0.0, 1.0))
    places = np.minimum((known * bins).astype(np.int64), bins - 1)
    return [
        *np.bincount(places[positive], minlength=bins).astype(float).tolist(),
        *np.bincount(places[~positive], minlength=bins).astype(float).tolist(),
    ]


@dataclass(frozen=True, slots=True)
class ScoreSheet:
    """Encoding of a run's metrics as the vector that is summed, and decoding of its sum."""

    metrics: tuple[Metric, ...]
    clients: int
    weights: ScoreWeights = "equal"
    max_examples: int = 1
    """Cap on the examples that a client counts as, if scores are weighted by examples."""

    @property
    def unit(self) -> int:
        """The integer that encodes 1; the sum over all clients stays below the modulus."""
        return (MODULUS - 1) // self.clients

    @property
    def vector(self) -> Vector:
        """The vector that is summed; a weight comes first if clients are weighted."""
        width = sum(metric.width for metric in self.metrics)
        return Vector(NAME, width + (self.weights == "examples"), MODULUS)

    def encode(self, scores: Scores, examples: int) -> Residues:
        """Encode a client's scores; one that is missing counts as the worst."""
        parts = [metric.normalise(*scores.get(metric.name, (math.nan, 0.0))) for metric in self.metrics]
        components = np.concatenate(parts) if parts else np.zeros(0)
        weight = self.unit
        if self.weights == "examples":
            weight = self.unit * min(max(examples, 1), self.max_examples) // self.max_examples
            components = np.concatenate([[1.0], components])
        return np.rint(components * weight).astype(np.uint32)

    def decode_one(self, scores: Scores) -> dict[str, float]:
        """Compute the metrics of a single client, for itself."""
        alone = ScoreSheet(self.metrics, clients=1)
        return alone.decode(alone.encode(scores, 1), 1)

    def plausible(self, sums: Residues, members: int) -> bool:
        """Say whether `members` clients can have these sums; there is no early exit."""
        wide = sums.astype(np.uint64)
        limit = wide[0] if self.weights == "examples" else np.uint64(members * self.unit)
        return bool((wide <= limit).all() & (limit <= members * self.unit))

    def decode(self, sums: Residues, members: int) -> dict[str, float]:
        """Compute the metrics from the sums over the members."""
        values = [int(value) for value in sums]
        whole = members * self.unit
        if self.weights == "examples":
            whole, values = values[0], values[1:]
        if whole == 0:
            return {metric.name: metric.worst for metric in self.metrics}
        result: dict[str, float] = {}
        for metric in self.metrics:
            mine, values = values[: metric.width], values[metric.width :]
            value = metric.evaluate([Fraction(each, whole) for each in mine])
            result[metric.name] = float(f"{value:.{_DIGITS}g}")
        return result


def copy_scores(scores: Scores) -> dict[str, tuple[list[float], float]]:
    """Copy scores as plain Python numbers."""
    return {
        str(name): (np.atleast_1d(np.asarray(total, dtype=np.float64)).tolist(), float(weight))
        for name, (total, weight) in scores.items()
    }


def check_metrics(metrics: Sequence[Metric]) -> None:
    """Raise `ConfigurationError` if two metrics have the same name."""
    names = [metric.name for metric in metrics]
    if len(set(names)) < len(names):
        raise ConfigurationError(f"a metric is declared once: {', '.join(names)}")


def reaches(metric: Metric, value: float, target: float) -> bool:
    """Say whether a decoded value is as good as a target, up to the rounding of the sum."""
    low, high = metric.range
    slack = (high - low) * 2**-20
    return value >= target - slack if metric.higher_is_better else value <= target + slack


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """A metric's totals over the scored rounds of a run, in short: the best one, and the rounds since."""

    best: float | None = None
    """The best of the totals that are known; None before the first."""
    since_best: int = 0
    """The number of scored rounds in a row, up to the last one, whose totals are known and no better."""

    def add(self, metric: Metric, total: float) -> "Trend":
        """Add the total of the next scored round. It is better only by more than the rounding of the sum."""
        if self.best is None or not reaches(metric, self.best, total):
            return Trend(best=total)
        return replace(self, since_best=self.since_best + 1)

    def interrupt(self) -> "Trend":
        """Leave out a round whose total is not known: it may have been the best, so counting begins anew."""
        return replace(self, since_best=0)

    def has_stalled(self, patience: int) -> bool:
        """Return whether the last `patience` scored rounds were no better than the best before; with 0, never."""
        return 0 < patience <= self.since_best


def is_better(metric: Metric, value: float, other: float) -> bool:
    """Say whether a decoded value is better than another."""
    return value > other if metric.higher_is_better else value < other


def format_value(name: str, value: float) -> str:
    """Format a metric's value: an accuracy as a percentage, anything else to four digits."""
    return f"{value:.2%}" if name == "accuracy" else f"{value:.4g}"


CLASSIFICATION = (Metric("accuracy"), Metric("loss", high=16.0, higher_is_better=False))
BINARY = (Metric("auc", kind="auc", bins=64), *CLASSIFICATION)


def regression(low: float, high: float) -> tuple[Metric, ...]:
    """Return the metrics of a regression whose targets lie between these bounds."""
    error = Metric("mse", high=(high - low) ** 2, higher_is_better=False)
    return (Metric("r2", low=low, high=high, kind="r2"), error)
