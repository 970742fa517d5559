"""`hubbub reproduce` as a function: check, run what is missing, and write the report."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from hubbub.errors import HubbubError, ProtocolError
from hubbub_local.reproduce.forecast import list_expected
from hubbub_local.reproduce.plan import Plan, load_task_of, write_command
from hubbub_local.reproduce.plots import require_matplotlib
from hubbub_local.reproduce.progress import Ledger, open_ledger
from hubbub_local.reproduce.records import RunRecord
from hubbub_local.reproduce.running import check_plan, run_all
from hubbub_local.reproduce.showing import Show, name_run
from hubbub_local.reproduce.writing import PAGE, write_report
from hubbub_trainer.learning.task import Task


def reproduce(
    plan: Plan, *, out: Path, resume: bool, console: Console, task: Task | None = None
) -> list[RunRecord]:
    """Do all runs of a plan into a folder and return all that are kept there.

    `task` stands in for the one that the settings name: tests have a small one.
    """
    require_matplotlib()
    wanted = task or load_task_of(plan.settings, console.print)
    check_plan(plan, wanted)
    ledger = open_ledger(out, plan.settings, resume=resume)
    # Before anything else is in the folder: what is cut off from now on can be resumed.
    ledger.save()
    try:
        with Show(console, list_expected(plan, ledger.records), plan.settings.target) as show:
            run_all(plan, wanted, ledger, show)
    except (HubbubError, KeyboardInterrupt):
        console.print("Cut off; the same command with --resume goes on from here.", highlight=False)
        raise
    finally:
        # Also after Ctrl-C or a run that failed: what is there is worth a look.
        _report(ledger, plan, console)
    _check_costs(ledger.records)
    return ledger.records


def _report(ledger: Ledger, plan: Plan, console: Console) -> None:
    if ledger.records:
        write_report(ledger, write_command(plan))
        console.print(f"Report: {ledger.folder / PAGE}", highlight=False, markup=False, soft_wrap=True)


def _check_costs(records: Sequence[RunRecord]) -> None:
    """A run that cost other than the formulas say shows a bug, and nobody should have to find it in a table."""
    wrong = [record for record in records if record.payload_bits != record.predicted_bits]
    if wrong:
        raise ProtocolError(
            "; ".join(
                f"{name_run(each)}: {each.payload_bits} bits were sent where {each.predicted_bits} are due"
                for each in wrong
            )
        )
