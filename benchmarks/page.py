"""A report as a page, under its date and as the newest: what is asked and measured, plots, every sheet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.plots import Plot, draw_plots
from benchmarks.report import Report
from benchmarks.sheet import write_sheet
from benchmarks.sheets import lay_out
from benchmarks.targets import lay_out_targets

DOCS = Path(__file__).resolve().parent.parent / "docs"
NEWEST, RESULTS = "benchmarks.md", "results"
NO_PLOTS = "There are no plots: they take matplotlib (`pip install 'hubbub[report]'`) and numbers to draw."


def save(report: Report, docs: Path = DOCS) -> list[Path]:
    """Write the page twice, as the newest and under its date, and the plots that both show."""
    try:
        plots = draw_plots(report)
    except ImportError:
        plots = []
    name = f"{report.date}-bench"
    files = {f"{RESULTS}/{name}-{plot.name}.svg": plot.svg for plot in plots}
    files[f"{RESULTS}/{name}.md"] = write_page(report, plots, up="../../", pictures=f"{name}-")
    files[NEWEST] = write_page(report, plots, up="../", pictures=f"{RESULTS}/{name}-")
    for path, text in files.items():
        (docs / path).parent.mkdir(parents=True, exist_ok=True)
        (docs / path).write_text(text, encoding="utf-8")
    return [docs / path for path in files]


def write_page(report: Report, plots: Sequence[Plot], *, up: str, pictures: str) -> str:
    """The whole report; `up` leads to the project's folder, `pictures` to the plots."""
    machine = "\n".join(f"- {name}: {value}" for name, value in asdict(report.machine).items())
    remarks = "".join(f"\n{remark}\n" for remark in report.remarks)
    targets = lay_out_targets(report)
    drawn = "".join(f"\n![{plot.title}]({pictures}{plot.name}.svg)\n" for plot in plots) or f"\n{NO_PLOTS}\n"
    sheets = "\n".join(write_sheet(sheet) for sheet in lay_out(report))
    return (
        f"# Benchmarks, {report.date}\n\n"
        f"Made by `{report.command}`. Steps: medians of {report.repeats} interleaved repeats. What is measured "
        f"against what stands in [benchmarks/README.md]({up}benchmarks/README.md).\n\n"
        f"{machine}\n{remarks}\n{write_sheet(targets) if targets else ''}{drawn}\n{sheets}"
    )
