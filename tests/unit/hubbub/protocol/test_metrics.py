"""Metrics: what is contributed, what the sum says, and that nothing undefined makes a difference of its own."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

from hubbub.errors import ConfigurationError
from hubbub.protocol.metrics import (
    BINARY,
    CLASSIFICATION,
    MODULUS,
    Metric,
    Scores,
    ScoreSheet,
    Trend,
    bin_probabilities,
    check_metrics,
    format_value,
    reaches,
    regression,
)

LOSS = Metric("loss", high=10.0, higher_is_better=False)


def _decode(sheet: ScoreSheet, *scores: Scores, examples: tuple[int, ...] = ()) -> dict[str, float]:
    counts = examples or (1,) * len(scores)
    shares = [sheet.encode(each, count) for each, count in zip(scores, counts, strict=True)]
    sums = sum(share.astype(np.uint64) for share in shares).astype(np.uint32)  # type: ignore[union-attr]

    assert sheet.plausible(sums, len(scores))
    return sheet.decode(sums, len(scores))


def test_each_client_counts_once_unless_the_manifest_says_that_examples_weigh() -> None:
    sheet = ScoreSheet(CLASSIFICATION, clients=3)
    told = _decode(sheet, {"accuracy": (90, 100), "loss": (10.0, 100)}, {"accuracy": (1, 2), "loss": (4.0, 2)})
    assert told["accuracy"] == pytest.approx(0.7, abs=1e-8)
    assert told["loss"] == pytest.approx(1.05, abs=1e-7)
    sheet = ScoreSheet((Metric("accuracy"),), clients=3, weights="examples", max_examples=1000)

    told = _decode(sheet, {"accuracy": (90, 100)}, {"accuracy": (150, 300)}, examples=(100, 300))

    assert told["accuracy"] == pytest.approx(0.6, abs=1e-6)


@pytest.mark.parametrize("scores", [{}, {"loss": (math.nan, 5)}, {"loss": (1.0, 0)}, {"loss": (math.inf, 5)}])
def test_what_is_undefined_counts_as_the_worst_and_with_its_whole_weight(scores: Scores) -> None:
    sheet = ScoreSheet((LOSS,), clients=2, weights="examples", max_examples=10)

    assert _decode(sheet, scores, examples=(4,))["loss"] == 10.0
    assert sheet.encode(scores, 4)[0] == sheet.encode({"loss": (2.0, 5)}, 4)[0]
    sheet = ScoreSheet((LOSS, Metric("gain", low=-1.0)), clients=2)
    clipped = _decode(sheet, {"loss": (900.0, 3), "gain": (-8.0, 2)})
    assert clipped == {"loss": 10.0, "gain": -1.0}, "no value is beyond the declared bounds"


def test_auc_of_a_summed_histogram_is_that_of_all_examples() -> None:
    rng = np.random.default_rng(3)
    positive = rng.random(400) < 0.5
    probabilities = np.clip(rng.normal(np.where(positive, 0.6, 0.4), 0.15), 0, 1)
    sheet = ScoreSheet((Metric("auc", kind="auc", bins=256),), clients=4)
    parts = [slice(start, start + 100) for start in range(0, 400, 100)]

    told = _decode(
        sheet,
        *({"auc": (bin_probabilities(probabilities[part], positive[part], 256), 100)} for part in parts),
    )

    pairs = probabilities[positive][:, np.newaxis] - probabilities[~positive][np.newaxis, :]
    assert told["auc"] == pytest.approx((pairs > 0).mean(), abs=0.005)


def test_auc_without_one_of_the_classes_is_the_worst() -> None:
    sheet = ScoreSheet((Metric("auc", kind="auc", bins=8),), clients=2)
    only_positives = bin_probabilities(np.array([0.2, 0.9]), np.array([True, True]), 8)

    assert _decode(sheet, {"auc": (only_positives, 2)}) == {"auc": 0.0}
    assert _decode(sheet, {}) == {"auc": 0.0}


def test_r_squared_of_the_sum_is_that_of_all_examples() -> None:
    rng = np.random.default_rng(4)
    targets = rng.uniform(20, 80, 300)
    predictions = targets + rng.normal(0, 5, 300)
    sheet = ScoreSheet(regression(0, 100), clients=3)

    def score(part: slice) -> Scores:
        error = float(((predictions[part] - targets[part]) ** 2).sum())
        of_targets = (float(targets[part].sum()), float((targets[part] ** 2).sum()))
        return {"mse": (error, 100), "r2": ((error, *of_targets), 100)}

    told = _decode(sheet, *(score(slice(start, start + 100)) for start in range(0, 300, 100)))

    assert told["mse"] == pytest.approx(((predictions - targets) ** 2).mean(), rel=1e-5)
    assert told["r2"] == pytest.approx(1 - ((predictions - targets) ** 2).mean() / targets.var(), abs=1e-4)
    assert _decode(sheet, {}) == {"mse": 10_000.0, "r2": -1.0}


def test_sums_beyond_what_members_can_give_are_implausible() -> None:
    sheet = ScoreSheet(CLASSIFICATION, clients=3)
    too_much = np.array([2 * sheet.unit + 1, 0], dtype=np.uint32)

    assert not sheet.plausible(too_much, 2)
    assert sheet.plausible(too_much, 3)
    assert 3 * sheet.unit < MODULUS


def test_a_target_is_reached_despite_rounding_and_in_the_metric_s_direction() -> None:
    sheet = ScoreSheet(CLASSIFICATION, clients=7)
    told = _decode(sheet, *[{"accuracy": (98, 100), "loss": (0.3, 1)}] * 7)

    assert reaches(CLASSIFICATION[0], told["accuracy"], 0.98)
    assert not reaches(CLASSIFICATION[0], told["accuracy"], 0.981)
    assert reaches(CLASSIFICATION[1], told["loss"], 0.3)
    assert not reaches(CLASSIFICATION[1], told["loss"], 0.29)


def test_metrics_that_cannot_be_and_one_that_is_declared_twice_are_refused() -> None:
    wrongs: tuple[dict[str, Any], ...] = (
        *({"name": ""}, {"name": "new\nline"}, {"low": 1.0, "high": 1.0}, {"high": math.inf}),
        *({"kind": "auc"}, {"bins": 8}, {"kind": "r2", "higher_is_better": False}),
    )
    for wrong in wrongs:
        with pytest.raises(ConfigurationError):
            Metric(**{"name": "x", **wrong})
    check_metrics(BINARY)
    with pytest.raises(ConfigurationError, match="declared once"):
        check_metrics((LOSS, LOSS))


def test_accuracy_is_written_as_a_percentage_and_nothing_else_is() -> None:
    assert format_value("accuracy", 0.9812) == "98.12%"
    assert format_value("mse", 2859.69) == "2860"


@given(
    totals=some.lists(some.none() | some.integers(0, 4), max_size=12),
    patience=some.integers(0, 4),
    is_loss=some.booleans(),
)
def test_a_metric_has_stalled_if_the_last_totals_are_all_known_and_none_betters_the_best_before(
    totals: list[int | None], patience: int, *, is_loss: bool
) -> None:
    metric, trend = Metric("points", high=4.0, higher_is_better=not is_loss), Trend()
    for total in totals:
        trend = trend.interrupt() if total is None else trend.add(metric, float(total))
    signed = [None if total is None else -total if is_loss else total for total in totals]
    last = signed[len(signed) - patience :]
    before = [total for total in signed[: len(signed) - patience] if total is not None]

    is_known = 0 < patience <= len(signed) and before and None not in last
    assert trend.has_stalled(patience) is bool(
        is_known and max(total for total in last if total is not None) <= max(before)
    )


def test_a_total_that_is_better_by_rounding_alone_is_no_better_and_small_gains_add_up() -> None:
    metric, trend = Metric("accuracy"), Trend()
    for step in range(5):
        trend = trend.add(metric, 0.5 + step * 2**-22)

    assert (trend.best, trend.since_best) == (0.5, 4)
    assert trend.add(metric, 0.5 + 5 * 2**-22) == Trend(best=0.5 + 5 * 2**-22)
