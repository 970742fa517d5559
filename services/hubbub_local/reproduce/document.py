"""A report as a list of parts, which a page and a text file show each in its way.

Text is plain, but for `code` in backticks and **strong words**.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hubbub_local.reproduce.plots import Plot


@dataclass(frozen=True, slots=True)
class Heading:
    """Begins a section."""

    text: str


@dataclass(frozen=True, slots=True)
class Paragraph:
    """Some sentences."""

    text: str


@dataclass(frozen=True, slots=True)
class Points:
    """A list."""

    items: Sequence[str]


@dataclass(frozen=True, slots=True)
class Fact:
    """A number that matters, and what it is."""

    value: str
    meaning: str


@dataclass(frozen=True, slots=True)
class Facts:
    """What is to be seen first."""

    items: Sequence[Fact]


@dataclass(frozen=True, slots=True)
class Column:
    """Columns next to each other with the same group belong together: ours beside the paper's."""

    group: str
    name: str = ""

    @property
    def title(self) -> str:
        """Where there are no groups."""
        return f"{self.group}, {self.name}" if self.name else self.group


@dataclass(frozen=True, slots=True)
class Table:
    """Numbers; the first column is words."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True)
class Listing:
    """A command to type."""

    text: str


Part = Heading | Paragraph | Points | Facts | Table | Listing | Plot


@dataclass(frozen=True, slots=True)
class Document:
    """The whole."""

    title: str
    parts: Sequence[Part]
