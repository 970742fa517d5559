"""A report as a web page that needs nothing but itself: no script, no font, no picture from elsewhere."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from html import escape
from itertools import groupby

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
from hubbub_local.reproduce.plots import INK, Plot

STYLE = """
:root {
  color-scheme: light dark;
  --page: #f6f8fa; --surface: #ffffff; --ink: #1f2328; --soft: #59636e; --line: #d1d9e0; --accent: #0b6e63;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #0d1117; --surface: #151b23; --ink: #e6edf3; --soft: #9198a1; --line: #3d444d; --accent: #4cc2b4;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--page); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif;
}
main { max-width: 72rem; margin: 0 auto; padding: 2.5rem 1.25rem 4rem; }
header p { margin: 0; color: var(--accent); font-weight: 600; letter-spacing: 0.02em; }
h1 { margin: 0.2rem 0 1rem; font-size: 2rem; line-height: 1.2; }
h2 { margin: 3rem 0 1rem; font-size: 1.3rem; }
p, ul { max-width: 48rem; }
li { margin: 0.35rem 0; }
code { padding: 0.1em 0.35em; border-radius: 4px; background: var(--page); border: 1px solid var(--line);
  font: 0.86em ui-monospace, "SFMono-Regular", Menlo, Consolas, monospace; }
pre { padding: 1rem; overflow-x: auto; border: 1px solid var(--line); border-radius: 8px;
  background: var(--surface); }
pre code { padding: 0; border: 0; background: none; }
.facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(13rem, 1fr)); gap: 1rem;
  margin: 1.75rem 0 0; }
.facts div { padding: 1rem 1.15rem; border: 1px solid var(--line); border-radius: 10px;
  background: var(--surface); }
.facts dt { font-size: 1.6rem; font-weight: 650; font-variant-numeric: tabular-nums; }
.facts dd { margin: 0.15rem 0 0; color: var(--soft); font-size: 0.9rem; line-height: 1.4; }
.scroll { overflow-x: auto; border: 1px solid var(--line); border-radius: 10px; background: var(--surface); }
table { width: 100%; border-collapse: collapse; font-size: 0.9rem; font-variant-numeric: tabular-nums; }
th, td { padding: 0.5rem 0.7rem; text-align: right; white-space: nowrap; }
th { font-weight: 600; }
thead th { color: var(--soft); font-size: 0.82rem; }
thead .group { text-align: center; color: var(--ink); }
th:first-child, td:first-child { text-align: left; }
tbody tr { border-top: 1px solid var(--line); }
tbody th { position: sticky; left: 0; background: var(--surface); }
.paper { color: var(--soft); }
.begins { border-left: 1px solid var(--line); }
figure { margin: 0 0 1.5rem; padding: 1.1rem 1.25rem; border: 1px solid var(--line); border-radius: 10px;
  background: var(--surface); }
figure h3 { margin: 0 0 0.5rem; font-size: 1.05rem; }
figure svg { display: block; width: 100%; height: auto; max-width: 60rem; color: var(--ink); }
figcaption { max-width: 48rem; margin-top: 0.6rem; color: var(--soft); font-size: 0.9rem; }
@media print { body { background: none; } figure, .facts div { break-inside: avoid; } }
"""


def render_page(document: Document) -> str:
    """The whole page."""
    title = escape(document.title)
    body = "\n".join(_render(part) for part in document.parts)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}: beside the paper</title>
<style>{STYLE}</style>
</head>
<body>
<main>
<header><p>Hubbub, reproduced</p><h1>{title}</h1></header>
{body}
</main>
</body>
</html>
"""


def _render(part: Part) -> str:
    match part:
        case Heading(text=text):
            return f"<h2>{escape(text)}</h2>"
        case Paragraph(text=text):
            return f"<p>{_render_text(text)}</p>"
        case Points(items=items):
            return f"<ul>{''.join(f'<li>{_render_text(item)}</li>' for item in items)}</ul>"
        case Facts(items=facts):
            tiles = (f"<div><dt>{escape(fact.value)}</dt><dd>{escape(fact.meaning)}</dd></div>" for fact in facts)
            return f'<dl class="facts">{"".join(tiles)}</dl>'
        case Table():
            return _render_table(part)
        case Listing(text=text):
            return f"<pre><code>$ {escape(text)}</code></pre>"
    return _render_plot(part)


def _render_text(text: str) -> str:
    """Escape, then set what is code and what is strong."""
    marked = re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text, quote=False))
    return re.sub(r"\*\*([^*]+)\*\*", r"<strong>\1</strong>", marked)


def _render_table(table: Table) -> str:
    groups = [(group, len(list(columns))) for group, columns in groupby(table.columns, lambda each: each.group)]
    above = "".join(
        f'<th class="group{" begins" if place else ""}" colspan="{span}" scope="colgroup">{escape(group)}</th>'
        for place, (group, span) in enumerate(groups)
    )
    classes = list(_class_columns(table))
    below = "".join(
        f'<th class="{kind}" scope="col">{escape(column.name)}</th>'
        for kind, column in zip(classes, table.columns, strict=True)
    )
    rows = "".join(f"<tr>{''.join(_render_cells(row, classes))}</tr>" for row in table.rows)
    head = f"<thead><tr>{above}</tr><tr>{below}</tr></thead>"
    return f'<div class="scroll" tabindex="0"><table>{head}<tbody>{rows}</tbody></table></div>'


def _class_columns(table: Table) -> Iterator[str]:
    before = None
    for column in table.columns:
        begins = before is not None and column.group != before
        yield " ".join(["begins"] * begins + ["paper"] * (column.name == "paper"))
        before = column.group


def _render_cells(row: Sequence[str], classes: Sequence[str]) -> Iterator[str]:
    yield f'<th scope="row">{escape(row[0])}</th>'
    for kind, cell in zip(classes[1:], row[1:], strict=True):
        yield f'<td class="{kind}">{escape(cell)}</td>'


def _render_plot(plot: Plot) -> str:
    """The picture itself, in the page's ink; names in it are made its own, since all share one page."""
    svg = plot.svg[plot.svg.index("<svg") :].replace(INK, "currentColor")
    svg = re.sub(r'\bid="([^"]+)"', rf'id="{plot.name}-\1"', svg)
    svg = re.sub(r'(href="#|url\(#)', rf"\g<1>{plot.name}-", svg)
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = svg.replace("<svg ", f'<svg role="img" aria-label="{escape(plot.title)}" ', 1)
    caption = f"<figcaption>{escape(plot.caption.strip())}</figcaption>"
    return f"<figure><h3>{escape(plot.title)}</h3>{svg.strip()}{caption}</figure>"
