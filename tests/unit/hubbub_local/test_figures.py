"""Tables and plots of reports."""

import xml.etree.ElementTree as ET

import pytest

from hubbub.errors import ConfigurationError
from hubbub_local.figures import Panel, draw_plot, require_matplotlib, show_seconds, write_table

LINES = {"one": [(1.0, 2.0), (10.0, 3.0)], "two": [(1.0, 1.0)]}


def test_a_table_lets_no_cell_end_its_column() -> None:
    assert write_table(("what", "|V|"), [("a", "1")]) == "| what | \\|V\\| |\n| --- | ---: |\n| a | 1 |\n"


@pytest.mark.parametrize(
    "panels",
    [
        [Panel(title="lines", lines=LINES, target=2.5), Panel(title="again", lines=LINES, log_x=True)],
        [Panel(title="lines", lines=LINES, log_y=True), Panel(title="others", lines={"three": LINES["one"]})],
        [Panel(title="bars", bars={"one": 1.0, "two": 100.0}, log_x=True), Panel(title="bars", bars={"one": 1.0})],
    ],
)
def test_a_plot_is_well_formed_names_what_it_shows_and_is_the_same_each_time(panels: list[Panel]) -> None:
    drawn = draw_plot("A < B", panels)

    words = "".join(ET.fromstring(drawn).itertext())  # noqa: S314  (We drew it.)
    assert all(label in words for panel in panels for label in (panel.title, *panel.lines, *panel.bars))
    assert drawn == draw_plot("A < B", panels)
    assert "<dc:date>" not in drawn


def test_without_matplotlib_it_is_told_which_extra_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hubbub_local.figures.find_spec", lambda _: None)

    with pytest.raises(ConfigurationError, match=r"pip install 'hubbub\[report\]'"):
        require_matplotlib()


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(1.234, "1.23 s"), (0.5, "500 ms"), (0.0123, "12.3 ms"), (4.2e-5, "42.0 µs"), (3e-9, "3 ns")],
)
def test_durations_are_shown_with_three_digits(seconds: float, shown: str) -> None:
    assert show_seconds(seconds) == shown
