"""Tables of a document, as lists of rows, so that a test can hold a document to its word."""

import re
from pathlib import Path


def read_table(document: Path, *columns: str) -> list[dict[str, str]]:
    """The rows of the one table that has these columns; code marks and links are taken off."""
    lines = document.read_text(encoding="utf-8").splitlines()
    heads = [number for number, line in enumerate(lines) if _cells(line) == list(columns)]
    if len(heads) != 1:
        raise LookupError(f"{document} has {len(heads)} tables with the columns {', '.join(columns)}")
    rows = []
    for line in lines[heads[0] + 2 :]:
        if not line.startswith("|"):
            break
        rows.append(dict(zip(columns, _cells(line), strict=True)))
    return rows


def split(cell: str) -> list[str]:
    """The items that a cell lists."""
    return [each.strip() for each in cell.split(",") if each.strip()]


def _cells(line: str) -> list[str]:
    if not line.startswith("|"):
        return []
    plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", line).replace("`", "")
    return [cell.strip() for cell in plain.strip().strip("|").split("|")]
