"""The documentation speaks of what is there: paths, targets, commands, settings, messages, links."""

import inspect
import json
import re
import shlex
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hubbub.errors import Code, RejectReason
from hubbub.ids import PartyId, Role
from hubbub.messages.codec import KINDS
from hubbub.messages.manifest import Manifest
from hubbub.protocol.dense import Word, word_of
from hubbub.transport.topology import topology_for
from hubbub.trust import seals
from hubbub.trust.identity import PRIVATE_SUFFIX
from hubbub_cli.main import app
from hubbub_coordinator.phases.run import State
from hubbub_coordinator.reasons import MEANINGS
from hubbub_trainer.__main__ import TrainerSettings
from support.command_line import COMMANDS, list_below
from support.rest_stand_in import Front
from support.service_settings import SETTINGS

ROOT = Path(__file__).parents[2]
FOLDERS = ("shared", "services", "tests", "docs", "tools", "benchmarks", "examples", "compose", "k8s", ".ci")
TOP_FILES = re.compile(r"[A-Z]+\.md|Makefile|LICENSE|pyproject\.toml|constraints\.txt")
# Read outside the settings classes: by the data sets' cache, and by the tests.
OTHER_VARIABLES = {
    "HUBBUB_CACHE",
    "HUBBUB_TEST_AMQP_URL",
    "HUBBUB_TEST_CHROMIUM",
    "HUBBUB_TOKEN_FILE",
    "HUBBUB_URL",
}
MAX_README_BYTES = 9_000
VARIABLE = r"HUBBUB_[A-Z0-9_]*[A-Z0-9]"
WRITTEN = {"None": "none", "True": "true", "False": "false"}
"""Values of settings as the documents write them."""


@dataclass(frozen=True, slots=True)
class Page:
    """A page, taken apart: fenced blocks by language, code spans, prose with its links."""

    path: Path
    text: str

    @property
    def blocks(self) -> list[tuple[str, str]]:
        return re.findall(r"^```(\w*)\n(.*?)^```$", self.text, re.MULTILINE | re.DOTALL)

    @property
    def prose(self) -> str:
        return re.sub(r"^```.*?^```$", "", self.text, flags=re.MULTILINE | re.DOTALL)

    @property
    def spans(self) -> list[str]:
        return re.findall(r"`([^`\n]+)`", self.prose)

    @property
    def commands(self) -> list[str]:
        """Command lines: in code spans, and in blocks for a shell without their prompt."""
        lines = [line for kind, block in self.blocks if kind in {"console", "sh"} for line in block.splitlines()]
        return [*self.spans, *(line.removeprefix("$ ") for line in lines)]

    @property
    def anchors(self) -> set[str]:
        return {slug(title) for title in re.findall(r"^#+ (.+)$", self.prose, re.MULTILINE)}


def read(path: Path) -> Page:
    return Page(path, path.read_text(encoding="utf-8"))


def slug(title: str) -> str:
    """Make the anchor that GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", title.strip().lower()).replace(" ", "-")


def named(page: Page, pattern: str) -> list[str]:
    """The first cells of table rows that are a code span of this pattern."""
    return re.findall(rf"^\| `({pattern})` \|", page.prose, re.MULTILINE)


def settings_variables() -> set[str]:
    return {
        f"{model.model_config.get('env_prefix', '')}{name.upper()}"
        for model in SETTINGS.values()
        for name in [*model.model_fields, "config_file"]
    }


PAGES = [read(path) for path in sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])]
RUNNING = read(ROOT / "docs" / "running.md")
PROTOCOL = read(ROOT / "docs" / "protocol.md")


# What a page names ---------------------------------------------------------------------------------------


def test_all_that_a_page_names_exists(subtests: pytest.Subtests) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    known = options_of(()).union(*(options_of(name.split()) for name in all_commands()))
    for page in PAGES:
        with subtests.test(page.path.name):
            files = [
                span
                for span in page.spans
                if re.fullmatch(r"[\w./-]+", span) and (span.split("/")[0] in FOLDERS or TOP_FILES.fullmatch(span))
            ]
            modules = {span for span in page.spans if re.fullmatch(r"hubbub(_[a-z]+)?(\.[a-z_]+)+", span)}
            started = {name for line in page.commands for name in re.findall(r"python -m (hubbub_\w+)", line)}
            made = {word for line in page.commands if line.startswith("make ") for word in shlex.split(line)[1:]}

            assert [path for path in files if not (ROOT / path).exists()] == []
            modules |= {f"{name}.__main__" for name in started}
            assert [name for name in modules - EXCHANGES if find_spec(name) is None] == []
            assert {word for word in made if "=" not in word} - targets == set()
            assert set(re.findall(VARIABLE, page.text)) - OTHER_VARIABLES - settings_variables() == set()
            assert {span.split()[0] for span in page.spans if span.startswith("--")} - known == set()
            for call in calls_of_hubbub(page):
                used = {word.split("=")[0] for word in call if word.startswith("-")}
                assert used - options_of(call[: first_option(call)]) == set(), call


def test_every_link_leads_to_a_file_and_a_heading(subtests: pytest.Subtests) -> None:
    below = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.md"))]
    for path in [*sorted(ROOT.glob("*.md")), *below]:
        page = read(path)
        with subtests.test(str(path.relative_to(ROOT))):
            links = re.findall(r"\]\(([^)\s]+)\)", page.prose)
            assert [link for link in links if not link.startswith("https://") and not resolves(page, link)] == []


def resolves(page: Page, link: str) -> bool:
    name, _, anchor = link.partition("#")
    target = page.path.parent / name if name else page.path
    return target.exists() and (not anchor or anchor in read(target).anchors)


def test_every_folder_in_the_layout_exists() -> None:
    layout = next(
        block for _, block in read(ROOT / "docs" / "architecture.md").blocks if block.startswith("shared/")
    )

    folders, above = [], ROOT
    for line in layout.splitlines():
        name = line.split()[0]
        above = above if line.startswith(" ") else ROOT / name
        folders.append(above / name if line.startswith(" ") else above)

    assert [folder for folder in folders if not folder.is_dir()] == []


EXCHANGES = set(topology_for(PartyId("somebody"), Role.CLIENT).exchanges)


# The command ---------------------------------------------------------------------------------------------


def options_of(words: Sequence[str]) -> set[str]:
    """The options of the command that a line calls; fails if there is no such command."""
    command = COMMANDS[""]
    for word in words:
        commands = list_below(command)
        if not commands:
            # The rest are its arguments.
            break
        assert word in commands, f"there is no command hubbub {' '.join(words)}"
        command = commands[word]
    return {"--help", "-h"} | {option for each in getattr(command, "params", []) for option in each.opts}


def all_commands() -> set[str]:
    """Every command that does something, as it is written after `hubbub`."""
    return {name for name, command in COMMANDS.items() if not list_below(command)}


def calls_of_hubbub(page: Page) -> Iterator[list[str]]:
    for line in page.commands:
        if line.startswith(("hubbub ", ".venv/bin/hubbub ")):
            yield shlex.split(line)[1:]
        elif line.startswith("make demo ARGS="):
            yield ["demo", *shlex.split(shlex.split(line)[2].removeprefix("ARGS="))]


def first_option(call: list[str]) -> int:
    return next((position for position, word in enumerate(call) if word.startswith("-")), len(call))


def test_running_lists_every_command() -> None:
    assert set(named(RUNNING, r"hubbub [a-z -]+")) == {f"hubbub {name}" for name in all_commands()}


@pytest.mark.parametrize("page", ["README.md", "docs/choosing.md"])
def test_the_planner_answers_what_a_page_asks_it(page: str) -> None:
    calls = [call for call in calls_of_hubbub(read(ROOT / page)) if call[:2] == ["plan", "--params"]]

    for call in calls:
        assert CliRunner().invoke(app, call).exit_code == 0, call
    assert calls


@pytest.mark.parametrize(
    ("strategy", "price", "flags"),
    [
        ("sec-union", "181 KB", ""),
        ("sec-union", "98 KB", "--rho 0.01"),
        ("sec-union", "78 KB", "--block 16"),
        ("shared-mask", "10.4", ""),
        ("shared-mask", "6.9 KB", "--bits 1"),
        ("no-union", "290 KB", ""),
        ("no-union", "370 KB", "--servers 5"),
    ],
)
def test_a_price_in_the_choice_of_a_strategy_is_the_planners(strategy: str, price: str, flags: str) -> None:
    section = read(ROOT / "docs" / "choosing.md").text.split("## What makes a round cheaper")[1]
    number = price.removesuffix(" KB")

    printed = CliRunner().invoke(app, ["plan", "--params", "61706", *flags.split(), "--json"]).stdout

    rows = [row for row in json.loads(printed)["strategies"] if row["strategy"] == strategy]
    places = len(number.partition(".")[2])
    assert price in section
    assert number in {f"{row['bits_per_round'] / 8 / 1024:.{places}f}" for row in rows}


def test_every_symbol_of_the_paper_is_where_the_glossary_says() -> None:
    table = read(ROOT / "docs" / "glossary.md").text.split("| in the code |")[1]
    names = re.findall(r"`(\w+)\.(\w+)`", table)

    assert len(names) > 20
    for owner, name in names:
        if owner == "Manifest":
            assert name in Manifest.model_fields
        else:
            package = "hubbub_trainer.learning" if owner == "task" else "hubbub.protocol"
            assert hasattr(import_module(f"{package}.{owner}"), name), f"{owner}.{name}"


# Settings ------------------------------------------------------------------------------------------------


def test_running_names_the_settings_that_there_are_and_no_others() -> None:
    variables = set(re.findall(VARIABLE, RUNNING.text))

    assert variables - OTHER_VARIABLES == settings_variables()


def test_variables_outside_the_settings_are_read_where_we_say() -> None:
    sources = [
        "services/hubbub_cli/runs.py",
        "services/hubbub_trainer/learning/datasets.py",
        "tests/support/broker.py",
        "tests/support/browser.py",
    ]

    text = "".join((ROOT / path).read_text(encoding="utf-8") for path in sources)

    assert {name for name in OTHER_VARIABLES if f'"{name}"' not in text} == set()


def test_running_gives_the_defaults_that_there_are() -> None:
    rows = dict(re.findall(r"^\| `(HUBBUB_\w+)` \| `?([^|`]+?)`? \|", RUNNING.prose, re.MULTILINE))

    wrong = {
        variable: (rows.get(variable), default)
        for variable, default in stated_defaults()
        if rows.get(variable) != default
    }

    assert wrong == {}


def stated_defaults() -> Iterator[tuple[str, str]]:
    for model in SETTINGS.values():
        for name, field in model.model_fields.items():
            variable = f"{model.model_config.get('env_prefix', '')}{name.upper()}"
            if field.is_required():
                yield variable, "required"
            elif field.default_factory is None:
                yield variable, WRITTEN.get(repr(field.default), str(field.default))


def test_the_sample_settings_file_is_a_trainers() -> None:
    sample = next(tomllib.loads(block) for kind, block in RUNNING.blocks if kind == "toml")

    settings = TrainerSettings(**sample)

    assert settings.identity.name == f"clinic-a{PRIVATE_SUFFIX}"


# Messages, manifest, reasons, routes ---------------------------------------------------------------------


def test_protocol_lists_every_message_with_its_parties() -> None:
    rows = re.findall(r"^\| `([a-z-]+)` \| ([a-z, ]+) \| ([a-z, ]+) \|", PROTOCOL.prose, re.MULTILINE)

    listed = {kind: (set(senders.split(", ")), set(recipients.split(", "))) for kind, senders, recipients in rows}

    assert listed == {
        kind: ({role.value for role in message.senders}, {role.value for role in message.recipients})
        for kind, message in KINDS.items()
    }


def test_protocol_lists_every_field_of_the_manifest() -> None:
    section = PROTOCOL.text.split("## The manifest, and the run id")[1].split("\n## ")[0]

    assert set(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)) == set(Manifest.model_fields)


def test_protocol_gives_the_words_that_dense_residues_are_packed_in() -> None:
    section = PROTOCOL.text.split("### What n residues take")[1].split("\n### ")[0]
    rows = re.findall(r"^\| (\d+) \| (\d+) \| (\d+) \|", section, re.MULTILINE)

    assert len(rows) >= 4
    for m, digits, bits in rows:
        assert word_of(int(m)) == Word(digits=int(digits), bits=int(bits)), m


def test_protocol_lists_every_purpose_that_keys_of_streams_are_derived_for() -> None:
    section = PROTOCOL.text.split("### Streams")[1].split("\n### ")[0]
    source = inspect.getsource(seals).split("# Streams -")[1]

    assert set(re.findall(r"`(hubbub/1 [a-z ]+)`", section)) == set(re.findall(r'"(hubbub/1 [a-z ]+)"', source))


def test_the_plan_that_is_shown_is_what_the_command_prints() -> None:
    block = next(text for _, text in PROTOCOL.blocks if text.startswith("N = "))
    asked = ["plan", "--params", "61706", "--rounds", "17"]

    printed = CliRunner().invoke(app, asked, env={"COLUMNS": "100"}).stdout

    lines = {line.rstrip() for line in printed.splitlines()} | {"..."}
    assert [line for line in block.splitlines() if line not in lines] == []


def test_running_lists_every_reason_to_refuse() -> None:
    section = RUNNING.text.split("### Refused messages")[1].split("\n## ")[0]

    assert re.findall(r"^\| `([a-z-]+)` \|", section, re.MULTILINE) == [reason.value for reason in RejectReason]


def test_running_explains_every_code_as_the_coordinator_does() -> None:
    rows = re.findall(r"^\| `([a-z-]+)` \| ([^|]+) \| [^|]+ \|$", RUNNING.text, re.MULTILINE)

    explained = {code: meaning for code, meaning in rows if code in set(Code)}
    assert explained == {code.value: MEANINGS[code] for code in Code}


def test_running_lists_every_route() -> None:
    paths = Front().routes.openapi()["paths"]

    routes = {f"{method.upper()} {path}" for path, methods in paths.items() for method in methods}

    assert set(named(RUNNING, r"(?:GET|POST|PUT) [^`]+")) == routes


def test_running_names_every_state_of_a_run() -> None:
    sentence = RUNNING.text.split("A run is `")[1].split("says why")[0]

    assert {state.value for state in State} - set(re.findall(r"[a-z]+", sentence)) == set()


def test_the_readme_is_short_and_all_pages_are_found() -> None:
    assert len((ROOT / "README.md").read_bytes()) <= MAX_README_BYTES
    assert {"README.md", "running.md", "protocol.md", "threat-model.md"} <= {page.path.name for page in PAGES}
