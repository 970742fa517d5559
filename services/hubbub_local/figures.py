"""Markdown tables and SVG plots for reports. Plots need matplotlib, the extra `report`."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from hubbub.errors import ConfigurationError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Points = Sequence[tuple[float, float]]
PANEL_INCHES = (4.2, 3.8)
LEGEND_INCHES = 2.2
"""Width of a legend beside panels that have the same lines."""
CROWDED = 50
"""Lines with this many points or more have no markers."""
_COLOURS = (
    *("#3b7dd8", "#d1495b", "#2a9d8f", "#b5792a", "#9a5bc0", "#8a8f98"),
    *("#d4a72c", "#20a4c9", "#5aa02c", "#c2569e", "#e8833a", "#7a6652"),
)
# Any: matplotlib types its keys as a Literal of all names. The salt makes a picture the same each time.
_STYLE: dict[Any, Any] = {
    "svg.hashsalt": "hubbub",
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One pair of axes with lines or with horizontal bars, each by its label."""

    title: str
    x_label: str = ""
    lines: Mapping[str, Points] = field(default_factory=dict)
    bars: Mapping[str, float] = field(default_factory=dict)
    target: float | None = None
    """Target value, drawn as a horizontal line."""
    log_x: bool = False
    log_y: bool = False
    from_zero: bool = False


def require_matplotlib() -> None:
    """Raise `ConfigurationError` early if matplotlib is not installed."""
    if find_spec("matplotlib") is None:
        raise ConfigurationError("the report's plots need matplotlib: pip install 'hubbub[report]'")


def draw_plot(title: str, panels: Sequence[Panel]) -> str:
    """Draw panels side by side, as SVG that is the same for the same numbers."""
    import matplotlib as mpl  # noqa: PLC0415  (Needs the extra.)
    from matplotlib.figure import Figure  # noqa: PLC0415

    with mpl.rc_context(_STYLE):
        labels = {tuple(panel.lines) for panel in panels}
        width, height = PANEL_INCHES
        beside = LEGEND_INCHES if len(labels) == 1 else 0
        figure = Figure(figsize=(width * len(panels) + beside, height), layout="constrained", facecolor="white")
        axes: list[Axes] = list(figure.subplots(1, len(panels), squeeze=False)[0])
        for panel, place in zip(panels, axes, strict=True):
            _fill(place, panel)
        figure.suptitle(title)
        if len(labels) > 1:
            for place in axes:
                place.legend()
        elif panels[0].lines:
            figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right center")
        else:
            for place in axes[1:]:
                place.set_yticklabels([])
        drawn = io.StringIO()
        figure.savefig(drawn, format="svg", metadata={"Date": None, "Creator": None, "Title": title})
    return "\n".join(line.rstrip() for line in drawn.getvalue().splitlines()) + "\n"


def _fill(place: Axes, panel: Panel) -> None:
    for number, (label, points) in enumerate(panel.lines.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        marker = "o" if len(points) < CROWDED else ""
        place.plot(*zip(*points, strict=True), color=colour, marker=marker, markersize=3, label=label)
    if panel.bars:
        place.barh(list(panel.bars), list(panel.bars.values()), color=_COLOURS[0])
        place.invert_yaxis()
    if panel.target is not None:
        place.axhline(panel.target, color="#1f2328", linestyle="--", linewidth=1)
    place.set(title=panel.title, xlabel=panel.x_label)
    if panel.log_x:
        place.set_xscale("log")
        # On a scale of little more than one power of ten, minor labels would overlap.
        place.xaxis.set_minor_formatter(lambda *_: "")
    if panel.log_y:
        place.set_yscale("log")
    if panel.from_zero:
        place.set_ylim(bottom=0)


def write_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table whose first column is text and whose others are numbers."""
    rule = ["---", *["---:"] * (len(columns) - 1)]
    cells = ([cell.replace("|", "\\|") for cell in row] for row in (columns, rule, *rows))
    return "\n".join(f"| {' | '.join(row)} |" for row in cells) + "\n"


def show_seconds(seconds: float) -> str:
    """Format a duration with three significant digits."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            value = seconds / size
            return f"{value:.{2 if value < 10 else 1 if value < 100 else 0}f} {unit}"  # noqa: PLR2004
    return f"{seconds * 1e9:.0f} ns"
