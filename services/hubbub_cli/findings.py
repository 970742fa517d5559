"""What `hubbub doctor` finds, as a table for people and as JSON for programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from types import MappingProxyType

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from hubbub_cli.wording import count


class Verdict(StrEnum):
    """How something is."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"
    SKIPPED = "skipped"


STYLES: Mapping[Verdict, str] = MappingProxyType(
    {Verdict.OK: "green", Verdict.WARNING: "yellow", Verdict.PROBLEM: "bold red", Verdict.SKIPPED: "dim"}
)


@dataclass(frozen=True, slots=True)
class Finding:
    """What was looked at, what was found and, unless it is well, how to mend it."""

    check: str
    verdict: Verdict
    what: str
    mend: str = ""


@dataclass(frozen=True, slots=True)
class Findings:
    """All that was found so far."""

    all: list[Finding] = field(default_factory=list)

    def praise(self, check: str, what: str) -> None:
        """Note that something is as it should be."""
        self.all.append(Finding(check, Verdict.OK, what))

    def warn(self, check: str, what: str, mend: str) -> None:
        """Note what works, but not for long or not well."""
        self.all.append(Finding(check, Verdict.WARNING, what, mend))

    def complain(self, check: str, what: str, mend: str) -> None:
        """Note what keeps a party from working, or from being safe."""
        self.all.append(Finding(check, Verdict.PROBLEM, what, mend))

    def skip(self, check: str, why: str) -> None:
        """Note what could not be looked at."""
        self.all.append(Finding(check, Verdict.SKIPPED, why))

    def count(self, verdict: Verdict) -> int:
        """How many there are of a kind."""
        return sum(finding.verdict is verdict for finding in self.all)

    @property
    def is_well(self) -> bool:
        """Whether nothing is wrong."""
        return not self.count(Verdict.PROBLEM)


def write_findings(findings: Findings) -> dict[str, object]:
    """The findings for programs."""
    return {"ok": findings.is_well, "checks": [asdict(finding) for finding in findings.all]}


def print_findings(findings: Findings, console: Console) -> None:
    """The findings for people: a row for each, what to do under those that need something."""
    console.print(_draw(findings.all))
    problems, warnings = findings.count(Verdict.PROBLEM), findings.count(Verdict.WARNING)
    told = f"{count(problems, 'problem')}, {count(warnings, 'warning')}"
    style = "bold red" if problems else "yellow" if warnings else "green"
    well = "nothing is wrong" + (" with what was looked at" if findings.count(Verdict.SKIPPED) else "")
    console.print(told if problems or warnings else well, style=style, highlight=False)


def _draw(findings: Sequence[Finding]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("check", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    table.add_column("what was found, and what to do", overflow="fold")
    shown = ""
    for finding in findings:
        text = Text(finding.what, "dim" if finding.verdict is Verdict.SKIPPED else "")
        if finding.mend:
            text.append(f"\n-> {finding.mend}", "bold")
        name = "" if finding.check == shown else finding.check
        table.add_row(name, Text(finding.verdict.value, STYLES[finding.verdict]), text)
        shown = finding.check
    return table
