"""`hubbub plan` as a user sees it; what it computes is tested with the planner."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

import pytest
from typer.testing import CliRunner

from hubbub.errors import ConfigurationError
from hubbub_cli.main import app, main

LENET = ("--params", "61706", "--clients", "5", "--servers", "2", "--rho", "0.1")


def run_plan(*options: str, columns: int = 100) -> str:
    result = CliRunner().invoke(app, ["plan", *LENET, *options], env={"COLUMNS": str(columns)})
    assert result.exit_code == 0, result.output
    return result.stdout


def joined(text: str) -> str:
    """As one line: where the terminal breaks it does not matter."""
    return " ".join(text.split())


def read_json(*options: str) -> dict[str, object]:
    answer = json.loads(run_plan("--json", *options))
    assert isinstance(answer, dict)
    return answer


def test_json_is_all_that_is_printed_and_has_every_row() -> None:
    answer = read_json("--union-size", "18253", "--rounds", "17", "--q", "5", "--wire", "paper")

    assert answer["union_size_is"] == "given"
    assert (answer["kept"], answer["q"], answer["rounds"]) == (6_170, 5, 17)
    rows = answer["strategies"]
    assert isinstance(rows, list)
    costs = {row["strategy"]: row["bits_in_all"] for row in rows}
    assert costs["sec-union"] == 17 * 20 * (61_706 * 5 + 18_253 * 4 + 32 + 128 * 5 + 3 * 64)
    assert costs["bonawitz"] == 17 * 5 * (2 * 5 * 256 + 21 * 256 + 2 * 61_706 * 32)
    assert len(costs) == 12
    assert [row["strategy"] for row in rows if not row["trains"]] == ["sum", "sparse-sum"]


def test_what_a_scored_round_takes_besides_is_said() -> None:
    verified, plain = read_json("--wire", "paper"), read_json("--wire", "paper", "--no-tags")

    # Eq. 3 for two numbers modulo 2^32, and for tags of three numbers modulo 2^64.
    assert (verified["scores_bits"], plain["scores_bits"]) == (20 * (2 * 32 + 3 * 64), 20 * 2 * 32)
    assert "A round whose model is scored takes 640 B more, for two metrics." in joined(
        run_plan("--wire", "paper")
    )


def test_blocks_are_planned_beside_the_flat_union_where_they_are_asked_for() -> None:
    answer = read_json("--block", "16")
    rows = answer["strategies"]
    assert isinstance(rows, list)

    flat, blocks = (row for row in rows if row["strategy"] == "sec-union")
    assert (flat["block"], blocks["block"]) == (1, 16)
    assert blocks["bits_per_round"] < flat["bits_per_round"] / 2
    assert blocks["clients_learn_besides_union"] == "all signs on V that agree"
    assert blocks["server_learns"] == {"updates": False, "indices": False, "sums": False}
    assert (answer["recommended"], answer["recommended_block"]) == ("sec-union", 16)
    assert isinstance(answer["block_leakage"], dict)
    assert read_json()["block_leakage"] is None


def test_what_blocks_tell_is_said_and_that_a_policy_must_allow_them() -> None:
    told = joined(run_plan("--block", "16"))

    assert "sec-union (q = 1, b = 16)" in told
    assert "loses 282 of 1,577 blocks" in told
    assert "max_block = 16" in told
    assert "block" not in run_plan()


def test_json_says_who_learns_what() -> None:
    rows = read_json()["strategies"]
    assert isinstance(rows, list)

    learns = {row["strategy"]: row["server_learns"] for row in rows}

    assert learns["fedavg"] == {"updates": True, "indices": True, "sums": True}
    assert learns["plaintext-union"] == {"updates": False, "indices": True, "sums": False}
    assert learns["bonawitz"] == {"updates": False, "indices": False, "sums": True}
    assert learns["sec-union"] == {"updates": False, "indices": False, "sums": False}


def test_json_says_that_the_union_is_estimated_and_under_what() -> None:
    answer = read_json()

    assert answer["union_size_is"] == "estimated"
    told = answer["leakage"]
    assert isinstance(told, dict)
    assert told["assumes"] == "independent choices"
    assert (round(told["expected_lost"]), round(told["paper_expected_lost"])) == (4_525, 2_513)


@pytest.mark.parametrize(("level", "strategy"), [("nothing", "sec-union"), ("indices", "plaintext-union")])
def test_the_wanted_level_decides_what_is_recommended(level: str, strategy: str) -> None:
    asked = ("--servers-learn", level, "--wire", "paper")

    assert read_json(*asked)["recommended"] == strategy
    assert f": {strategy}" in joined(run_plan(*asked)).split("Cheapest if servers")[1]


def test_sizes_are_those_of_the_papers_table_3() -> None:
    text = run_plan("--union-size", "18253", "--rounds", "17", "--wire", "paper", "--no-tags")

    rows = {line.split()[0]: line for line in text.splitlines() if line.startswith(" ") and line.split()}
    assert "10.01 MB" in rows["no-union"]
    assert "10.46 MB" in rows["partial-sec-union"]
    assert "4.21 MB" in rows["plaintext-union"]
    assert "80.03 MB" in rows["eastly-he*"]


def test_the_wire_that_is_planned_is_named_and_the_papers_cost_is_beside_its_own() -> None:
    text = run_plan("--union-size", "18253")

    row = next(line for line in text.splitlines() if "no-union" in line)
    assert "on the compact wire" in text
    assert row.split()[2:6] == ["290.49", "KB", "602.68", "KB"]


def test_on_the_papers_wire_costs_stand_there_once() -> None:
    text = run_plan("--union-size", "18253", "--wire", "paper")

    row = next(line for line in text.splitlines() if "no-union" in line)
    assert "on the paper's wire" in text
    assert row.count("KB") == 1


def test_json_names_the_wire_and_has_both_costs() -> None:
    answer = read_json("--union-size", "18253")

    rows = answer["strategies"]
    assert isinstance(rows, list)
    sums = next(row for row in rows if row["strategy"] == "sum")
    assert answer["wire"] == "compact"
    assert sums["bits_per_round"] == 11 * (61_706 * 32 + 3 * 64) + 5 * 256
    assert sums["paper_bits_per_round"] == 2 * 2 * 5 * 61_706 * 32


def test_an_estimate_is_called_one_and_both_formulas_are_told() -> None:
    text = joined(run_plan(columns=80))

    assert "|V| is estimated from independent choices" in text
    assert "sec-union (q = 1) loses 4,525 of 25,267 indices (17.91%); by the paper's formula 2,513." in text
    assert "was alone with 93.09%; by the paper's formula 97.39%." in text


def test_a_given_union_is_not_called_estimated() -> None:
    text = joined(run_plan("--union-size", "18253"))

    assert "|V| is as given" in text
    assert "estimated" not in text


def test_a_single_round_has_no_column_for_all_rounds() -> None:
    assert not re.search(r"\d rounds ", run_plan())


@pytest.mark.parametrize("columns", [80, 100, 120])
def test_the_table_fits_and_loses_no_cell(columns: int) -> None:
    text = run_plan("--params", "1756426", "--rounds", "110", columns=columns)

    assert max(len(line) for line in text.splitlines()) <= columns
    assert "…" not in text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--q", "0"), "q is 0; marks of SecUnion have from 1 to 32 bits"),
        (("--q", "33"), "q is 33"),
        (("--rho", "1.5"), "rho is 1.5"),
        (("--clients", "1"), "1 clients: at least 2 are needed"),
        (("--servers", "1"), "at least 2 servers, not 1"),
        (("--union-size", "61707"), "the union cannot have 61707 indices"),
        (("--union-size", "30851"), "from 0 to 30850 together"),
        (("--rounds", "0"), "at least one round"),
        (("--params", "0"), "at least one parameter, not 0"),
    ],
)
def test_what_cannot_be_is_told_in_one_line_with_exit_code_2(
    options: Sequence[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["hubbub", "plan", *LENET, *options])

    with pytest.raises(SystemExit) as ended:
        main()

    printed = capsys.readouterr()
    assert ended.value.code == 2
    assert message in printed.err
    assert printed.err.count("\n") == 1
    assert printed.out == ""


def test_an_unknown_level_is_refused_with_those_that_there_are() -> None:
    result = CliRunner().invoke(app, ["plan", *LENET, "--servers-learn", "sums"])

    assert result.exit_code == 2
    assert "nothing" in result.output
    assert "indices" in result.output


def test_the_number_of_parameters_must_be_given() -> None:
    result = CliRunner().invoke(app, ["plan"])

    assert result.exit_code == 2
    assert "--params" in result.output


def test_an_error_is_a_hubbub_error_for_callers() -> None:
    result = CliRunner().invoke(app, ["plan", *LENET, "--q", "64"])

    assert isinstance(result.exception, ConfigurationError)
