"""`hubbub plan` as a user sees it; what it computes is tested with the planner."""

import json
import re
from typing import Any

import pytest

from support.command_line import Hubbub

LENET = ("--params", "61706", "--clients", "5", "--servers", "2", "--rho", "0.1")


def read_json(hubbub: Hubbub, *options: str) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """The whole answer, and its rows by strategy; with blocks, sec-union's row is the one with blocks."""
    answer: dict[str, Any] = json.loads(hubbub("plan", *LENET, "--json", *options).check_done())
    return answer, {row["strategy"]: row for row in answer["strategies"]}


def test_json_is_all_that_is_printed_and_has_every_row(hubbub: Hubbub) -> None:
    options = ("--union-size", "18253", "--rounds", "17", "--q", "5", "--wire", "paper")
    answer, rows = read_json(hubbub, *options, "--servers-learn", "indices")

    assert (answer["union_size_is"], answer["wire"]) == ("given", "paper")
    assert (answer["kept"], answer["q"], answer["rounds"]) == (6_170, 5, 17)
    assert rows["sec-union"]["bits_in_all"] == 17 * 20 * (61_706 * 5 + 18_253 * 4 + 32 + 128 * 5 + 3 * 64)
    assert rows["bonawitz"]["bits_in_all"] == 17 * (5 * (2 * 5 * 256 + 21 * 256 + 2 * 61_706 * 32) + 2 * 20 * 128)
    assert len(rows) == len(answer["strategies"]) == 14
    assert [name for name, row in rows.items() if not row["trains"]] == ["sum", "sparse-sum"]
    assert (answer["recommended"], answer["recommended_without_loss"]) == ("shared-mask", "plaintext-union")


def test_json_by_default_is_of_the_compact_wire_and_an_estimated_union_and_says_who_learns_what(
    hubbub: Hubbub,
) -> None:
    answer, rows = read_json(hubbub)

    assert (answer["union_size_is"], answer["wire"], answer["block_leakage"]) == ("estimated", "compact", None)
    told = answer["leakage"]
    assert told["assumes"] == "independent choices"
    assert (round(told["expected_lost"]), round(told["paper_expected_lost"])) == (4_525, 2_513)
    assert rows["sum"]["bits_per_round"] == 11 * (61_706 * 32 + 3 * 64) + 5 * 256
    assert rows["sum"]["paper_bits_per_round"] == 2 * 2 * 5 * 61_706 * 32
    learns = {name: tuple(rows[name]["server_learns"].values()) for name in rows}
    assert list(rows["fedavg"]["server_learns"]) == ["updates", "indices", "sums"]
    assert learns["fedavg"] == (True, True, True)
    assert learns["plaintext-union"] == (False, True, False)
    assert learns["bonawitz"] == (False, False, True)
    assert learns["sec-union"] == (False, False, False)
    assert (answer["bits"], rows["shared-mask"]["bits"], rows["no-union"]["bits"]) == (2, 2, None)
    assert answer["recommended"] == "shared-mask"


def test_a_row_that_would_lose_many_indices_is_warned_about(hubbub: Hubbub) -> None:
    options = ("--params", "1000", "--clients", "4", "--q", "1")
    (some, none, quiet) = (hubbub("plan", *options, "--rho", rho).joined for rho in ("0.5", "1", "0.1"))
    answer, rows = read_json(hubbub, *options, "--rho", "1")

    assert "warning: sec-union with q = 1, rho = 0.5 and 4 clients loses 47% of the indices" in some
    assert "such as no-union." in some
    assert "refused" not in some
    assert "loses 100% of the indices that they choose, because nearly all marks cancel" in none
    assert "Such a run is refused." in none
    assert "warning" not in quiet
    assert [name for name, row in rows.items() if row["refused"]] == ["sec-union"]
    assert [name for name, row in rows.items() if "loses" in row["warning"]] == ["sec-union"]
    assert (answer["recommended"], answer["recommended_without_loss"]) == ("secure-fedavg", "no-union")


def test_a_warning_about_several_strategies_is_printed_once(hubbub: Hubbub) -> None:
    shown = hubbub("plan", "--params", "62", "--rho", "0.5", "--q", "4").joined

    assert "warning: topbinary-direct, topbinary-sep, no-union, shared-mask" in shown
    assert shown.count("a client sends a compressed update of 31 of 62 parameters") == 1


def test_sums_in_long_words_are_planned_with_their_tags(hubbub: Hubbub) -> None:
    (_, short), (_, long) = (read_json(hubbub, "--wire", "paper", "--number-bits", bits) for bits in ("32", "64"))

    assert long["sum"]["phases"] == {"values": 20 * 61_706 * 64, "tags": 20 * 84 * 64}
    assert {name for name, row in long.items() if row != short[name]} == {"sum", "sparse-sum"}


def test_a_plan_says_why_rho_and_q_were_chosen_unless_they_were_given(hubbub: Hubbub) -> None:
    options = ("--params", "300", "--clients", "10")
    assert "ρ = 0.3334 is chosen because the model is small; q = 2 is" in hubbub("plan", *options).joined
    assert "is chosen" not in hubbub("plan", *options, "--rho", "0.4", "--q", "2").joined
    answer = json.loads(hubbub("plan", "--params", "61706", "--json").check_done())
    assert (answer["rho"], answer["mask_rho"]) == (0.1, 0.03)


def test_what_a_scored_round_takes_besides_is_said(hubbub: Hubbub) -> None:
    (verified, _), (plain, _) = (read_json(hubbub, "--wire", "paper", *tags) for tags in ((), ("--no-tags",)))

    # Eq. 3 for two numbers modulo 2^32, and for tags of three numbers modulo 2^64.
    assert (verified["scores_bits"], plain["scores_bits"]) == (20 * (2 * 32 + 3 * 64), 20 * 2 * 32)
    told = hubbub("plan", *LENET, "--wire", "paper").joined
    assert "A round whose model is scored takes 640 B more, for two metrics." in told


def test_blocks_are_planned_beside_the_flat_union_and_what_they_tell_is_said(hubbub: Hubbub) -> None:
    (answer, rows), (_, flat) = read_json(hubbub, "--block", "16"), read_json(hubbub)
    told, without = hubbub("plan", *LENET, "--block", "16").joined, hubbub("plan", *LENET).joined

    assert [row["block"] for row in answer["strategies"] if row["strategy"] == "sec-union"] == [1, 16]
    assert rows["sec-union"]["bits_per_round"] < flat["sec-union"]["bits_per_round"] / 2
    assert rows["sec-union"]["clients_learn_besides_union"] == "all signs on V that agree"
    assert not any(rows["sec-union"]["server_learns"].values())
    assert isinstance(answer["block_leakage"], dict)
    assert "sec-union (q = 1, b = 16)" in told
    assert "loses 282 of 1,577 blocks" in told
    assert "max_block = 16" in told
    assert "block" not in without


def test_sizes_are_those_of_the_papers_table_3_and_stand_there_once(hubbub: Hubbub) -> None:
    options = ("--union-size", "18253", "--rounds", "17", "--wire", "paper", "--no-tags")
    text = hubbub("plan", *LENET, *options, columns=100).out

    rows = {line.split()[0]: line for line in text.splitlines() if line.startswith(" ") and line.split()}
    assert "on the paper's wire" in text
    assert "10.01 MB" in rows["no-union"]
    assert rows["no-union"].count("KB") == 1, "the cost of a round, and not the paper's beside it"
    assert "10.46 MB" in rows["partial-sec-union"]
    assert "4.21 MB" in rows["plaintext-union"]
    assert "80.12 MB" in rows["eastly-he"]


def test_a_given_union_is_called_so_and_the_papers_cost_is_beside_that_of_the_compact_wire(hubbub: Hubbub) -> None:
    ended = hubbub("plan", *LENET, "--union-size", "18253", columns=100)

    row = next(line for line in ended.out.splitlines() if "no-union" in line)
    assert row.split()[2:6] == ["290.49", "KB", "602.68", "KB"]
    assert "on the compact wire" in ended.out
    assert "|V| is as given" in ended.joined
    assert "estimated" not in ended.joined
    assert not re.search(r"\d rounds ", ended.out), "a single round has no column for all rounds"


def test_an_estimate_is_called_one_and_both_formulas_are_told(hubbub: Hubbub) -> None:
    text = hubbub("plan", *LENET, columns=80).joined

    assert "|V| is estimated from independent choices" in text
    assert "sec-union (q = 1) loses 4,525 of 25,267 indices (17.91%); by the paper's formula 2,513." in text
    assert "was alone with 93.09%; by the paper's formula 97.39%." in text
    assert ": shared-mask (2 bits), because it takes the least traffic." in text.split("Recommended if servers")[1]
    assert "data owners' policies must name it" in text


@pytest.mark.parametrize("columns", [80, 100, 120])
def test_the_table_fits_and_loses_no_cell(hubbub: Hubbub, columns: int) -> None:
    text = hubbub("plan", *LENET, "--params", "1756426", "--rounds", "110", columns=columns).out

    assert max(len(line) for line in text.splitlines()) <= columns
    assert "…" not in text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--q", "0"), "q is 0; marks of SecUnion have from 1 to 32 bits"),
        (("--rho", "1.5"), "rho is 1.5"),
        (("--bits", "5"), "bits is 5; levels of shared-mask have from 1 to 4 bits"),
        (("--clients", "1"), "1 clients: at least 2 are needed"),
        (("--servers", "1"), "at least 2 servers, not 1"),
        (("--union-size", "30851"), "from 0 to 30850 together"),
        (("--rounds", "0"), "at least one round"),
        (("--params", "0"), "at least one parameter, not 0"),
    ],
)
def test_what_cannot_be_is_told_in_one_line_with_exit_code_2(
    hubbub: Hubbub, options: tuple[str, ...], message: str
) -> None:
    hubbub("plan", *LENET, *options).check_refused(message)


def test_a_model_without_parameters_is_refused_where_rho_is_chosen_for_it_too(hubbub: Hubbub) -> None:
    hubbub("plan", "--params", "0").check_refused("at least one parameter, not 0")


def test_a_level_that_there_is_not_and_a_plan_without_parameters_are_refused(hubbub: Hubbub) -> None:
    unknown, nothing = hubbub("plan", *LENET, "--servers-learn", "sums"), hubbub("plan")

    assert (unknown.code, nothing.code) == (2, 2)
    assert "nothing, indices" in " ".join(unknown.err.replace("│", " ").split())
    assert "--params" in nothing.err
