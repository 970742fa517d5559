"""`hubbub reproduce` as a user sees it; what it runs and writes is tested with hubbub_local.reproduce."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hubbub_cli.main import app, main
from hubbub_trainer.learning.synthetic import SyntheticTask

QUICK = ("--strategies", "fedavg", "--clients", "2", "--max-rounds", "1", "--local-steps", "2", "--seeds", "3")


@pytest.fixture
def small_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hubbub_local.reproduce.command.load_task_of", lambda *_: SyntheticTask(300))
    monkeypatch.setattr("hubbub_local.reproduce.writing.draw_all", lambda *_: [])


@pytest.mark.usefixtures("small_task")
def test_json_is_all_that_is_printed_to_standard_output(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["reproduce", "mnist", *QUICK, "--json", "--out", str(tmp_path / "out")])

    assert result.exit_code == 0, result.output
    (found,) = json.loads(result.stdout)["results"]
    assert (found["strategy"], found["seed"], found["rounds"], found["reached"]) == ("fedavg", 3, 1, False)
    assert found["total_bytes"] == found["predicted_bytes"] == 2 * 2 * 4 * 300
    assert found["wire_bytes"] > found["total_bytes"]
    assert found.keys() >= {"accuracy", "mean_union", "client_cpu_s", "server_cpu_s"}
    assert "fedavg, seed 3: stopped after 1 round at " in result.stderr


@pytest.mark.usefixtures("small_task")
def test_the_wire_is_the_papers_unless_told_otherwise(tmp_path: Path) -> None:
    """Of 300 signs mod 5 and a factor, as `test_a_round_costs_the_formula_of_its_wire` counts them."""
    sent = []
    for number, wire in enumerate(((), ("--wire", "compact"))):
        asked = ["reproduce", "mnist", *QUICK, *wire, "--strategies", "no-union"]
        result = CliRunner().invoke(app, [*asked, "--json", "--out", str(tmp_path / str(number))])
        assert result.exit_code == 0, result.output
        sent.append(json.loads(result.stdout)["results"][0]["total_bytes"] * 8)

    assert sent == [2 * 2 * 2 * (300 * 3 + 32), 5 * (13 * 56 + 32) + 2 * 256]


@pytest.mark.usefixtures("small_task")
def test_the_folder_is_named_after_the_experiment_and_the_log_is_left_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = list(logging.getLogger().handlers)

    result = CliRunner().invoke(app, ["reproduce", "cifar10", *QUICK])

    assert result.exit_code == 0, result.output
    assert "Report: reproduce-cifar10/report.html" in result.stdout
    assert (tmp_path / "reproduce-cifar10" / "report.md").read_text("utf-8").startswith("# AlexNet on CIFAR-10")
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
    arguments: Sequence[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["hubbub", "reproduce", *arguments])

    with pytest.raises(SystemExit) as ended:
        main()

    printed = capsys.readouterr()
    assert ended.value.code == 2
    assert message in printed.err
    assert printed.err.count("\n") == 1
    assert printed.out == ""
    assert list(tmp_path.iterdir()) == []
