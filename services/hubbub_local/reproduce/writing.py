"""Writing a report into its folder: the page, the text and the plots."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from hubbub.errors import ConfigurationError
from hubbub_local.reproduce.markdown import render_markdown
from hubbub_local.reproduce.page import render_page
from hubbub_local.reproduce.plots import draw_all
from hubbub_local.reproduce.progress import Ledger
from hubbub_local.reproduce.report import write_document

PAGE, TEXT = "report.html", "report.md"


def write_report(ledger: Ledger, command: str) -> Sequence[Path]:
    """Write all files anew from what is kept, and return them."""
    settings, records = ledger.kept.settings, ledger.records
    plots = draw_all(settings, records)
    document = write_document(settings, ledger.kept.machine, records, plots, command)
    files = {
        PAGE: render_page(document),
        TEXT: render_markdown(document),
        **{plot.file: on_white(plot.svg) for plot in plots},
    }
    try:
        for name, content in files.items():
            (ledger.folder / name).write_text(content, encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"{error.filename} cannot be written: {error.strerror}") from None
    return [ledger.folder / name for name in files]


def on_white(svg: str) -> str:
    """A picture that may be shown on any ground, with a ground of its own."""
    return re.sub(r"(<svg[^>]*>)", r'\1<rect width="100%" height="100%" fill="white"/>', svg, count=1)
