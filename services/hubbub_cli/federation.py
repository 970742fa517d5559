"""`hubbub federation`: makes a federation for a trial on one machine, and runs it as processes."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from hubbub.run_options import RunOptions, TaskName
from hubbub_cli.formatting import AsJson, print_warning
from hubbub_cli.roster import KeyAgreement
from hubbub_cli.run_options import takes_run_options

EXIT_NOT_UP = 1
MOST_CLIENTS, MOST_AGGREGATORS = 100, 10
TRIAL = (
    "This is a trial: whoever has this folder holds all keys, so no claim of privacy holds here. In earnest each"
    " party makes its own keys on its own machine."
)

federations = typer.Typer(
    help="A federation for a trial on one machine, with all keys in one hand.", no_args_is_help=True
)


Folder = Annotated[
    Path, typer.Argument(metavar="DIR", help="The folder that `hubbub federation new` wrote.", show_default=False)
]


@federations.command("new")
@takes_run_options(
    without=("wire", "alpha_rule", "feedback", "alpha_max", "number_bits", "evaluate_every", "target", "patience")
)
def new_federation(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="DIR", help="Its folder; in it a folder for each party, which may be there, empty."
        ),
    ],
    clients: Annotated[int, typer.Option(min=2, max=MOST_CLIENTS, help="Trainers.")] = 5,
    aggregators: Annotated[int, typer.Option(min=2, max=MOST_AGGREGATORS, help="Aggregators.")] = 2,
    task: TaskName = "lenet",
    *,
    options: RunOptions,
    kem: Annotated[KeyAgreement, typer.Option(help="How run keys are agreed on.")] = "x25519",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Make keys, roster, broker definitions, policies and a manifest for a trial on one machine.

    Where all is there already, nothing is changed.
    """
    from hubbub.crypto.sealing import Kem  # noqa: PLC0415  (Help should not wait for numpy.)
    from hubbub_cli import federation_folder as kept  # noqa: PLC0415
    from hubbub_trainer.learning.registry import choose_task, is_place  # noqa: PLC0415
    from hubbub_trainer.planning import draw_up_manifest, find_warning  # noqa: PLC0415

    chosen = choose_task(task)
    parties = kept.name_parties(clients=clients, aggregators=aggregators)
    there = kept.read_federation(folder, parties)
    if there:
        roster, manifest = there
    else:
        identities, roster = kept.make_parties(parties, Kem(kem))
        manifest = draw_up_manifest(chosen, options, roster=roster)
        kept.write_federation(folder, identities, roster, manifest)
    print_warning(find_warning(manifest))
    if as_json:
        told = {
            "folder": str(folder),
            "made": not there,
            "run": manifest.run_id,
            "roster_sha256": roster.digest,
            "parties": {party.name: party.role.value for party in roster.parties},
        }
        typer.echo(json.dumps(told, indent=2))
        return
    typer.echo(f"{folder} {'is complete already: nothing was changed' if there else 'written'}")
    typer.echo(f"parties  {', '.join(party.name for party in roster.parties)}")
    typer.echo(f"roster   {roster.digest}")
    typer.echo(f"run      {manifest.run_id}: {manifest.task}, {manifest.strategy}, {manifest.rounds} rounds")
    differing = [
        f"{name} is {getattr(manifest, name)}, not {value}"
        for name, value in {**options.given(), "task": chosen.name}.items()
        if getattr(manifest, name) != value
    ]
    if differing:
        typer.echo(f"The run stays as it was drawn up ({'; '.join(differing)}): another takes a new folder.")
    typer.echo(f"\n{TRIAL}")
    own = ["--task", task] if is_place(task) else []
    typer.echo(f"\nNext: {shlex.join(['hubbub', 'federation', 'up', str(folder), *own])}")
    if own:
        typer.echo("With --data 'FOLDER/*.csv' each trainer is given a file of its own.")


@federations.command("up")
def start_federation(
    folder: Folder,
    task: Annotated[
        str | None, typer.Option(help="The task, if it is your own: a file such as hospital.py, or module:Name.")
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            help="The trainers' data: digits, mnist, cifar10 or a path. A pattern in quotes, such as"
            " 'patients/*.csv', gives each trainer one file."
        ),
    ] = None,
    broker: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="A RabbitMQ that has DIR/public/definitions.json. If not given: a private one where RabbitMQ is"
            " installed, or a container.",
        ),
    ] = None,
    port: Annotated[
        int | None, typer.Option(envvar="HUBBUB_COORDINATOR_PORT", help="The coordinator's port, usually 8750.")
    ] = None,
    detach: Annotated[  # noqa: FBT002  (A flag.)
        bool, typer.Option("--detach", help="Return when the run has begun; `federation down` ends the processes.")
    ] = False,
) -> None:
    """Start a broker and all parties as processes, begin the first run and show it; Ctrl-C ends all.

    What is not given is as it was last time. The state of all parties is kept in DIR.
    """
    from hubbub_cli.federation_up import begin_trial, ending_like_ctrl_c, print_addresses, print_next, stay  # noqa: PLC0415
    from hubbub_cli.trial import Choices, open_trial  # noqa: PLC0415

    trial, console = open_trial(folder), Console(highlight=False, soft_wrap=True)
    with ending_like_ctrl_c():
        run = begin_trial(trial, Choices(broker=broker, task=task, data=data, port=port), console)
        if not detach:
            raise typer.Exit(stay(trial, run, console))
    console.print(f"run          {run.short}, {run.state}: {run.task}, {run.strategy}, {run.rounds_wanted} rounds")
    print_addresses(trial, console)
    print_next(trial, console)


@federations.command("status")
def show_federation(
    folder: Folder,
    as_json: AsJson = False,  # noqa: FBT002  (A flag.)
) -> None:
    """Show the processes of a federation and its newest run; exit code 1 if a party does not run."""
    from hubbub_cli.federation_up import print_status  # noqa: PLC0415  (Help should not wait for it.)
    from hubbub_cli.trial import open_trial  # noqa: PLC0415

    if not print_status(open_trial(folder), as_json=as_json):
        raise typer.Exit(EXIT_NOT_UP)


@federations.command("down")
def stop_federation(folder: Folder) -> None:
    """End all processes of a federation; keys, logs and the state of the parties stay."""
    from hubbub_cli.federation_up import end  # noqa: PLC0415  (Help should not wait for it.)
    from hubbub_cli.trial import open_trial  # noqa: PLC0415

    end(open_trial(folder), Console(highlight=False, soft_wrap=True))
