"""The plots of a saved report, as SVG text that is the same for the same numbers; drawn with matplotlib."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchmarks.feeding import PhaseCost
from benchmarks.peers.contest import PeerCost
from benchmarks.report import Report

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MIB = 2**20
_COLOURS = ("#3b7dd8", "#d1495b", "#2a9d8f", "#b5792a")
# Any: matplotlib types its keys as a Literal of all that there are.
_STYLE: dict[Any, Any] = {
    "svg.hashsalt": "hubbub bench",
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "legend.frameon": False,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """A picture, the end of its file's name, and what it shows."""

    name: str
    title: str
    svg: str


def draw_plots(report: Report) -> list[Plot]:
    """Every plot for which something was measured."""
    import matplotlib as mpl  # noqa: PLC0415  (Only who has the extra `report` can import it.)

    with mpl.rc_context(_STYLE):
        return list(_draw_all(report))


def _draw_all(report: Report) -> Iterator[Plot]:
    growth, memory = report.growth, report.footprints
    if growth and len(growth.by_length) > 1:
        sizes = [(each.parameters, each.peak_bytes) for each in memory.by_length] if memory else []
        title = "A phase by N: C = 5, S = 2"
        yield _growth("growth-n", title, "N", [(each.parameters, each) for each in growth.by_length], sizes)
    if growth and len(growth.by_cohort) > 1:
        sizes = [(each.clients, each.peak_bytes) for each in memory.by_cohort] if memory else []
        title = f"A phase by C: N = {growth.by_cohort[0].parameters:,}, S = 2"
        yield _growth("growth-c", title, "C", [(each.clients, each) for each in growth.by_cohort], sizes)
    if report.peers and report.peers.costs:
        longest = max(each.parameters for each in report.peers.costs)
        yield _peers([each for each in report.peers.costs if each.parameters == longest])


def _growth(
    name: str, title: str, label: str, costs: Sequence[tuple[int, PhaseCost]], sizes: Sequence[tuple[int, int]]
) -> Plot:
    """Time, bytes and, where it was measured, memory, each over its place."""
    series: list[tuple[str, str, list[tuple[int, float]]]] = [
        ("client", "processor time (s)", [(x, each.client_s) for x, each in costs]),
        ("aggregator", "processor time (s)", [(x, each.server_s) for x, each in costs]),
        ("everybody", "bytes sent (MiB)", [(x, each.all_bytes / _MIB) for x, each in costs]),
    ]
    if sizes:
        series.append(("aggregator's process", "peak memory (MiB)", [(x, size / _MIB) for x, size in sizes]))
    units = list(dict.fromkeys(unit for _, unit, _ in series))

    def fill(panels: Sequence[Axes]) -> None:
        for colour, (who, unit, points) in zip(_COLOURS, series, strict=False):
            panels[units.index(unit)].plot(*zip(*points, strict=True), "o-", color=colour, label=who)
        for panel, unit in zip(panels, units, strict=True):
            panel.set(xscale="log", yscale="log", xlabel=label, title=unit)
        if sizes:
            # The interpreter is most of it: from zero, not by powers of ten, of which it does not span one.
            panels[-1].set(yscale="linear", ylim=(0, None))
        for panel in panels:
            panel.legend()

    return Plot(name=name, title=title, svg=_draw(title, len(units), fill))


def _peers(costs: Sequence[PeerCost]) -> Plot:
    title = f"One round of 5 clients, N = {costs[0].parameters:,}"
    measures: tuple[tuple[str, Callable[[PeerCost], float]], ...] = (
        ("all bytes (MiB)", lambda each: each.total_bytes / _MIB),
        ("a client's processor time (s)", lambda each: each.client_s + each.client_wire_s),
        ("a server's processor time (s)", lambda each: each.server_s + each.server_wire_s),
    )

    def fill(panels: Sequence[Axes]) -> None:
        names = [f"≈ {each.system}" if each.is_scaled else each.system for each in costs]
        for number, (panel, (label, value)) in enumerate(zip(panels, measures, strict=True)):
            panel.barh(names, [value(each) for each in costs], color=_COLOURS[number])
            panel.set(xscale="log", title=label)
            # Where the scale spans little more than one power of ten, its labels would lie over each other.
            panel.xaxis.set_minor_formatter(lambda *_: "")
            panel.invert_yaxis()
            if number:
                panel.set_yticklabels([])

    return Plot(name="peers", title=title, svg=_draw(title, len(measures), fill))


def _draw(title: str, panels: int, fill: Callable[[Sequence[Axes]], None]) -> str:
    from matplotlib.backends.backend_svg import FigureCanvasSVG  # noqa: PLC0415  (As above.)
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=(10.5, 3.6), layout="constrained", facecolor="white")
    FigureCanvasSVG(figure)
    fill(list(figure.subplots(1, panels, squeeze=False)[0]))
    figure.suptitle(title)
    drawn = io.StringIO()
    figure.savefig(drawn, format="svg", metadata={"Date": None, "Creator": None})
    return "\n".join(line.rstrip() for line in drawn.getvalue().splitlines()) + "\n"
