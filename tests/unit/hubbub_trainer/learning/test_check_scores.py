"""The check of an evaluation's scores, when a trainer starts."""

from __future__ import annotations

import math
from typing import Any

import pytest

from hubbub.protocol.metrics import BINARY, CLASSIFICATION, Metric, Scores, regression
from hubbub_trainer.learning.task import TaskFailed, check_scores

LOSS = Metric("loss", low=-1.0, high=4.0, higher_is_better=False)
AUC = Metric("auc", kind="auc", bins=2)
R2 = regression(-10.0, 20.0)


@pytest.mark.parametrize(
    ("metrics", "scores"),
    [
        (CLASSIFICATION, {"accuracy": (9, 10), "loss": (160.0, 10)}),
        ((LOSS,), {"loss": (-3.0, 3)}),
        ((AUC,), {"auc": ((1, 2, 3, 0), 6)}),
        (R2, {"mse": (450.0, 3), "r2": ((450.0, -30.0, 300.0), 3)}),
        # A sum of float32 may be a little off.
        (CLASSIFICATION, {"accuracy": (10.000001, 10), "loss": (0.0, 10)}),
        ((), {}),
    ],
    ids=["classes", "at-the-bound", "auc", "r2", "rounding", "no-metrics"],
)
def test_scores_as_they_are_declared_pass(metrics: tuple[Metric, ...], scores: Scores) -> None:
    check_scores(metrics, scores)


@pytest.mark.parametrize(
    ("metrics", "scores", "said"),
    [
        (CLASSIFICATION, {"accuracy": (9, 10)}, "does not return 'loss'"),
        ((LOSS,), {"loss": (1.0, 3), "f1": (1.0, 3)}, "returns 'f1', which the task's metrics do not declare"),
        (BINARY, {"auc": (0.9, 1), "accuracy": (1, 1), "loss": (1.0, 1)}, "1 sums for 'auc', which needs 128"),
        ((LOSS,), {"loss": ((1.0, 2.0), 3)}, "2 sums for 'loss', which needs 1"),
        ((LOSS,), {"loss": (math.nan, 3)}, "'loss' that is not finite"),
        ((LOSS,), {"loss": (1.0, math.inf)}, "'loss' that is not finite"),
        ((LOSS,), {"loss": (0.0, 0)}, "no examples for 'loss'"),
        ((LOSS,), {"loss": (12.5, 3)}, "'loss' is outside its bounds, -1 and 4"),
        ((LOSS,), {"loss": (-3.5, 3)}, "'loss' is outside its bounds, -1 and 4"),
        ((AUC,), {"auc": ((1, -1, 3, 0), 3)}, "'auc' is outside its bounds"),
        (R2, {"mse": (450.0, 3), "r2": ((450.0, 100.0, 300.0), 3)}, "'r2' is outside its bounds, -10 and 20"),
    ],
    ids=[
        "missing",
        "not-declared",
        "too-few-sums",
        "too-many-sums",
        "nan",
        "infinite-number",
        "no-examples",
        "too-high",
        "too-low",
        "negative-bin",
        "target-out-of-range",
    ],
)
def test_scores_that_differ_from_what_is_declared_are_refused(metrics: Any, scores: Scores, said: str) -> None:
    with pytest.raises(TaskFailed, match=said):
        check_scores(metrics, scores)
