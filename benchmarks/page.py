"""Saved report: a page with every sheet and plot, and the numbers as JSON under their date."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from benchmarks.plots import draw_plots
from benchmarks.report import Report
from benchmarks.sheet import write_sheet
from benchmarks.sheets import lay_out
from benchmarks.targets import lay_out_targets

DOCS = Path(__file__).resolve().parent.parent / "docs"


def save(report: Report, docs: Path = DOCS) -> list[Path]:
    """Write the page, the numbers and the plots; return the paths."""
    name = f"results/{report.date}-bench"
    plots = draw_plots(report)
    pictures = {f"{name}-{end}.svg": title for end, (title, _) in plots.items()}
    files = {
        **{f"{name}-{end}.svg": svg for end, (_, svg) in plots.items()},
        f"{name}.json": json.dumps(report.to_json(), indent=1) + "\n",
        "benchmarks.md": write_page(report, pictures),
    }
    for path, text in files.items():
        (docs / path).parent.mkdir(parents=True, exist_ok=True)
        (docs / path).write_text(text, encoding="utf-8")
    return [docs / path for path in files]


def write_page(report: Report, pictures: Mapping[str, str]) -> str:
    """Return the whole report as Markdown, with links to the plots."""
    machine = "\n".join(f"- {name}: {value}" for name, value in asdict(report.machine).items())
    remarks = "".join(f"\n{remark}\n" for remark in report.remarks)
    targets = lay_out_targets(report)
    drawn = "".join(f"\n![{title}]({path})\n" for path, title in pictures.items())
    sheets = "\n".join(write_sheet(sheet) for sheet in lay_out(report))
    return (
        f"# Benchmarks, {report.date}\n\n"
        f"Made by `{report.command}`. Steps: medians of {report.repeats} interleaved repeats. What is measured "
        f"against what stands in [benchmarks/README.md](../benchmarks/README.md).\n\n"
        f"{machine}\n{remarks}\n{write_sheet(targets) if targets else ''}{drawn}\n{sheets}"
    )
