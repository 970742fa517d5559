"""The report: the paper's number beside each of ours, partial runs called so, and nothing from elsewhere."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from hubbub.errors import ConfigurationError
from hubbub_local.reproduce.plan import papers_settings
from hubbub_local.reproduce.plots import draw_all, require_matplotlib
from hubbub_local.reproduce.progress import Ledger, open_ledger
from hubbub_local.reproduce.records import RunRecord
from hubbub_local.reproduce.writing import write_report
from support.reproduced import make_round, make_run

MNIST = papers_settings("mnist")
PLOTS = ("accuracy-by-round", "accuracy-by-bytes", "bytes-by-strategy", "union-by-round")
COMMAND = "hubbub reproduce mnist --seeds 0"
RUNS = (
    make_run("fedavg"),
    make_run("no-union"),
    make_run("no-union", seed=1, accuracies=[0.6, 0.9, 0.985]),
    make_run("sec-union-letter", accuracies=[0.3, 0.412]),
    make_run("plaintext-union"),
)


def write(folder: Path, *records: RunRecord) -> Ledger:
    ledger = open_ledger(folder, MNIST, resume=False)
    for record in records:
        ledger.keep(record)
    write_report(ledger, COMMAND)
    return ledger


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("report")
    write(made, *RUNS)
    return made


@pytest.fixture
def without_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it is about words: pictures take long."""
    monkeypatch.setattr("hubbub_local.reproduce.writing.draw_all", lambda *_: [])


def find_row(text: str, label: str) -> list[str]:
    line = next(line for line in text.splitlines() if line.startswith(f"| {label} |"))
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_all_files_are_there(folder: Path) -> None:
    names = {path.name for path in folder.iterdir()}

    assert names == {"results.json", "report.md", "report.html", *(f"{name}.svg" for name in PLOTS)}


def test_the_papers_number_is_beside_each_of_ours(folder: Path) -> None:
    text = (folder / "report.md").read_text("utf-8")

    # Strategy, rounds, |V|, payload, on the wire, CPU of a client and a server; the paper's after those it has.
    assert find_row(text, "no-union") == [
        *("no-union", "2, 3", "17", "–", "–", "2.00, 3.00", "10.01", "2.00, 3.00", "150 ms", "300 ms", "+"),
    ]
    assert find_row(text, "plaintext-union")[3:5] == ["1,000", "18,253"]


@pytest.mark.usefixtures("without_plots")
def test_blocks_are_named_with_what_they_show(tmp_path: Path) -> None:
    write(tmp_path, make_run("sec-union-blocks"), make_run("no-union"))

    text = (tmp_path / "report.md").read_text("utf-8")

    assert find_row(text, "sec-union, q = 1, blocks of 16")
    assert "every client knows everybody's sign there" in text


def test_a_partial_run_is_called_so(folder: Path) -> None:
    text = (folder / "report.md").read_text("utf-8")

    assert find_row(text, "sec-union, q = 1, to the letter")[1:3] == ["> 2", "22"]
    assert "to the letter, seed 0: stopped after 2 rounds at 41.2 %, target not reached" in text
    assert "no-union, seed 1: reached 98 % after 3 rounds" in text
    assert "**4 of 5** runs reached 98 %" in text


@pytest.mark.usefixtures("without_plots")
def test_a_run_that_was_cut_off_is_called_so(tmp_path: Path) -> None:
    write(tmp_path, replace(make_run("no-union", accuracies=[0.5]), finished=False))

    text = (tmp_path / "report.md").read_text("utf-8")
    assert "no-union, seed 0: was cut off after 1 round at 50.0 %, target not reached" in text


@pytest.mark.usefixtures("without_plots")
def test_a_run_that_cost_other_than_the_formula_is_counted(tmp_path: Path) -> None:
    wrong = replace(make_run("fedavg"), by_round=(replace(make_round(1, 0.99), predicted_bits=1),))
    write(tmp_path, make_run("no-union"), wrong)

    assert "**1 of 2** runs cost what the paper's formulas say" in (tmp_path / "report.md").read_text("utf-8")


@pytest.mark.usefixtures("without_plots")
def test_on_the_compact_wire_the_report_says_so_and_names_its_formulas(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path, replace(MNIST, wire="compact"), resume=False)
    ledger.keep(make_run("no-union"))

    write_report(ledger, COMMAND)

    text = (tmp_path / "report.md").read_text("utf-8")
    assert "wire mode `compact`" in text
    assert "**1 of 1** runs cost what the compact wire's formulas say" in text
    assert "**The settings are not the paper's**: `--wire compact instead of paper`" in text


def test_the_cheapest_is_named_only_among_private_ones_that_reached_the_target(folder: Path) -> None:
    text = (folder / "report.md").read_text("utf-8")

    assert "**2.50 MB** the least to reach it while servers learn nothing: no-union" in text


def test_it_says_what_is_counted_and_how_to_do_it_again(folder: Path) -> None:
    text = (folder / "report.md").read_text("utf-8")

    assert "without local training and evaluation, which are shown apart" in text
    assert "an owner for 90 % of the CPU time" in text
    assert f"$ {COMMAND}" in text
    assert "The settings are the paper's" in text


@pytest.mark.usefixtures("without_plots")
def test_other_settings_than_the_papers_are_told(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path, replace(MNIST, data="digits", local_steps=10, max_rounds=3), resume=False)
    ledger.keep(make_run("no-union"))

    write_report(ledger, COMMAND)

    text = (tmp_path / "report.md").read_text("utf-8")
    assert text.startswith("# LeNet on digits to 98 %")
    assert "not the paper's**: `--data digits instead of mnist`; `--local-steps 10 instead of 100`." in text


class Page(HTMLParser):
    """Collects what a browser would fetch or run, and checks that tags are closed."""

    def __init__(self) -> None:
        super().__init__()
        self.foreign: list[str] = []
        self.ids: list[str] = []
        self.open: list[str] = []
        self.tables: list[list[list[str]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag != "meta":
            self.open.append(tag)
        if tag in {"script", "link", "iframe", "img", "image"}:
            self.foreign.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            if name in {"href", "src", "xlink:href"} and not (value or "").startswith("#"):
                self.foreign.append(f"{tag} {name}={value}")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_needs_nothing_from_elsewhere(folder: Path) -> None:
    html = (folder / "report.html").read_text("utf-8")
    page = Page()

    page.feed(html)

    assert page.foreign == []
    assert page.open == []
    assert not re.search(r"@import|url\((?!#)", html)
    assert len(page.ids) == len(set(page.ids)), "four pictures share the page"


def test_the_page_has_a_light_and_a_dark_side_and_its_plots_follow(folder: Path) -> None:
    html = (folder / "report.html").read_text("utf-8")

    assert "prefers-color-scheme: dark" in html
    assert html.count('<svg role="img"') == 4
    assert "stroke: currentColor" in html


def test_names_in_the_page_point_into_it(folder: Path) -> None:
    html = (folder / "report.html").read_text("utf-8")

    wanted = set(re.findall(r'(?:href="#|url\(#)([^")]+)', html))

    assert wanted
    assert wanted <= set(re.findall(r'\bid="([^"]+)"', html))


@pytest.mark.usefixtures("without_plots")
def test_what_a_setting_says_is_shown_and_not_obeyed(tmp_path: Path) -> None:
    odd = tmp_path / "<script>alert(1)</script>"
    ledger = open_ledger(tmp_path / "out", replace(MNIST, data=str(odd)), resume=False)
    ledger.keep(make_run("no-union"))

    write_report(ledger, COMMAND)

    assert "<script>" not in (tmp_path / "out" / "report.html").read_text("utf-8")
    assert "<script>" not in (tmp_path / "out" / "report.md").read_text("utf-8")


@pytest.mark.parametrize("name", PLOTS)
def test_a_plot_is_a_picture_on_white(name: str, folder: Path) -> None:
    root = ET.parse(folder / f"{name}.svg").getroot()  # noqa: S314  (We wrote it.)

    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert root[0].attrib["fill"] == "white"


def test_plots_are_the_same_for_the_same_results(folder: Path) -> None:
    again = draw_all(MNIST, RUNS)

    for plot in again:
        kept = (folder / plot.file).read_text("utf-8")
        assert kept.replace('<rect width="100%" height="100%" fill="white"/>', "") == plot.svg
        assert "<dc:date>" not in plot.svg


def test_strategies_with_the_same_models_are_one_line() -> None:
    twins = [replace(make_run(name), model_sha256="same") for name in ("no-union", "plaintext-union")]
    apart = [make_run(name) for name in ("no-union", "plaintext-union")]

    one, two = (draw_all(MNIST, runs)[0].svg for runs in (twins, apart))

    assert one.count('id="line2d_') < two.count('id="line2d_')


def test_without_a_union_there_is_an_empty_plot_and_no_error() -> None:
    plots = draw_all(MNIST, [make_run("fedavg")])

    assert [plot.name for plot in plots] == list(PLOTS)


def test_without_matplotlib_it_is_told_which_extra_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hubbub_local.reproduce.plots.find_spec", lambda _: None)

    with pytest.raises(ConfigurationError, match=r"pip install 'hubbub\[report\]'"):
        require_matplotlib()
