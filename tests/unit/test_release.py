"""One version: where it stands, and that the changelog knows it."""

import re
import tomllib
from itertools import pairwise
from pathlib import Path

from hubbub import __version__

ROOT = Path(__file__).parents[2]
SECTION = re.compile(r"^## \[(?P<name>[^]]+)](?: - (?P<date>\d{4}-\d{2}-\d{2}))?$", re.MULTILINE)
VERSION = re.compile(r"\d+\.\d+\.\d+(?:(?:a|b|rc)\d+)?")
PLACES = {Path("shared/hubbub/__init__.py")}
"""The only file that says which version this is; the build reads it there."""
SOURCES = ("shared", "services", "docs", "tools", "benchmarks", "examples", "pyproject.toml", "README.md")
ELSEWHERE = ("docs/results", "docs/benchmarks.md")
"""Documents that name the version that was measured."""


def read_changelog() -> dict[str, str]:
    """The text of each section by its heading, in order."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    found = list(SECTION.finditer(text))
    ends = [match.start() for match in found[1:]] + [len(text)]
    return {match["name"]: text[match.end() : end].strip() for match, end in zip(found, ends, strict=True)}


def numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)))


def test_the_build_reads_the_version_where_the_library_has_it() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))

    assert "version" in project["project"]["dynamic"]
    assert {Path(project["tool"]["hatch"]["version"]["path"])} == PLACES
    assert VERSION.fullmatch(__version__)


def test_changelog_has_a_section_for_this_version_or_for_what_will_be_in_it() -> None:
    sections = read_changelog()

    names = list(sections)
    assert names[0] == "Unreleased"
    assert all(VERSION.fullmatch(name) for name in names[1:])
    assert all(numbers(newer) > numbers(older) for newer, older in pairwise(names[1:]))
    if __version__ in sections:
        assert names[1] == __version__, "what was released after this version cannot be in it"
    else:
        assert sections["Unreleased"], "a version that is not released yet has something in it"
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert [match["name"] for match in SECTION.finditer(text) if not match["date"]] == ["Unreleased"]
    assert text.count("\n## ") == len(sections), "a heading that is not of this form"


def test_the_version_is_written_nowhere_else() -> None:
    said = re.compile(rf"(?<![\d.]){re.escape(__version__)}(?![\d.])")

    found = {
        path.relative_to(ROOT)
        for folder in SOURCES
        for path in ([ROOT / folder] if (ROOT / folder).is_file() else (ROOT / folder).rglob("*"))
        if path.suffix in {".py", ".md", ".toml", ".js", ".html", ".template"}
        and not path.relative_to(ROOT).as_posix().startswith(ELSEWHERE)
        and said.search(path.read_text(encoding="utf-8"))
    }

    assert found == PLACES
