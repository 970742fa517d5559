"""The checks that all tasks share: vectors, scores, clients, optional dependencies; and reports of progress."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from hubbub.errors import ConfigurationError, LocalError
from hubbub.protocol.metrics import BINARY, CLASSIFICATION, Metric, Scores, regression
from hubbub_trainer.learning.task import (
    TaskFailed,
    check_client,
    check_memory,
    check_scores,
    check_theta,
    report_progress,
    require,
)

LOSS = Metric("loss", low=-1.0, high=4.0, higher_is_better=False)
AUC = Metric("auc", kind="auc", bins=2)
R2 = regression(-10.0, 20.0)


@pytest.mark.parametrize(("shape", "dtype"), [((6,), np.float32), ((7,), np.float64), ((7, 1), np.float32)])
def test_vectors_of_another_length_or_type_are_refused(shape: tuple[int, ...], dtype: type[np.float32]) -> None:
    right, wrong = np.zeros(7, dtype=np.float32), np.zeros(shape, dtype=dtype)
    check_theta(right, 7)
    check_memory(right, 7)
    check_memory(None, 7)

    with pytest.raises(LocalError, match="flat float32 vector of 7 elements"):
        check_theta(wrong, 7)
    with pytest.raises(LocalError, match="memory in this task is a flat float32 vector of 7 elements"):
        check_memory(wrong, 7)


@pytest.mark.parametrize(("index", "clients"), [(5, 5), (-1, 5), (0, 0)])
def test_client_outside_of_the_cohort_is_refused(index: int, clients: int) -> None:
    with pytest.raises(ConfigurationError, match=f"no client {index} among {clients}"):
        check_client(index, clients)


@pytest.mark.parametrize("steps", [1, 2, 19, 20, 21, 39, 100, 1_001])
def test_progress_is_reported_at_most_twenty_times_and_at_the_end(steps: int) -> None:
    reports: list[tuple[int, int]] = []

    batches = list(report_progress(range(steps), lambda *report: reports.append(report)))

    assert batches == list(range(steps))
    assert min(steps, 10) <= len(reports) <= 20
    assert reports == sorted(set(reports))
    assert reports[-1] == (steps, steps)


def test_a_missing_module_is_named_with_the_extra_to_install() -> None:
    require("numpy", wanted_by="everybody", extra="none")

    with pytest.raises(ConfigurationError) as refusal:
        require("no_such_module", wanted_by="the page", extra="dashboard")

    assert str(refusal.value) == (
        "the page needs no_such_module, which is not installed here: pip install 'hubbub[dashboard]'"
    )


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
)
def test_scores_that_differ_from_what_is_declared_are_refused(metrics: Any, scores: Scores, said: str) -> None:
    with pytest.raises(TaskFailed, match=said):
        check_scores(metrics, scores)
