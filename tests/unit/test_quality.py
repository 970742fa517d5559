"""The benchmark of models, on a part of its table."""

import numpy as np
import pytest
from benchmarks import quality


def test_hospitals_have_their_parts_of_the_rows_and_skewed_labels() -> None:
    hospitals, held_back = quality.deal("cancer", seed=0)

    sizes = [len(each.targets) for each in hospitals]
    shares = [float(each.targets.float().mean()) for each in hospitals]
    assert sum(sizes) + len(held_back.targets) == len(quality.load("cancer").targets) == 569
    assert np.allclose(np.array(sizes) / sum(sizes), quality.PARTS, atol=0.01)
    assert shares == sorted(shares)
    assert shares[-1] - shares[0] > 0.3


def test_what_is_recommended_scores_what_weighted_fedavg_does(monkeypatch: pytest.MonkeyPatch) -> None:
    fedavg, recommended = list(quality.WAYS)[:2]
    monkeypatch.setattr(quality, "WAYS", {name: quality.WAYS[name] for name in (fedavg, recommended)})
    monkeypatch.setattr(quality, "MODELS", quality.MODELS[2:3])
    monkeypatch.setattr(quality, "ROUNDS", 4)

    sheet = quality.main(["--seeds", "1", "--parts", "10,3,1"])

    scores = {name: float(score) for name, score in sheet.rows}
    assert sheet.columns == ("", "diabetes, linear, N = 11")
    assert scores.keys() == {"pooled", fedavg, recommended}
    assert scores[recommended] == pytest.approx(scores[fedavg], abs=0.001)
    assert scores[recommended] > 0.2
