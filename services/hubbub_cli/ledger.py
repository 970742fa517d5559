"""`hubbub ledger`: shows the models that a trainer began runs from, and allows more runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from hubbub.errors import ConfigurationError
from hubbub_cli.formatting import AsJson, print_json
from hubbub_cli.models import Folder

if TYPE_CHECKING:
    from hubbub_trainer.ledger import Ledger

ledgers = typer.Typer(help="The ledger: which models a trainer began runs from.", no_args_is_help=True)

COST = (
    "What it costs: two runs from one model, in cohorts with and without you, subtract to your update and to your"
    " scores. On unevenly dealt data, two runs with a client and two without gave 85 % of its indices and 96 % of"
    " its signs."
)


@ledgers.command("show")
def show_ledger(
    folder: Folder,
    as_json: AsJson = False,  # noqa: FBT002  (A flag.)
) -> None:
    """List the models that runs began from, with their runs, cohorts and void rounds."""
    with _open(folder) as ledger:
        entries = ledger.list_entries()
    if as_json:
        models = [
            {
                "model": entry.model,
                "runs": [{"run": run.run, "cohort": run.cohort, "counted": run.counted} for run in entry.runs],
                "void_rounds": entry.voids,
                "allowed": entry.allowed or None,
            }
            for entry in entries
        ]
        print_json({"models": models})
        return
    table = Table("model", "runs", "cohorts", "void rounds", "allowed", box=None)
    for entry in entries:
        table.add_row(
            entry.model[:12],
            "\n".join(run.run[:12] if run.counted else f"{run.run[:12]} (nothing sent)" for run in entry.runs),
            "\n".join(", ".join(run.cohort) for run in entry.runs),
            str(entry.voids),
            str(entry.allowed) if entry.allowed else "as the policy says",
        )
    Console().print(table if entries else "No run has begun here.")


@ledgers.command("allow")
def allow_runs(
    model: Annotated[str, typer.Argument(help="The model's digest, or its beginning.")],
    folder: Folder,
    runs: Annotated[
        int | None,
        typer.Option(min=1, help="Runs that may begin from it in all; one more than did, if not given."),
    ] = None,
) -> None:
    """Let more runs begin from one model, whatever the policy says, and say what that costs."""
    with _open(folder) as ledger:
        entry = ledger.allow(model, runs)
    began = f"{len(entry.runs)} began, {entry.allowed} may"
    typer.echo(f"model {entry.model[:12]}: {began}\n{COST}")


@contextmanager
def _open(folder: Path) -> Iterator[Ledger]:
    from hubbub_trainer.ledger import LEDGER_FILE, Ledger  # noqa: PLC0415  (Help should not wait for numpy.)

    path = folder / LEDGER_FILE
    if not path.exists():
        raise ConfigurationError(
            f"there is no ledger in {folder}: name the folder of a trainer that was started before"
        )
    with closing(Ledger(path)) as ledger:
        yield ledger
