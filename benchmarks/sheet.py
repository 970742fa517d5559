"""Sheet: a table with its title and note, for a terminal or as Markdown."""

from __future__ import annotations

from dataclasses import dataclass

from rich import box
from rich.table import Table

from hubbub_local.figures import write_table


@dataclass(frozen=True, slots=True)
class Sheet:
    """Title, table, and a note on how to read it."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str


def draw(sheet: Sheet) -> Table:
    """Return a table for the terminal."""
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
    """Return a table in Markdown."""
    return f"## {sheet.title}\n\n{write_table(sheet.columns, sheet.rows)}\n{sheet.note}\n"
