"""`hubbub reproduce` as a user sees it; what it runs and writes is tested with hubbub_local.reproduce."""

import json
import logging
from collections.abc import Sequence
from pathlib import Path

import pytest

from hubbub_trainer.learning.synthetic import SyntheticTask
from support.command_line import Hubbub

QUICK = ("--strategies", "fedavg", "--clients", "2", "--max-rounds", "1", "--local-steps", "2", "--seeds", "3")


def test_the_folder_is_named_after_the_experiment_and_the_log_is_left_as_it_was(
    hubbub: Hubbub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hubbub_local.reproduce.runner.load_task_of", lambda *_: SyntheticTask(300))
    monkeypatch.chdir(tmp_path)
    before = list(logging.getLogger().handlers)

    said = hubbub("reproduce", "cifar10", *QUICK).check_done()

    assert "Report: reproduce-cifar10/report.md" in said
    assert Path("reproduce-cifar10/report.md").read_text("utf-8").startswith("# AlexNet on CIFAR-10 to 80 %")
    (found,) = json.loads(Path("reproduce-cifar10/results.json").read_text("utf-8"))["results"]
    assert (found["strategy"], found["seed"], found["reached"]) == ("fedavg", 3, False)
    assert found["by_round"][0]["payload_bits"] == 2 * 2 * 32 * 300
    assert logging.getLogger().handlers == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("minst",), "did you mean 'mnist'?"),
        (("mnist", "--strategies", "no-unoin"), "did you mean 'no-union'?"),
        (("mnist", "--strategies", "no-union,"), "there is no strategy ''"),
        (("mnist", "--wire", "papre"), "did you mean 'paper'?"),
        (("mnist", "--seeds", "0,x"), "'x' is no seed"),
        (("mnist", "--seeds", "-1"), "'-1' is no seed"),
        (("mnist", "--target", "98"), "did you mean 0.98?"),
        (("mnist", "--partition", "dirichlet:-1"), "such as dirichlet:0.5"),
        (("mnist", "--data", "nowhere"), "there is no data set and no folder 'nowhere'"),
        (("mnist", "--data", "digits", "--clients", "1"), "at least 2"),
        (("mnist", "--data", "digits", "--servers", "1"), "at least 2"),
        (("mnist", "--data", "digits", "--rho", "2"), "rho"),
    ],
)
def test_what_cannot_be_is_told_in_one_line_with_exit_code_2(
    hubbub: Hubbub, arguments: Sequence[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    hubbub("reproduce", *arguments).check_refused(message)

    assert list(tmp_path.iterdir()) == []
