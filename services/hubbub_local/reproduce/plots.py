"""The plots of a report, as SVG text that is the same for the same results.

They are drawn with matplotlib, the extra `report`. Text and lines that are neither data nor white are drawn in one
ink, which a page that has a dark side too replaces with its own.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from statistics import fmean
from typing import TYPE_CHECKING, Any

from hubbub.errors import ConfigurationError
from hubbub_local.reproduce.plan import Method, Settings, list_methods
from hubbub_local.reproduce.records import BITS, RoundRecord, RunRecord, show_share

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INK = "#1f2328"
FAINT = "#8b949e"
LOG_FROM = 10
"""Where the largest is more than this many times the smallest, the scale is logarithmic."""
WIDTH_INCHES, HEIGHT_INCHES = 8.4, 4.6
PERCENT = 100

# Of middle brightness: to be seen on white and on black.
_COLOURS = (
    *("#8a8f98", "#b5792a", "#d4a72c", "#3b7dd8", "#d1495b", "#e8833a"),
    *("#9a5bc0", "#2a9d8f", "#5aa02c", "#c2569e", "#20a4c9", "#7a6652"),
)
_MARKERS = "osDv^PXhd<>*"
# Any: matplotlib types its keys as a Literal of all that there are.
_STYLE: dict[Any, Any] = {
    "svg.hashsalt": "hubbub reproduce",
    "svg.fonttype": "path",
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "text.color": INK,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": FAINT,
    "grid.alpha": 0.25,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    "lines.markersize": 4.5,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """A plot with the name of its file."""

    name: str
    title: str
    caption: str
    svg: str

    @property
    def file(self) -> str:
        """Where it is written."""
        return f"{self.name}.svg"


def require_matplotlib() -> None:
    """Refuse early where nothing could be drawn in the end."""
    if find_spec("matplotlib") is None:
        raise ConfigurationError("the report's plots need matplotlib: pip install 'hubbub[report]'")


def draw_all(settings: Settings, records: Sequence[RunRecord]) -> list[Plot]:
    """All four."""
    import matplotlib as mpl  # noqa: PLC0415  (Only who has the extra can import it.)

    by_name: dict[str, list[RunRecord]] = {}
    for name in list_methods():
        runs = [record for record in records if record.name == name]
        if runs:
            by_name[name] = runs
    with mpl.rc_context(_STYLE):
        return [
            _accuracy_by_round(settings, by_name),
            _accuracy_by_bytes(settings, by_name),
            _bytes_by_strategy(settings, by_name),
            _union_by_round(settings, by_name),
        ]


Runs = dict[str, list[RunRecord]]


def _accuracy_by_round(settings: Settings, by_name: Runs) -> Plot:
    def fill(axes: Axes) -> None:
        for names in _group_alike(by_name):
            _draw_line(axes, names, by_name[names[0]], lambda _, each: each.round, _accuracy)
        _draw_target(axes, settings)
        axes.set_xlabel("round")
        _count_in_whole(axes)

    return Plot(
        name="accuracy-by-round",
        title="Accuracy by round",
        caption="On the test set, after each round. Strategies on the same line hold the same models:"
        f" they compute the same sums by different protocols. {_seeds_caption(by_name)}",
        svg=_draw(fill, "Accuracy by round"),
    )


def _accuracy_by_bytes(settings: Settings, by_name: Runs) -> Plot:
    sizes = [_sent(settings, run, each) for runs in by_name.values() for run in runs for each in run.by_round]
    is_log = max(sizes) > LOG_FROM * min(sizes)

    def fill(axes: Axes) -> None:
        for name, runs in by_name.items():
            _draw_line(axes, [name], runs, lambda run, each: _sent(settings, run, each), _accuracy)
        _draw_target(axes, settings)
        _label_bytes(axes, f"payload sent up to then ({settings.table.unit})", is_log=is_log)

    return Plot(
        name="accuracy-by-bytes",
        title="Accuracy by bytes sent",
        caption=f"Payload of all parties, wire mode {settings.wire}. {_seeds_caption(by_name)}",
        svg=_draw(fill, "Accuracy by bytes sent"),
    )


def _bytes_by_strategy(settings: Settings, by_name: Runs) -> Plot:
    table = settings.table
    unit_bits = BITS * table.unit_bytes
    ours = {name: [run.payload_bits / unit_bits for run in runs] for name, runs in by_name.items()}
    printed = {name: table.rows[name].size for name in by_name if name in table.rows}
    everything = [*(size for sizes in ours.values() for size in sizes), *printed.values()]

    def fill(axes: Axes) -> None:
        for place, (name, sizes) in enumerate(ours.items()):
            colour, reached = _colour_of(name), all(run.reached for run in by_name[name])
            axes.plot([min(sizes), max(sizes)], [place, place], color=colour, linewidth=3, alpha=0.5)
            axes.plot(
                fmean(sizes), place, "o", color=colour, markersize=9, fillstyle="full" if reached else "left"
            )
            if name in printed:
                axes.plot(printed[name], place, "D", markerfacecolor="none", markeredgecolor=INK, markersize=7)
        axes.plot([], [], "o", color=FAINT, markersize=9, label="ours, to the target")
        if not all(run.reached for runs in by_name.values() for run in runs):
            axes.plot([], [], "o", color=FAINT, markersize=9, fillstyle="left", label="ours, target not reached")
        axes.plot([], [], "D", markerfacecolor="none", markeredgecolor=INK, label=f"paper, {table.source}")
        axes.set_yticks(range(len(ours)), [_label_of(name) for name in ours])
        axes.invert_yaxis()
        is_log = max(everything) > LOG_FROM * min(everything)
        _label_bytes(axes, f"payload in all ({table.unit})", is_log=is_log)

    return Plot(
        name="bytes-by-strategy",
        title="Bytes by strategy",
        caption=f"Payload of all rounds and all parties, wire mode {settings.wire}; the mean over the seeds, and a"
        " bar from the least to the most.",
        svg=_draw(fill, "Bytes by strategy"),
    )


def _union_by_round(settings: Settings, by_name: Runs) -> Plot:
    with_union = {name: runs for name, runs in by_name.items() if runs[0].method.has_union}

    def fill(axes: Axes) -> None:
        for names in _group_alike(with_union):
            _draw_line(axes, names, with_union[names[0]], lambda _, each: each.round, lambda each: each.union_size)
        for size, names in _printed_unions(settings, with_union).items():
            label = "\n".join([f"paper, E|V| = {size:,}", *map(_label_of, names)])
            axes.axhline(size, color=_colour_of(names[0]), linestyle=":", linewidth=1.4, label=label)
        axes.set_xlabel("round")
        axes.set_ylabel("|V|, indices")
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        _count_in_whole(axes)

    return Plot(
        name="union-by-round",
        title="|V| by round",
        caption="The size of the union of what the clients chose, for strategies that have one."
        f" {_seeds_caption(with_union)}",
        svg=_draw(fill, "Size of the union by round"),
    )


# Parts -----------------------------------------------------------------------------------------------------


def _draw(fill: Callable[[Axes], None], title: str) -> str:
    from matplotlib.backends.backend_svg import FigureCanvasSVG  # noqa: PLC0415  (As above.)
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=(WIDTH_INCHES, HEIGHT_INCHES), layout="constrained", facecolor="none")
    FigureCanvasSVG(figure)
    axes = figure.add_subplot(facecolor="none")
    fill(axes)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), fontsize=8.5, labelspacing=0.7)
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None, "Creator": "hubbub reproduce", "Title": title})
    return text.getvalue()


def _draw_line(
    axes: Axes,
    names: Sequence[str],
    runs: Sequence[RunRecord],
    x: Callable[[RunRecord, RoundRecord], float],
    y: Callable[[RoundRecord], float],
) -> None:
    """The mean over the seeds, as far as all of them go; each seed faintly."""
    colour, marker = _colour_of(names[0]), _MARKERS[_place_of(names[0])]
    lines = [[(x(run, each), y(each)) for each in run.by_round] for run in runs]
    # Not strict: where the shortest ends, so does the mean.
    mean = [
        (fmean(point[0] for point in points), fmean(point[1] for point in points))
        for points in zip(*lines, strict=False)
    ]
    for line in lines if len(lines) > 1 else ():
        axes.plot(*zip(*line, strict=True), color=colour, alpha=0.3, linewidth=1)
    axes.plot(*zip(*mean, strict=True), color=colour, marker=marker, label="\n= ".join(map(_label_of, names)))


def _accuracy(each: RoundRecord) -> float:
    return PERCENT * each.accuracy


def _sent(settings: Settings, run: RunRecord, until: RoundRecord) -> float:
    bits = sum(each.payload_bits for each in run.by_round if each.round <= until.round)
    return bits / BITS / settings.table.unit_bytes


def _draw_target(axes: Axes, settings: Settings) -> None:
    label = f"target, {show_share(settings.target)}"
    axes.axhline(PERCENT * settings.target, color=INK, linestyle="--", linewidth=1, label=label)
    axes.set_ylabel("accuracy (%)")


def _label_bytes(axes: Axes, label: str, *, is_log: bool) -> None:
    from matplotlib.ticker import LogLocator  # noqa: PLC0415  (As above.)

    axes.set_xlabel(label + (", logarithmic" if is_log else ""))
    if is_log:
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_minor_formatter(lambda *_: "")
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    else:
        axes.set_xlim(left=0)


def _count_in_whole(axes: Axes) -> None:
    from matplotlib.ticker import MaxNLocator  # noqa: PLC0415  (As above.)

    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))


def _group_alike(by_name: Runs) -> list[list[str]]:
    """Strategies that hold the same models, together: one line would hide the other."""
    groups: dict[object, list[str]] = {}
    for name, runs in by_name.items():
        ends = tuple((run.seed, run.model_sha256, run.rounds) for run in runs)
        # Of a run that was cut off the model is not known.
        known = all(run.finished for run in runs)
        groups.setdefault(ends if known else name, []).append(name)
    return list(groups.values())


def _printed_unions(settings: Settings, by_name: Runs) -> dict[int, list[str]]:
    """The paper's E|V| with the strategies that it is for; nothing where there is none."""
    found: dict[int, list[str]] = {}
    for name in by_name:
        row = settings.table.rows.get(name)
        if row is not None and row.union_size is not None:
            found.setdefault(row.union_size, []).append(name)
    return found


def _seeds_caption(by_name: Runs) -> str:
    several = any(len(runs) > 1 for runs in by_name.values())
    return (
        "Lines are means over the seeds, as far as all of them go; faint ones are single seeds." if several else ""
    )


def _place_of(name: str) -> int:
    return list(list_methods()).index(name) % len(_COLOURS)


def _colour_of(name: str) -> str:
    """A strategy has its colour in every plot of every report."""
    return _COLOURS[_place_of(name)]


def _label_of(name: str) -> str:
    found: Method = list_methods()[name]
    return found.label
