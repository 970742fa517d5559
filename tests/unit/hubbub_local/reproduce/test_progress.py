"""What is kept: whole at any moment, read again as it was, and never mixed with runs of other settings."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from hubbub.errors import ConfigurationError
from hubbub_local.reproduce.plan import list_methods, papers_settings
from hubbub_local.reproduce.progress import FILE, open_ledger
from support.reproduced import make_run

MNIST = papers_settings("mnist")


def test_what_is_kept_is_read_again_as_it_was(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path / "out", MNIST, resume=False)
    records = [make_run("no-union"), make_run("sec-union-letter", seed=1, accuracies=[0.4])]

    for record in records:
        ledger.keep(record)

    assert open_ledger(tmp_path / "out", MNIST, resume=True).records == records


def test_a_run_with_other_blocks_is_not_taken_for_this_one(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path, MNIST, resume=False)
    ledger.keep(make_run("sec-union-blocks"))

    assert ledger.find_finished(list_methods()["sec-union-blocks"], 0) is not None
    with pytest.raises(ConfigurationError, match="with blocks of 16: give --block 16"):
        ledger.find_finished(list_methods(8)["sec-union-blocks"], 0)


def test_a_later_state_of_a_run_takes_the_place_of_the_earlier(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path, MNIST, resume=False)
    ledger.keep(replace(make_run("no-union", accuracies=[0.5]), finished=False))
    method = list_methods()["no-union"]
    assert ledger.find_finished(method, 0) is None

    ledger.keep(make_run("no-union"))

    found = open_ledger(tmp_path, MNIST, resume=True).find_finished(method, 0)
    assert found is not None
    assert found.rounds == 2
    assert ledger.find_finished(method, 1) is None


def test_the_file_has_for_programs_what_json_prints(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path, MNIST, resume=False)
    record = make_run("sec-union-q5-letter", accuracies=[0.25, 0.5, 0.75])

    ledger.keep(record)

    kept = json.loads((tmp_path / FILE).read_text("utf-8"))["results"][0]
    assert kept.items() >= record.summarise().items()
    assert (kept["strategy"], kept["q"], kept["rounds"], kept["reached"]) == ("sec-union", 5, 3, False)
    assert (kept["accuracy"], kept["mean_union"]) == (0.75, 1000)
    assert (kept["total_bytes"], kept["predicted_bytes"]) == (3 * 2**20, 3 * 2**20)
    assert kept["client_cpu_s"] == pytest.approx(0.15), "the mean over clients"
    assert kept["server_cpu_s"] == pytest.approx(0.3), "the busiest server"
    assert kept["training_cpu_s"] == pytest.approx(2.0), "of one client"
    assert len(kept["by_round"]) == 3


def test_a_folder_with_something_in_it_is_refused_without_resume(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")

    with pytest.raises(ConfigurationError, match=r"not empty.*--resume.*--out"):
        open_ledger(tmp_path, MNIST, resume=False)


def test_a_folder_of_something_else_cannot_be_resumed(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")

    with pytest.raises(ConfigurationError, match=r"no results\.json"):
        open_ledger(tmp_path, MNIST, resume=True)


def test_an_empty_folder_is_begun_with_or_without_resume(tmp_path: Path) -> None:
    assert open_ledger(tmp_path, MNIST, resume=True).records == []


def test_other_settings_are_refused_by_name(tmp_path: Path) -> None:
    open_ledger(tmp_path, MNIST, resume=False).keep(make_run("no-union"))

    with pytest.raises(ConfigurationError) as refused:
        open_ledger(tmp_path, replace(MNIST, clients=3, rho=0.2), resume=True)

    assert "--clients 3 instead of 5" in str(refused.value)
    assert "--rho 0.2 instead of 0.1" in str(refused.value)
    assert "--servers" not in str(refused.value)


def test_another_version_of_the_program_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_ledger(tmp_path, MNIST, resume=False).keep(make_run("no-union"))
    monkeypatch.setattr("hubbub_local.reproduce.progress.__version__", "99.0")

    with pytest.raises(ConfigurationError, match=r"hubbub 99\.0 instead of"):
        open_ledger(tmp_path, MNIST, resume=True)


@pytest.mark.parametrize("content", ["", "{", '{"settings": {}}', "[]"])
def test_a_damaged_file_is_told_in_a_sentence(content: str, tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(content)

    with pytest.raises(ConfigurationError, match=r"cannot be read \(\w[^\[]+\): choose another"):
        open_ledger(tmp_path, MNIST, resume=True)


def test_a_file_in_the_place_of_the_folder_is_told_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("a file")

    with pytest.raises(ConfigurationError, match="cannot be used"):
        open_ledger(tmp_path / "out", MNIST, resume=False)
