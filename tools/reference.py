"""Reference pages of the site, written from the code: the command, settings, REST, metrics, messages, errors."""

from __future__ import annotations

import ast
import html
import inspect
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import httpx
import typer.cli
from prometheus_client import Metric
from pydantic import BaseModel
from typer.testing import CliRunner

import hubbub.errors
from hubbub.errors import RejectReason
from hubbub.messages.codec import KINDS
from hubbub_aggregator.__main__ import AggregatorSettings
from hubbub_cli.main import EXIT_CODES
from hubbub_coordinator.__main__ import CoordinatorSettings
from hubbub_coordinator.reasons import MEANINGS
from hubbub_trainer.__main__ import TrainerSettings

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))
from support.measured_run import measure_run  # noqa: E402  (It is where tests are.)
from support.rest_stand_in import Front  # noqa: E402

SERVICES = {"Coordinator": CoordinatorSettings, "Aggregator": AggregatorSettings, "Trainer": TrainerSettings}
METHODS = ("get", "post", "put")


def write_cli() -> str:
    """Return the page of the `hubbub` command, as Typer writes it."""
    done = CliRunner().invoke(typer.cli.app, ["hubbub_cli.main", "utils", "docs", "--name", "hubbub"])
    if done.exit_code:
        raise RuntimeError(done.output)
    # Typer escapes for HTML also what Markdown takes as it is.
    return done.stdout.replace("# `hubbub`", "# The `hubbub` command", 1)


def write_settings() -> str:
    """Return the page of all services' settings."""
    lines = [
        "# Settings",
        "",
        (
            "Settings come from the environment, or from a TOML file that the service's `..._CONFIG_FILE` names; "
            "there they are lower-case and without the prefix. The environment wins. "
            "[Running a federation](../running.md#settings) says more about some of them."
        ),
    ]
    for service, model in SERVICES.items():
        lines += ["", f"## {service}", ""]
        rows = (
            (f"`{model.variable(field.name)}`", _code(field.default or "required"), field.text)
            for field in read_fields(model)
        )
        lines += write_table(("setting", "default", "meaning"), rows)
    return "\n".join(lines)


def write_rest() -> str:
    """Return the page of the coordinator's REST interface, from its OpenAPI document."""
    document = Front().routes.openapi()
    lines = [
        "# REST interface",
        "",
        (
            "The coordinator's HTTP interface. Its own `/docs` has the schemas of all answers. Which token each "
            "request takes is in [Begin a run, and follow it](../running.md#7-begin-a-run-and-follow-it)."
        ),
    ]
    for path, methods in document["paths"].items():
        for method in METHODS:
            if method not in methods:
                continue
            about = methods[method]
            lines += ["", f"## {method.upper()} {path}", "", about["description"], ""]
            rows = [
                (f"`{each['name']}`", each["in"], each.get("description", ""))
                for each in about.get("parameters", ())
            ]
            lines += [*write_table(("parameter", "in", "meaning"), rows), ""] if rows else []
            answers = (
                (f"{code} {_phrase(code)}", each["description"]) for code, each in about["responses"].items()
            )
            lines += write_table(("answer", "meaning"), sorted(answers))
    return "\n".join(lines)


def write_metrics() -> str:
    """Return the page of all metrics for Prometheus, read from the parties of a small run."""
    with tempfile.TemporaryDirectory(prefix="hubbub-reference-") as folder:
        measured = measure_run(Path(folder), clients=2, rounds=1)
    roles = dict.fromkeys(measured.manifest.clients, "trainer")
    roles |= dict.fromkeys(measured.manifest.aggregators, "aggregator")
    families: dict[str, Metric] = {}
    parties: dict[str, set[str]] = {}
    labels: dict[str, set[str]] = {}
    for party, counters in measured.counters.items():
        for family in counters.registry.collect():
            families[family.name] = family
            parties.setdefault(family.name, set()).add(roles.get(party, "coordinator"))
            found = {label for sample in family.samples for label in sample.labels} - {"le"}
            labels.setdefault(family.name, set()).update(found)
    rows = (
        (
            f"`{name}{'_total' if family.type == 'counter' else ''}`",
            family.type,
            ", ".join(f"`{label}`" for label in sorted(labels[name])),
            "all" if len(parties[name]) == len(SERVICES) else ", ".join(sorted(parties[name])),
            family.documentation,
        )
        for name, family in sorted(families.items())
    )
    lines = [
        "# Metrics",
        "",
        (
            "What `/metrics` of each service answers. "
            "[Watching the services](../running.md#10-watching-the-services) says whom to show them to."
        ),
        "",
        *write_table(("metric", "type", "labels", "of", "meaning"), rows),
    ]
    return "\n".join(lines)


def write_messages() -> str:
    """Return the page of all messages between parties."""
    lines = [
        "# Messages",
        "",
        (
            "Every message that parties send each other over the broker: who may send it to whom, and its fields. "
            "[The protocol](../protocol.md#messages) says when each is sent."
        ),
    ]
    for kind, message in KINDS.items():
        sent = (", ".join(sorted(role.value for role in roles)) for roles in (message.senders, message.recipients))
        lines += ["", f"## {kind}", "", f"*{' to '.join(sent)}.* {_join(inspect.getdoc(message) or '')}", ""]
        fields = read_fields(message)
        # Most fields need no words beside their names.
        columns = 3 if any(field.text for field in fields) else 2
        rows = [(f"`{field.name}`", _code(field.kind), field.text)[:columns] for field in fields]
        lines += write_table(("field", "type", "meaning")[:columns], rows) if rows else []
    return "\n".join(lines)


def write_errors() -> str:
    """Return the page of exceptions, codes, reasons to refuse a message, and exit codes."""
    opening, tree, *rest = (inspect.getdoc(hubbub.errors) or "").split("\n\n")
    lines = [
        "# Errors",
        "",
        "What to do about each is in [What the errors mean](../running.md#what-the-errors-mean).",
        "",
        "## Exceptions",
        "",
        opening,
        "",
        *("```text", textwrap.dedent(tree), "```", ""),
        *"\n\n".join(rest).splitlines(),
        "",
        "## Codes",
        "",
        "A party that refuses a run, or leaves it, sends one of these codes and no text.",
        "",
        *write_table(("code", "meaning"), ((f"`{code}`", text) for code, text in MEANINGS.items())),
        "",
        "## Refused messages",
        "",
        (
            "Reasons for which a message is refused; "
            "[the table of refused messages](../running.md#refused-messages) explains each."
        ),
        "",
        *(f"- `{reason}`" for reason in RejectReason),
        "",
        "## Exit codes",
        "",
        EXIT_CODES.removeprefix("Exit codes: "),
    ]
    return "\n".join(lines)


PAGES: Mapping[str, Callable[[], str]] = {
    "cli": write_cli,
    "settings": write_settings,
    "rest": write_rest,
    "metrics": write_metrics,
    "messages": write_messages,
    "errors": write_errors,
}
"""Writers of the pages, by their name below `reference/`."""


# Fields of a class --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FieldNote:
    """A field as its class declares it: source text of its type and default, and the text below it."""

    name: str
    kind: str
    default: str
    text: str


def read_fields(model: type[BaseModel]) -> list[FieldNote]:
    """Return a model's fields, those of its base classes first."""
    found: dict[str, FieldNote] = {}
    for each in reversed(model.__mro__):
        if issubclass(each, BaseModel) and each.__module__.startswith("hubbub"):
            found.update((field.name, field) for field in _read_class(each))
    return [field for name, field in found.items() if name in model.model_fields]


def _read_class(model: type[BaseModel]) -> Iterator[FieldNote]:
    (declaration,) = ast.parse(textwrap.dedent(inspect.getsource(model))).body
    body = declaration.body if isinstance(declaration, ast.ClassDef) else []
    for place, node in enumerate(body):
        if not (isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)):
            continue
        match body[place + 1 : place + 2]:
            case [ast.Expr(value=ast.Constant(value=str(text)))]:
                pass
            case _:
                text = ""
        yield FieldNote(node.target.id, ast.unparse(node.annotation), _default(node.value), _join(text))


def _default(value: ast.expr | None) -> str:
    """Return the source text of a field's default; empty if it has none."""
    if isinstance(value, ast.Call):
        given = {keyword.arg: ast.unparse(keyword.value) for keyword in value.keywords}
        factory = f"{given['default_factory']}()" if "default_factory" in given else ""
        return given.get("default", factory)
    return ast.unparse(value) if value is not None else ""


# Markdown -----------------------------------------------------------------------------------------------


def write_table(titles: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    """Return the lines of a table."""
    lines = [titles, tuple("---" for _ in titles), *rows]
    return [f"| {' | '.join(cell.replace('|', '&#124;') for cell in line)} |" for line in lines]


def _join(text: str) -> str:
    return html.escape(" ".join(inspect.cleandoc(text).split()), quote=False)


def _code(text: str) -> str:
    return f"<code>{html.escape(text, quote=False)}</code>"


def _phrase(code: str) -> str:
    return f"{code} {httpx.codes.get_reason_phrase(int(code))}"
