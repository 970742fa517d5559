"""MkDocs hooks of the documentation site.

The Markdown files are written for the repository. For the site their links are changed to lead to its pages, and
files outside of docs/ that they link to become pages, too. The reference is written from the code. Diagrams become
SVG. The build fails if a page would load a script, a style, a font or a picture from another host.
"""

from __future__ import annotations

import html
import json
import posixpath
import re
import sys
from collections.abc import Iterator
from hashlib import sha256
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tools"))
import reference  # noqa: E402  (It is beside this file.)

FIRST_PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")
"""Pages outside of docs/ that are in the navigation; others are found by links."""
LINK = re.compile(r"\[([^\]]*)\]\(([^)\s]+)\)")
INDENT = re.compile(r"^ {2,}(?=\S)", re.MULTILINE)
FENCED = re.compile(r"^(```.*?^```$)", re.MULTILINE | re.DOTALL)
LANGUAGES = {".py": "python", ".toml": "toml", ".yml": "yaml"}
LOADING = {"script": "src", "link": "href", "img": "src", "iframe": "src", "source": "src"}
"""Attributes of elements that make a browser fetch something."""
LEAST_SCALE = 0.65


# Where pages are ----------------------------------------------------------------------------------------


def place(path: str) -> str:
    """Return the page of a file of the repository."""
    if path == "README.md":
        return "index.md"
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return f"project/{path}" if path.endswith(".md") else f"project/{path}.md"


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Make anchors as GitHub does, which the links expect, and have diagrams drawn."""
    config.mdx_configs["toc"]["slugify"] = slug
    config.mdx_configs["pymdownx.superfences"] = {
        "custom_fences": [{"name": "mermaid", "class": "diagram", "format": draw}]
    }
    return config


def slug(title: str, separator: str) -> str:
    """Return the anchor of a heading."""
    return re.sub(r"[^\w\- ]", "", title.strip().lower()).replace(" ", separator)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the reference, and the pages from outside of docs/."""
    for name, write in reference.PAGES.items():
        files.append(File.generated(config, f"reference/{name}.md", content=write()))
    ours = {f"docs/{each.src_uri}": each for each in files.documentation_pages() if each.abs_src_path}
    waiting = [*FIRST_PAGES, *ours]
    seen = set(waiting)
    while waiting:
        path = waiting.pop()
        text = ours[path].content_string if path in ours else read(path)
        if not path.startswith("docs/"):
            files.append(File.generated(config, place(path), content=turn_links(text, path)))
        if path.endswith((".md", ".ipynb")):
            found = {each for each in linked_files(text, path) if not each.startswith("docs/")} - seen
            seen |= found
            waiting += sorted(found)
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Turn the links of a page in docs/ that lead out of it."""
    return turn_links(markdown, f"docs/{page.file.src_uri}") if page.file.abs_src_path else markdown


def read(path: str) -> str:
    """Return a file of the repository as Markdown; of a folder, the list of its files."""
    if (ROOT / path).is_dir():
        return "\n".join([f"# {path}", "", *(f"- `{each.name}`" for each in sorted((ROOT / path).iterdir()))])
    text = (ROOT / path).read_text(encoding="utf-8")
    if path.endswith(".md"):
        return text
    if path.endswith(".ipynb"):
        return "\n\n".join(_write_cell(cell) for cell in json.loads(text)["cells"])
    return f"# {path}\n\n````{LANGUAGES.get(Path(path).suffix, 'text')}\n{text}\n````\n"


def _write_cell(cell: dict[str, Any]) -> str:
    source = "".join(cell["source"])
    return f"```python\n{source}\n```" if cell["cell_type"] == "code" else source


def find_title(path: str) -> str:
    """Return the first heading of a page."""
    return (ROOT / path).read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")


def linked_files(text: str, path: str) -> Iterator[str]:
    """Yield the files of the repository that a page links to."""
    for piece in FENCED.split(text)[::2]:
        for _, link in LINK.findall(piece):
            name = link.partition("#")[0]
            if name and "://" not in name and not name.startswith("mailto:"):
                found = posixpath.normpath(posixpath.join(posixpath.dirname(path), name))
                if (ROOT / found).exists():
                    yield found


def turn_links(text: str, path: str) -> str:
    """Return a page whose links between files of the repository lead to their pages.

    A link that is called by the name of its file is called by the title of the page instead.
    """
    folder, here = posixpath.dirname(path), posixpath.dirname(place(path))

    def turn(found: re.Match[str]) -> str:
        name, hash_sign, anchor = found[2].partition("#")
        if not name or "://" in name or name.startswith("mailto:"):
            return found[0]
        target = posixpath.normpath(posixpath.join(folder, name))
        called = find_title(target) if found[1].endswith(".md") and (ROOT / target).is_file() else found[1]
        return f"[{called}]({posixpath.relpath(place(target), here or '.')}{hash_sign}{anchor})"

    pieces = FENCED.split(text)
    return "".join(
        piece if number % 2 else INDENT.sub(indent, LINK.sub(turn, piece)) for number, piece in enumerate(pieces)
    )


def indent(found: re.Match[str]) -> str:
    """Return the indent that Python-Markdown wants in an item of a list: four spaces for two or three."""
    spaces = len(found[0])
    return " " * max(4, spaces + 1)


# Diagrams -----------------------------------------------------------------------------------------------


def draw(source: str, _language: str, css_class: str, *_: object, **__: object) -> str:
    """Draw a Mermaid diagram as SVG; it stays text where there is no merman."""
    if find_spec("merman") is None:
        return f"<pre><code>{html.escape(source)}</code></pre>"
    import merman  # noqa: PLC0415  (It is not built for every machine.)

    name = f"diagram-{sha256(source.encode()).hexdigest()[:12]}"
    options = json.dumps({"svg": {"diagram_id": name}})
    svg = merman.Merman().render_svg(source, options)
    return f'<div class="{css_class}">{re.sub(r"max-width: ([0-9.]+)px", keep_readable, svg, count=1)}</div>'


def keep_readable(found: re.Match[str]) -> str:
    """Return a style with which a picture of this width is not drawn so small that its words cannot be read."""
    width = float(found[1])
    return f"max-width: {width:.0f}px; min-width: {width * LEAST_SCALE:.0f}px"


# What a browser would fetch -----------------------------------------------------------------------------


class Fetches(HTMLParser):
    """Collects the addresses that a page has its browser fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note the address, if the element has one; a style may have some as well."""
        given = dict(attrs)
        self.found += [given.get(LOADING.get(tag, "")) or "", *list_addresses(given.get("style") or "")]

    def handle_data(self, data: str) -> None:
        """Note the addresses in a style sheet within the page."""
        if self.cdata_elem == "style":
            self.found += list_addresses(data)


def list_addresses(style: str) -> list[str]:
    """Return the addresses in a style sheet."""
    return re.findall(r"""(?:url\(|@import)\s*['"]?([^'")\s]+)""", style)


def find_foreign(folder: Path) -> list[str]:
    """Return what pages and style sheets of a built site would fetch from another host."""
    found: list[str] = []
    for path in sorted([*folder.rglob("*.html"), *folder.rglob("*.css")]):
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".html":
            page = Fetches()
            page.feed(text)
            addresses = page.found
        else:
            addresses = list_addresses(text)
        found += [f"{path.relative_to(folder)}: {each}" for each in addresses if re.match(r"(\w+:)?//", each)]
    return found


def on_post_build(config: MkDocsConfig) -> None:
    """Refuse a site that would fetch something from another host."""
    foreign = find_foreign(Path(config.site_dir))
    if foreign:
        raise PluginError(f"these are fetched from other hosts: {', '.join(foreign)}")
