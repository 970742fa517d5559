"""The model that a run leaves: written, read again, and chosen by the beginning of the run's id."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import numpy as np
import pytest

from hubbub.errors import DataError, LocalError
from hubbub_trainer.saved_model import (
    FILE,
    SALT_BYTES,
    KeptModel,
    choose_model,
    find_models,
    read_kept_model,
    recall_for_successor,
    write_file,
)

THETA = np.arange(6, dtype=np.float32)
SALT = bytes(range(SALT_BYTES))
MODEL = KeptModel(
    run="ab" * 32,
    task="grades",
    seed=2**40,
    theta=THETA,
    buffers={"1.running_mean": np.ones(2), "1.count": np.array(7)},
)


def keep(folder: Path, run: str, at_s: int = 0) -> None:
    place = folder / "runs" / run
    place.mkdir(parents=True)
    (place / FILE).write_bytes(KeptModel(run=run, task="grades", seed=0, theta=THETA).write())
    os.utime(place / FILE, (at_s, at_s))


def test_only_its_owner_may_read_a_file_of_a_run(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        write_file(tmp_path / FILE, MODEL.write())
    finally:
        os.umask(before)

    assert stat.S_IMODE((tmp_path / FILE).stat().st_mode) == 0o600


def test_it_reads_back_as_it_was_written(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(MODEL.write())

    again = read_kept_model(tmp_path)

    assert (again.run, again.task, again.seed) == (MODEL.run, "grades", 2**40)
    assert again.theta.tobytes() == THETA.tobytes()
    assert {name: each.tolist() for name, each in again.buffers.items()} == {
        "1.running_mean": [1.0, 1.0],
        "1.count": 7,
    }


@pytest.mark.parametrize("content", [b"", b"no model", MODEL.write()[:-1], MODEL.write() + b"x"])
def test_what_is_no_model_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE).write_bytes(content)

    with pytest.raises(ValueError, match="holds no model"):
        read_kept_model(tmp_path)


def test_a_run_is_named_by_its_beginning_or_not_at_all_if_it_is_the_only_one(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no run has left a model"):
        choose_model(tmp_path, "")
    with pytest.raises(DataError, match="no run has left a model"):
        choose_model(tmp_path, "latest")
    keep(tmp_path, "ab" * 32, at_s=2)
    assert choose_model(tmp_path, "").run == "ab" * 32
    keep(tmp_path, "ac" * 32, at_s=3)
    keep(tmp_path, "b" * 64, at_s=1)

    assert choose_model(tmp_path, "ac").run == "ac" * 32
    assert choose_model(tmp_path, "latest").run == "ac" * 32
    assert find_models(tmp_path) == ["ac" * 32, "ab" * 32, "b" * 64], "the last first"
    for run, said in (
        ("", "3 runs begin with ''"),
        ("a", "2 runs begin"),
        ("f", "no run begins with 'f': there are a"),
    ):
        with pytest.raises(DataError, match=said):
            choose_model(tmp_path, run)


def test_it_does_not_print() -> None:
    assert "1.0" not in repr(MODEL)
    assert "array" not in repr(MODEL)


def test_who_has_both_files_reads_them_and_who_lacks_one_has_nothing(tmp_path: Path) -> None:
    assert recall_for_successor(tmp_path) is None
    (tmp_path / FILE).write_bytes(MODEL.write())
    assert recall_for_successor(tmp_path) is None
    (tmp_path / "succession.json").write_text(json.dumps({"salt": SALT.hex()}), encoding="utf-8")
    left = recall_for_successor(tmp_path)
    assert left is not None
    assert (left[0], left[1].tobytes()) == (SALT, THETA.tobytes())
    (tmp_path / "succession.json").write_text("{", encoding="utf-8")
    with pytest.raises(LocalError, match=r"bring back succession\.json"):  # No outage to wait for.
        recall_for_successor(tmp_path)
    (tmp_path / "succession.json").unlink()
    assert recall_for_successor(tmp_path) is None
