"""The documentation site: built from the pages and the code, all links checked, nothing fetched from elsewhere."""

import html
import re
import shutil
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

from hubbub.errors import Code, RejectReason
from hubbub.messages.codec import KINDS
from support.command_line import COMMANDS, list_below
from support.program import run_python
from support.rest_stand_in import Front
from support.service_settings import SETTINGS
from support.tools import load_tool

ROOT = Path(__file__).parents[2]
SITE = load_tool("docs_site")

BROKEN = "[No page](nowhere.md), [no heading](tasks.md#no-heading) and [no file](../examples/nothing.py)."

Read = Callable[[str], str]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site as `make docs` builds it, with one more page, whose links are the only ones that are broken."""
    folder = tmp_path_factory.mktemp("site")
    shutil.copytree(ROOT / "docs", folder / "docs")
    (folder / "docs" / "broken.md").write_text(f"# Broken\n\n{BROKEN}\n", encoding="utf-8")
    hooks = f"hooks: [{ROOT / 'tools' / 'docs_site.py'}]"
    (folder / "mkdocs.yml").write_text(f"INHERIT: {ROOT / 'mkdocs.yml'}\n{hooks}\n", encoding="utf-8")

    done = run_python("-m", "mkdocs", "build", "--strict", cwd=folder)

    complaints = [line for line in done.stderr.splitlines() if line.startswith(("WARNING", "ERROR"))]
    assert [re.findall("link '([^']+)'", line) for line in complaints] == [
        ["nowhere.md"],
        ["project/examples/nothing.py.md"],
        ["tasks.md#no-heading"],
    ]
    assert done.returncode == 1
    return folder / "build" / "site"


@pytest.fixture(scope="module")
def read(site: Path) -> Read:
    return lambda name: html.unescape((site / f"{name}.html").read_text(encoding="utf-8"))


def test_the_reference_has_all_that_the_code_has(read: Read, subtests: pytest.Subtests) -> None:
    routes = Front().routes.openapi()["paths"]
    expected: dict[str, set[str]] = {
        "cli": {f"hubbub {name}" for name, command in COMMANDS.items() if name and not list_below(command)},
        "settings": {model.variable(field) for model in SETTINGS.values() for field in model.model_fields},
        "rest": {f"{method.upper()} {path}" for path, methods in routes.items() for method in methods},
        "metrics": {
            "hubbub_ready",
            "hubbub_metric",
            "hubbub_task_failures_total",
            "hubbub_messages_rejected_total",
        },
        "messages": set(KINDS),
        "errors": {*Code, *RejectReason, "MalformedMessage"},
    }
    assert expected.keys() == SITE.reference.PAGES.keys()
    for page, names in expected.items():
        with subtests.test(page):
            text = read(f"reference/{page}")
            assert [name for name in names if name not in text] == []


def test_fields_are_read_with_the_words_of_their_classes_and_every_setting_has_some() -> None:
    models = [*SETTINGS.values(), *KINDS.values()]

    fields = {(model.__name__, field.name) for model in models for field in SITE.reference.read_fields(model)}

    assert fields == {(model.__name__, name) for model in models for name in model.model_fields}
    assert [
        model.variable(field.name)
        for model in SETTINGS.values()
        for field in SITE.reference.read_fields(model)
        if not field.text
    ] == []


@pytest.mark.skipif(find_spec("merman") is None, reason="merman is not built for this machine")
def test_diagrams_are_pictures_in_the_page(read: Read, subtests: pytest.Subtests) -> None:
    for path in sorted((ROOT / "docs").glob("*.md")):
        drawn = path.read_text(encoding="utf-8").count("```mermaid")
        if drawn:
            with subtests.test(path.name):
                assert len(re.findall(r'<svg id="diagram-', read(path.stem))) == drawn


def test_links_out_of_the_docs_lead_to_pages_of_the_site(read: Read) -> None:
    assert 'href="project/examples/simulate.py.html"' in read("tasks")
    assert "from hubbub_local import simulate" in re.sub("<[^>]+>", "", read("project/examples/simulate.py"))
    assert 'href="running.html"' in read("index")


def test_no_list_block_or_table_of_a_page_is_left_as_text(site: Path) -> None:
    left: dict[str, list[str]] = {}
    for path in site.rglob("*.html"):
        text = re.sub(r"<(pre|code|style|script).*?</\1>", "x", path.read_text(encoding="utf-8"), flags=re.DOTALL)
        paragraphs = "\n".join(re.findall(r"<p>(.*?)</p>", text, re.DOTALL))
        found = re.findall(r"^(?: *(?:[-*]|\d+\.) |\||```).*", paragraphs, re.MULTILINE)
        if found:
            left[path.name] = found

    assert left == {}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("page.html", '<script src="https://cdn.example/plot.js"></script>'),
        ("page.html", '<link rel="stylesheet" href="//cdn.example/style.css">'),
        ("page.html", '<style>@import "https://fonts.example/css"</style>'),
        ("page.html", "<p style=\"background: url('https://pictures.example/a.png')\">"),
        ("style.css", "@font-face { src: url(https://fonts.example/font.woff2) }"),
    ],
)
def test_what_comes_from_another_host_is_found(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")

    (found,) = SITE.find_foreign(tmp_path)

    assert found.startswith(f"{name}: ")


def test_a_link_to_click_and_a_file_of_the_site_are_not_fetched_from_elsewhere(tmp_path: Path) -> None:
    text = '<a href="https://flower.ai">Flower</a><script src="../main.js"></script><img src="data:,x">'
    (tmp_path / "page.html").write_text(text, encoding="utf-8")

    assert SITE.find_foreign(tmp_path) == []
