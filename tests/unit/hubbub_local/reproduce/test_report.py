"""The report: the paper's number beside each of ours, and no run called better than it was."""

import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

from hubbub_local.reproduce.plan import PAPERS, Settings
from hubbub_local.reproduce.records import RunRecord, open_results
from hubbub_local.reproduce.report import write_report
from support.reproduced import make_run

MNIST = PAPERS["mnist"]


def write(folder: Path, *records: RunRecord, settings: Settings = MNIST) -> str:
    results = open_results(folder, settings, resume=False)
    results.results = list(records)
    write_report(results, ["hubbub reproduce mnist --seeds 0"], folder)
    return (folder / "report.md").read_text("utf-8")


def find_row(text: str, label: str) -> list[str]:
    line = next(line for line in text.splitlines() if line.startswith(f"| {label} |"))
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_the_papers_number_is_beside_each_of_ours_and_what_fell_short_is_called_so(tmp_path: Path) -> None:
    text = write(
        tmp_path,
        make_run("fedavg", accuracies=[0.99]),
        make_run("no-union", seed=1, accuracies=[0.6, 0.9, 0.985]),
        make_run("no-union"),
        make_run("sec-union-letter", accuracies=[0.3, 0.412]),
        replace(make_run("plaintext-union", accuracies=[0.5]), finished=False),
    )

    # Rounds, |V|, payload, wire, CPU of a client, its training and a server; the paper's after those it has.
    assert find_row(text, "no-union") == [
        *("no-union", "2, 3", "17", "–", "–", "2.00, 3.00", "10.01", "2.00, 3.00"),
        *("150 ms", "800 ms", "300 ms", "+"),
    ]
    assert find_row(text, "sec-union, q = 1, to the letter")[1:5] == ["> 2", "22", "1,000", "14,344"]
    assert "**3 of 5** runs reached 98 %" in text
    assert "to the letter, seed 0: stopped after 2 rounds at 41.2 %, target not reached" in text
    assert "plaintext-union, seed 0: was cut off after 1 round at 50.0 %" in text
    assert "**2.50 MB** is the least to reach it while servers learn nothing: no-union" in text
    assert "$ hubbub reproduce mnist --seeds 0" in text
    assert "The settings are the paper's" in text
    root = ET.parse(tmp_path / "accuracy.svg").getroot()  # noqa: S314  (We wrote it.)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"


def test_other_settings_and_blocks_and_a_cost_that_is_not_the_formulas_are_told(tmp_path: Path) -> None:
    wrong = make_run("fedavg")
    wrong = replace(wrong, by_round=(replace(wrong.by_round[0], predicted_bits=1),))
    settings = replace(MNIST, data="<digits>", wire="compact", max_rounds=3)

    text = write(tmp_path, wrong, make_run("sec-union-blocks"), make_run("shared-mask"), settings=settings)

    assert text.startswith("# LeNet on `<digits>` to 98 %")
    assert "not the paper's**: `--data <digits>` instead of `mnist`; `--wire compact` instead of `paper`." in text
    assert "ρ = 0.1 (0.03 with shared-mask), partition" in text
    assert "**2 of 3** runs cost what the compact wire's formulas say" in text
    assert find_row(text, "sec-union, q = 1, blocks of 16")
    assert "every client knows everybody's sign there" in text


def test_models_that_differ_by_design_are_told_and_rounds_that_were_cut_are_left_out_of_the_times(
    tmp_path: Path,
) -> None:
    whole = replace(make_run("eastly-tss", accuracies=[0.9, 0.99]), drift=0.0731)
    cut = [replace(one, protocol_cpu_s={}, training_cpu_s=None) for one in whole.by_round]
    partly = replace(whole, seed=1, drift=0.05, by_round=(whole.by_round[0], cut[1]))

    text = write(tmp_path, whole, partly, replace(make_run("fedavg"), by_round=(cut[0],)))

    assert "eastly-tss: clients ended with models of their own, by design: up to 7.3 %, 5.0 % away from" in text
    assert find_row(text, "eastly-tss")[-4:] == ["150 ms", "800 ms", "300 ms", "++"]
    assert find_row(text, "fedavg")[-4:] == ["–", "–", "–", "+"]
