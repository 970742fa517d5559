"""The `hubbub` command: one function for each subcommand; `EXIT_CODES` explains the exit codes."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from logging.handlers import BufferingHandler
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from hubbub import __version__
from hubbub.errors import ConfigurationError, HubbubError, ProtocolError
from hubbub.run_options import RunOptions, TaskName
from hubbub_cli.audit import audits
from hubbub_cli.bench import PASS_ON, bench
from hubbub_cli.dead_letters import dead_letters
from hubbub_cli.doctor import doctor
from hubbub_cli.federation import federations
from hubbub_cli.formatting import print_warning
from hubbub_cli.keys import keys
from hubbub_cli.kit import kits
from hubbub_cli.ledger import ledgers
from hubbub_cli.models import models
from hubbub_cli.new import new_project
from hubbub_cli.plan import plan
from hubbub_cli.policy import policies
from hubbub_cli.reproduce import reproduce
from hubbub_cli.roster import rosters
from hubbub_cli.run_options import takes_run_options
from hubbub_cli.runs import runs
from hubbub_cli.services import aggregator, coordinator, trainer
from hubbub_cli.suggestions import Suggesting
from hubbub_local.options import DemoOptions

if TYPE_CHECKING:
    from hubbub.messages.manifest import Manifest
    from hubbub.trust.roster import Roster

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
EXIT_CODES = (
    "Exit codes: 0 all went well; 1 it did not (a run failed or was cancelled, a check found something, nobody"
    " answered); 2 what was asked for cannot be (a wrong flag, value, file or token); 130 interrupted with Ctrl-C."
)

app = typer.Typer(
    cls=Suggesting,
    help="Federated training with sparse secure aggregation.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
manifests = typer.Typer(help="Manifests: what a run is, agreed before it starts.", no_args_is_help=True)


def show_version(wanted: bool) -> None:  # noqa: FBT001  (Typer's signature.)
    """Print the version and exit."""
    if wanted:
        typer.echo(f"hubbub {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[  # noqa: FBT002  (A flag.)
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Federated training with sparse secure aggregation."""
    del version


@app.command(rich_help_panel="Try and measure")
@takes_run_options(without=("alpha_max", "number_bits", "min_clients", "phase_timeout_s"))
def demo(options: DemoOptions) -> None:
    """Run a whole federation in this process and show it as it goes."""
    import asyncio  # noqa: PLC0415  (Help should not wait for it, nor for numpy.)

    from hubbub_local.demo import run_demo  # noqa: PLC0415

    with _log_to(options.log), _telling_of_failures():
        asyncio.run(run_demo(options, Console()))


@contextmanager
def _log_to(path: Path | None) -> Iterator[None]:
    """Send log lines to a file; without one discard them, since the screen shows what matters."""
    from hubbub.runtime.telemetry import log_as_json  # noqa: PLC0415  (Help should not wait for it.)

    try:
        with (path or Path(os.devnull)).open("w", encoding="utf-8") as stream:
            log_as_json("demo", "info", stream)
            yield
    except OSError as error:
        raise ConfigurationError(f"--log: {error.filename} cannot be written: {error.strerror}") from None


@contextmanager
def _telling_of_failures() -> Iterator[None]:
    """Print the log record of a failed task or run, or a task's warning, at the end, when the screen is free."""
    with (
        _noting(logging.WARNING, "hubbub_trainer.learning") as of_tasks,
        _noting(logging.WARNING, "hubbub.runtime.runner", "hubbub.runtime.effects") as of_parties,
    ):
        found = of_tasks
        try:
            yield
        except ProtocolError:
            found = of_tasks or of_parties
            raise
        finally:
            # All clients run the same code here: one record is enough, a failure rather than a warning.
            for record in sorted(found, key=lambda each: -each.levelno)[:1]:
                sys.stderr.write(f"{logging.Formatter().format(record)}\n")


@contextmanager
def _noting(level: int, *names: str) -> Iterator[list[logging.LogRecord]]:
    noted, loggers = BufferingHandler(capacity=1000), [logging.getLogger(name) for name in names]
    noted.setLevel(level)
    for logger in loggers:
        logger.addHandler(noted)
    try:
        yield noted.buffer
    finally:
        for logger in loggers:
            logger.removeHandler(noted)


for service in (coordinator, aggregator, trainer, doctor):
    app.command(rich_help_panel="Services")(service)
app.add_typer(runs, name="run", rich_help_panel="Runs")
app.command(rich_help_panel="Try and measure")(plan)
app.command(rich_help_panel="Try and measure")(reproduce)
app.command("new", rich_help_panel="Try and measure")(new_project)
app.add_typer(federations, name="federation", rich_help_panel="Try and measure")
app.command(context_settings=PASS_ON, rich_help_panel="Try and measure")(bench)
for name, group in {
    "keys": keys,
    "roster": rosters,
    "kit": kits,
    "policy": policies,
    "manifest": manifests,
    "model": models,
    "ledger": ledgers,
    "audit": audits,
    "dead-letters": dead_letters,
}.items():
    app.add_typer(group, name=name, rich_help_panel="Prepare and look into")


@manifests.command("new")
@takes_run_options()
def new_manifest(
    roster: Annotated[Path, typer.Option(help="The roster that all parties have pinned.")],
    clients: Annotated[
        str | None, typer.Option(help="The cohort's names, separated by commas; all of the roster's if not given.")
    ] = None,
    aggregators: Annotated[
        str | None, typer.Option(help="The aggregators' names; all of the roster's if not given.")
    ] = None,
    coordinator: Annotated[
        str | None, typer.Option(help="The coordinator's name; not needed where the roster has one.")
    ] = None,
    task: TaskName = "lenet",
    *,
    options: RunOptions,
    endorsement: Annotated[
        list[Path] | None,
        typer.Option(
            help="Go on from a completed run: the endorsement.json of one of its trainers; give as many as its "
            "min_clients."
        ),
    ] = None,
    request: Annotated[
        Path | None,
        typer.Option("--from", help="Complete this request for a run, which the coordinator's page wrote."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write to this file instead of the terminal.")] = None,
) -> None:
    """Draw up a manifest where the task is installed; `hubbub run submit` begins the run."""
    from hubbub.trust.roster import read_roster  # noqa: PLC0415  (Help should not wait for numpy.)
    from hubbub.trust.succession import read_endorsement  # noqa: PLC0415
    from hubbub_trainer.learning.registry import choose_task  # noqa: PLC0415
    from hubbub_trainer.planning import draw_up_manifest, find_warning  # noqa: PLC0415

    if request is not None:
        if options != RunOptions() or (clients, aggregators, coordinator, endorsement) != (None, None, None, None):
            raise ConfigurationError(
                "with --from, the request says everything but the roster, and --task where its task is: leave the "
                "other options out, or change the request"
            )
        manifest = _complete(request, read_roster(roster), task)
    else:
        manifest = draw_up_manifest(
            choose_task(task),
            options,
            roster=read_roster(roster),
            clients=_split(clients),
            aggregators=_split(aggregators),
            coordinator=coordinator,
            endorsed=[read_endorsement(path) for path in endorsement or ()],
        )
    print_warning(find_warning(manifest))
    text = manifest.model_dump_json(indent=2) + "\n"
    if out is None:
        sys.stdout.write(text)
        return
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"{out} cannot be written: {error.strerror}") from None
    typer.echo(f"run {manifest.run_id}\nwritten to {out}")
    typer.echo("\nEach data owner approves it with `hubbub policy approve`; then `hubbub run submit` begins it.")


def _complete(path: Path, roster: Roster, place: str) -> Manifest:
    """Draw up the manifest that a request asks for; the task is at `place`, unless its name says where it is."""
    from hubbub.run_request import read_request  # noqa: PLC0415  (Help should not wait for numpy.)
    from hubbub_trainer.learning.registry import choose_task, is_place  # noqa: PLC0415
    from hubbub_trainer.planning import draw_up_manifest  # noqa: PLC0415

    request = read_request(path)
    task = choose_task(place if is_place(place) else request.task)
    if task.name != request.task:
        raise ConfigurationError(f"{path} asks for the task {request.task}, and {place} is {task.name}")
    if request.roster_sha256 != roster.digest:
        raise ConfigurationError(f"{path} was written for another roster than the one that --roster names")
    return draw_up_manifest(
        task,
        request.options,
        roster=roster,
        clients=request.clients,
        aggregators=request.aggregators,
        coordinator=request.coordinator,
    )


def _split(names: str | None) -> list[str] | None:
    return None if names is None else [name.strip() for name in names.split(",")]


def main() -> None:
    """Run the command; print an error as one line."""
    try:
        app(prog_name="hubbub")
    except HubbubError as error:
        Console(stderr=True).print(f"hubbub: {error}", style="red", highlight=False, markup=False, soft_wrap=True)
        sys.exit(EXIT_USAGE if isinstance(error, ConfigurationError) else EXIT_FAILED)
    except KeyboardInterrupt:
        sys.stderr.write("\nhubbub: interrupted\n")
        sys.exit(EXIT_INTERRUPTED)
