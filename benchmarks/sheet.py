"""A table with its title and note: drawn on a terminal, or written as Markdown."""

from __future__ import annotations

from dataclasses import dataclass

from rich import box
from rich.table import Table


@dataclass(frozen=True, slots=True)
class Sheet:
    """A title, a table, and what a reader must know to read it."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str


def show_seconds(seconds: float) -> str:
    """A duration for people, with three significant digits."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            value = seconds / size
            return f"{value:.{2 if value < 10 else 1 if value < 100 else 0}f} {unit}"
    return f"{seconds * 1e9:.0f} ns"


def draw(sheet: Sheet) -> Table:
    """A table for the terminal."""
    table = Table(
        title=sheet.title,
        caption=sheet.note,
        title_justify="left",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )
    for position, column in enumerate(sheet.columns):
        table.add_column(column, justify="right" if position else "left")
    for row in sheet.rows:
        table.add_row(*row)
    return table


def write_sheet(sheet: Sheet) -> str:
    """A table for a page."""
    rule = ["---", *("---:" for _ in sheet.columns[1:])]
    lines = [f"| {' | '.join(row)} |" for row in (sheet.columns, rule, *sheet.rows)]
    return f"## {sheet.title}\n\n" + "\n".join(lines) + f"\n\n{sheet.note}\n"
