"""A report as Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from hubbub_local.reproduce.document import (
    Document,
    Facts,
    Heading,
    Listing,
    Paragraph,
    Part,
    Points,
    Table,
)


def render_markdown(document: Document) -> str:
    """The whole text; plots are files beside it."""
    return "\n\n".join([f"# {_escape(document.title)}", *(_render(part) for part in document.parts)]) + "\n"


def _render(part: Part) -> str:
    match part:
        case Heading(text=text):
            return f"## {text}"
        case Paragraph(text=text):
            return _escape(text)
        case Points(items=items):
            return "\n".join(f"- {_escape(item)}" for item in items)
        case Facts(items=facts):
            return "\n".join(f"- **{fact.value}** {_escape(fact.meaning)}" for fact in facts)
        case Table():
            return _render_table(part)
        case Listing(text=text):
            return f"```console\n$ {text}\n```"
    return f"### {_escape(part.title)}\n\n![{_escape(part.title)}]({part.file})\n\n{_escape(part.caption.strip())}"


def _render_table(table: Table) -> str:
    lines = [[column.title for column in table.columns], *table.rows]
    head, *rows = (_render_row([_escape_cell(cell) for cell in line]) for line in lines)
    return "\n".join([head, _render_row(["---", *["---:"] * (len(table.columns) - 1)]), *rows])


def _render_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _escape_cell(text: str) -> str:
    return text.replace("|", "\\|")


def _escape(text: str) -> str:
    """What looks like a tag is text."""
    return text.replace("<", "&lt;")
