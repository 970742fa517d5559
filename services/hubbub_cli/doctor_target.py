"""Target and findings of `hubbub doctor`.

The target is a party's settings, read from the same places as its service reads them. Findings are shown as a
table, or as JSON.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from hubbub.errors import ConfigurationError
from hubbub.ids import Role
from hubbub.runtime.settings import load_settings
from hubbub.trust.identity import read_identity
from hubbub_cli.formatting import count
from hubbub_cli.party_settings import settings_model

PREFIXES: Mapping[Role, str] = MappingProxyType(
    {
        Role.CLIENT: "HUBBUB_TRAINER_",
        Role.AGGREGATOR: "HUBBUB_AGGREGATOR_",
        Role.COORDINATOR: "HUBBUB_COORDINATOR_",
    }
)
OPTIONS = frozenset({"identity", "roster", "policy", "amqp_url", "folder", "data"})
"""Settings that are options too."""


class CheckStatus(StrEnum):
    """Result of a check."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"
    SKIPPED = "skipped"


STYLES: Mapping[CheckStatus, str] = MappingProxyType(
    {
        CheckStatus.OK: "green",
        CheckStatus.WARNING: "yellow",
        CheckStatus.PROBLEM: "bold red",
        CheckStatus.SKIPPED: "dim",
    }
)


@dataclass(frozen=True, slots=True)
class Finding:
    """Name of a check, its result and, unless it is ok, the remedy."""

    check: str
    verdict: CheckStatus
    what: str
    mend: str = ""


@dataclass(frozen=True, slots=True)
class Findings:
    """All findings so far."""

    all: list[Finding] = field(default_factory=list)

    def ok(self, check: str, what: str) -> None:
        """Add a success."""
        self.all.append(Finding(check, CheckStatus.OK, what))

    def warn(self, check: str, what: str, mend: str) -> None:
        """Add a warning: it works, but not for long or not well."""
        self.all.append(Finding(check, CheckStatus.WARNING, what, mend))

    def fail(self, check: str, what: str, mend: str) -> None:
        """Add a problem, which keeps a party from working or from being safe."""
        self.all.append(Finding(check, CheckStatus.PROBLEM, what, mend))

    def skip(self, check: str, why: str) -> None:
        """Add a check that could not be made."""
        self.all.append(Finding(check, CheckStatus.SKIPPED, why))

    def count(self, verdict: CheckStatus) -> int:
        """Count the findings with a status."""
        return sum(finding.verdict is verdict for finding in self.all)

    @property
    def is_well(self) -> bool:
        """Say whether there is no problem."""
        return not self.count(CheckStatus.PROBLEM)


def print_findings(findings: Findings, console: Console) -> None:
    """Print a row for each finding, with the remedy below it if it needs one."""
    console.print(_draw(findings.all))
    problems, warnings = findings.count(CheckStatus.PROBLEM), findings.count(CheckStatus.WARNING)
    told = f"{count(problems, 'problem')}, {count(warnings, 'warning')}"
    style = "bold red" if problems else "yellow" if warnings else "green"
    well = "nothing is wrong" + (" with what was looked at" if findings.count(CheckStatus.SKIPPED) else "")
    console.print(told if problems or warnings else well, style=style, highlight=False)


def _draw(findings: Sequence[Finding]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("check", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    table.add_column("what was found, and what to do", overflow="fold")
    shown = ""
    for finding in findings:
        text = Text(finding.what, "dim" if finding.verdict is CheckStatus.SKIPPED else "")
        if finding.mend:
            text.append(f"\n-> {finding.mend}", "bold")
        name = "" if finding.check == shown else finding.check
        table.add_row(name, Text(finding.verdict.value, STYLES[finding.verdict]), text)
        shown = finding.check
    return table


@dataclass(frozen=True, slots=True)
class DoctorTarget:
    """Party to check: its role, if known, and its settings by name."""

    role: Role | None
    settings: Mapping[str, str] = field(repr=False)
    """Not in `repr`: a URL of the broker may hold a password."""

    def path(self, name: str) -> Path | None:
        """Return a setting that names a file or folder."""
        text = self.settings.get(name)
        return None if not text else Path(text)

    def variable(self, name: str) -> str:
        """Return the option and the variable of a setting, for messages."""
        option = f"--{name.replace('_', '-')}"
        if name not in OPTIONS:
            return f"{PREFIXES[self.role]}{name.upper()}" if self.role else name
        return f"{option} ({PREFIXES[self.role]}{name.upper()})" if self.role else option


def admit(
    role: Role | None, options: Mapping[str, str], config: Path | None, environment: Mapping[str, str]
) -> DoctorTarget:
    """Gather the settings: options win over the environment, and that wins over a file."""
    named = _read_file(config)
    role = role or _guess_role({**named, **options}, environment)
    if role is None:
        return DoctorTarget(None, {**named, **options})
    prefix = PREFIXES[role]
    set_there = {
        name.removeprefix(prefix).lower(): value for name, value in environment.items() if name.startswith(prefix)
    }
    other = set_there.pop("config_file", None)
    if config is None and other:
        named = _read_file(Path(other))
    return DoctorTarget(role, {**named, **set_there, **options})


def _guess_role(given: Mapping[str, str], environment: Mapping[str, str]) -> Role | None:
    """Return the role of the given identity, or of the settings in the environment; None if neither tells."""
    if "identity" in given:
        try:
            return read_identity(Path(given["identity"])).role
        except ConfigurationError:
            # A later check says what is wrong with it.
            return None
    found = [role for role, prefix in PREFIXES.items() if any(name.startswith(prefix) for name in environment)]
    if len(found) > 1:
        roles = ", ".join(role.value for role in found)
        raise ConfigurationError(f"there are settings for several roles ({roles}): choose one with --role")
    return found[0] if found else None


def _read_file(file: Path | None) -> dict[str, str]:
    """Read a settings file; an unreadable one gives nothing here, for `check_settings` reports it."""
    if file is None:
        return {}
    try:
        content = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError):
        return {}
    return {name: str(value) for name, value in content.items()}


def check_settings(target: DoctorTarget, options: Mapping[str, str], config: Path | None, found: Findings) -> None:
    """Check that the service could load these settings, with the options in their place."""
    if target.role is None and config is not None:
        what = f"{config} does not tell whose settings it holds: it names no identity that can be read"
        found.fail("settings", what, "correct it; with --role it is said what is wrong with the rest")
        return
    if target.role is None:
        found.skip("settings", "of which party? Choose it with --role, or name its --identity or its --config")
        return
    prefix = PREFIXES[target.role]
    if config is None and not any(name.startswith(prefix) for name in os.environ):
        found.skip("settings", f"no variable {prefix}* is set, and no --config is named")
        return
    model = settings_model(target.role)
    extra = {f"{prefix}{name.upper()}": value for name, value in options.items() if name in model.model_fields}
    if config is not None:
        extra[f"{prefix}CONFIG_FILE"] = str(config)
    try:
        with _environment(extra):
            load_settings(model)
    except ConfigurationError as error:
        found.fail("settings", str(error), f"correct them in the environment ({prefix}*) or in the file")
    else:
        found.ok("settings", f"complete: the {target.role.value} would start with them")


@contextmanager
def _environment(extra: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables within the block."""
    before = dict(os.environ)
    os.environ.update(extra)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
