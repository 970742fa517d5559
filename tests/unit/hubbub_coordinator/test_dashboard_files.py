"""The dashboard's files, read as text: nothing from elsewhere, nothing inline, and nothing that is not there."""

import re
from html.parser import HTMLParser
from typing import get_args

from hubbub.messages.shares import Direction
from hubbub_coordinator.api import pages
from hubbub_coordinator.event_feed import FeedEventKind
from hubbub_coordinator.phases import run as runs
from hubbub_coordinator.progress import PartyState
from support.rest_stand_in import Front

FILES = {path.name: path.read_text(encoding="utf-8") for path in sorted(pages.DASHBOARD.iterdir())}
SCRIPTS = {name: text for name, text in FILES.items() if name.endswith(".js")}
ASSETS = pages.find_assets()
NAMESPACE = "http://www.w3.org/2000/svg"
"""The one address that is a name and is never fetched."""
VOID_ELEMENTS = frozenset({"meta", "link", "input", "br", "hr", "img"})
# What would take text for markup, or for code: names and reasons come from others.
MARKUP_FROM_TEXT = re.compile(
    r"\b(?:innerHTML|outerHTML|insertAdjacentHTML|setHTMLUnsafe|parseFromString|createContextualFragment)\b"
    r"|document\.write|\beval\(|new Function\("
)


class Page(HTMLParser):
    """A page's elements with their attributes, and whatever text stands inside scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.inline: list[str] = []
        self._open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID_ELEMENTS:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] in {"script", "style"} and data.strip():
            self.inline.append(data)


def list_in(script: str, name: str) -> list[str]:
    """The strings of a list that a script declares."""
    found = re.search(rf"const {name} = \[(.*?)\];", SCRIPTS[script], re.DOTALL)
    assert found, f"{script} declares no {name}"
    return re.findall(r'"([^"]+)"', found[1])


def keys_in(script: str, name: str) -> set[str]:
    """The keys of an object that a script declares, and of what is in it."""
    found = re.search(rf"const {name} = \{{(.*?)\n\}};", SCRIPTS[script], re.DOTALL)
    assert found, f"{script} declares no {name}"
    return set(re.findall(r'(?:^|[{,\s])"?([a-z][a-z-]*)"?: ', found[1]))


def test_no_file_names_another_host() -> None:
    host = re.compile(r"[a-z]+://|(?:src|href|url\(|import|from)\s*[=\"'(]*\s*//", re.IGNORECASE)

    assert [name for name, text in FILES.items() if host.search(text.replace(NAMESPACE, ""))] == []


def test_the_page_has_no_inline_script_style_or_handler() -> None:
    page = Page(FILES["index.html"])

    assert page.inline == []
    for tag, attributes in page.elements:
        assert tag != "style"
        assert [name for name in attributes if name == "style" or name.startswith("on")] == [], tag
        assert not [value for value in attributes.values() if (value or "").startswith("javascript:")], tag


def test_no_script_takes_text_for_markup_or_writes_a_style_attribute_which_the_policy_refuses() -> None:
    style = re.compile(r"setAttribute\(\s*[\"']style|[{,]\s*style:")

    for forbidden in (MARKUP_FROM_TEXT, style):
        assert [name for name, text in SCRIPTS.items() if forbidden.search(text)] == []


def test_every_asset_that_is_named_is_served_and_every_module_is_used() -> None:
    named = re.compile(r'/assets/([\w.-]+)|from "\./([\w.]+)"')
    found = {(name, "".join(asset)) for name, text in FILES.items() for asset in named.findall(text)}
    imported = {name for text in SCRIPTS.values() for name in re.findall(r'from "\./([\w.]+)"', text)}
    loaded = set(re.findall(r"/assets/([\w.-]+)", FILES["index.html"]))

    assert {(name, asset) for name, asset in found if asset not in ASSETS} == set()
    assert FILES.keys() - {"index.html"} == (imported | loaded) & FILES.keys()


def test_every_module_is_preloaded_so_that_none_waits_for_the_one_that_imports_it() -> None:
    links = [attributes for tag, attributes in Page(FILES["index.html"]).elements if tag == "link"]
    preloaded = {(each["href"] or "").removeprefix("/assets/") for each in links if each["rel"] == "modulepreload"}

    assert preloaded == SCRIPTS.keys() - {"app.js", "first_paint.js"}


def test_every_element_that_a_script_asks_for_is_in_the_page() -> None:
    ids = {attributes["id"] for _, attributes in Page(FILES["index.html"]).elements if "id" in attributes}
    asked = {each for text in SCRIPTS.values() for each in re.findall(r'byId\("([\w-]+)"\)', text)}

    assert asked
    assert asked <= ids


def test_every_path_that_a_script_asks_for_is_in_the_interface() -> None:
    asked = {each for text in SCRIPTS.values() for each in re.findall(r'["`](/api/[^"`?]*)', text)}

    assert len(asked) > 10
    assert asked <= Front().routes.openapi()["paths"].keys()


def test_every_kind_direction_and_state_has_its_place() -> None:
    assert set(list_in("log.js", "KINDS")) == {kind.value for kind in FeedEventKind}
    assert list_in("costs.js", "WAYS") == list(get_args(Direction))
    assert keys_in("icons.js", "SHAPES") >= {state.value for state in runs.State}
    assert keys_in("picture_view.js", "WORDS") >= {state.value for state in PartyState}


def test_plotly_still_asks_for_the_element_that_keeps_its_map_styles_out() -> None:
    found = re.search(r'MAP_STYLES = "(\w+)"', SCRIPTS["charts.js"])
    assert found
    library = ASSETS["plotly.min.js"].read_text(encoding="utf-8")

    assert f'getElementById("{found[1]}")' in library
    assert 'matches(".no-inline-styles")' in library
