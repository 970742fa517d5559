"""`hubbub audit`: check the chain of a log, and compare the logs of several parties."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from hubbub.errors import ConfigurationError, ProtocolError
from hubbub_cli.formatting import AsJson, count, print_json

if TYPE_CHECKING:
    from hubbub.trust.audit import Log
    from hubbub.trust.comparison import Common, Difference

EXIT_DIFFERENT = 1
FEWEST_LOGS = 2
RUN_DIGITS = 12


audits = typer.Typer(help="Audit logs: what each party says it took part in.", no_args_is_help=True)


@audits.command("verify")
def verify(
    file: Annotated[Path, typer.Argument(help="A party's audit log.")],
    as_json: AsJson = False,  # noqa: FBT002  (A flag.)
) -> None:
    """Check that every line of a log follows from the one before.

    The chain is not signed: its own party can write a whole new one. Note the head, and compare it later.

    Exit code 0 if it holds, 1 if its chain is broken, 2 if there is no such file.
    """
    log = _read(file, as_json=as_json)
    if as_json:
        print_json({"intact": True, **_describe(file, log)})
    else:
        _print_log(log)


@audits.command("compare")
def compare_logs(
    files: Annotated[list[Path], typer.Argument(help="Audit logs of at least 2 parties, or copies of one log.")],
    as_json: AsJson = False,  # noqa: FBT002  (A flag.)
) -> None:
    """Find what several parties cannot all be right about, and tails that were cut off.

    Exit code 0 if the logs agree, 1 if they differ or a chain is broken, 2 if there is no such file.
    """
    from hubbub.trust.comparison import compare, find_common  # noqa: PLC0415  (Help should not wait for numpy.)

    if len(files) < FEWEST_LOGS:
        raise ConfigurationError("one log alone cannot be compared: give at least 2, or use `hubbub audit verify`")
    logs = [_read(file, as_json=as_json) for file in files]
    found, common = compare(logs), find_common(logs)
    differences = [each for each in found if not each.kind.is_note]
    notes = [each for each in found if each.kind.is_note]
    if as_json:
        report = {
            "agree": not differences,
            "logs": [_describe(file, log) for file, log in zip(files, logs, strict=True)],
            "common": {"runs": common.runs, "phases": common.phases},
            "differences": [_write(each) for each in differences],
            "notes": [_write(each) for each in notes],
        }
        print_json(report)
    else:
        _print_comparison(len(logs), common, differences, notes)
    if differences:
        raise typer.Exit(EXIT_DIFFERENT)


def _read(file: Path, *, as_json: bool) -> Log:
    """Read a log; a broken chain is a finding (exit code 1), not a usage error."""
    from hubbub.trust.audit import BrokenChain, read_log  # noqa: PLC0415

    try:
        return read_log(file)
    except BrokenChain as error:
        if not as_json:
            raise ProtocolError(str(error)) from None
        broken = {"intact": False, "file": str(file), "line": error.line, "problem": error.how}
        print_json(broken)
        raise typer.Exit(EXIT_DIFFERENT) from None


def _describe(file: Path, log: Log) -> dict[str, object]:
    from hubbub.trust.comparison import runs_of  # noqa: PLC0415

    return {
        "file": str(file),
        "party": log.party,
        "entries": len(log.entries),
        "first": log.entries[0].time,
        "last": log.entries[-1].time,
        "head": log.head,
        "runs": list(runs_of(log)),
    }


def _write(difference: Difference) -> dict[str, object]:
    return {
        "kind": difference.kind,
        "run": difference.run or None,
        "place": difference.place,
        "what": difference.what,
        "parties": list(difference.parties),
    }


def _print_log(log: Log) -> None:
    from hubbub.trust.comparison import runs_of  # noqa: PLC0415

    ends = (log.entries[0], log.entries[-1])
    first, last = (entry.time.replace("T", " ").replace("+00:00", " UTC") for entry in ends)
    typer.echo(f"party      {log.party}")
    typer.echo(f"entries    {len(log.entries):,}")
    typer.echo(f"first      {first}")
    typer.echo(f"last       {last}")
    typer.echo(f"head       {log.head}")
    typer.echo("runs       " + ("\n           ".join(runs_of(log)) or "none"))
    typer.echo("\nThe chain holds. It is not signed: a tail that was cut off, or a log that its party wrote anew,")
    typer.echo("shows only beside a head noted earlier, an earlier copy, or the logs of others (`audit compare`).")


def _print_comparison(
    logs: int, common: Common, differences: Sequence[Difference], notes: Sequence[Difference]
) -> None:
    console = Console()
    shared = f"{count(common.runs, 'run')}, {count(common.phases, 'phase')}"
    if differences:
        console.print(_draw(differences))
        verdict = Text(f"{count(len(differences), 'difference')} between {logs} logs; in common: {shared}.", "red")
    else:
        verdict = Text(f"{logs} logs agree on {shared}.", "green")
    for note in notes:
        where = f"run {note.run[:RUN_DIGITS]}, {note.place}: " if note.run else ""
        console.print(Text(f"note: {where}{note.what}.", "yellow"))
    console.print(verdict)


def _draw(differences: Sequence[Difference]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 2, 0, 0), leading=1)
    table.add_column("run", no_wrap=True)
    table.add_column("difference")
    shown = None
    for each in differences:
        kind = each.kind.replace("-", " ")
        run = "" if each.run == shown else each.run[:RUN_DIGITS] or "-"
        table.add_row(Text(run), Text.assemble((f"{each.place}: {kind}", "bold red"), f"\n{each.what}"))
        shown = each.run
    return table
