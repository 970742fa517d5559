"""`hubbub federation`: makes a federation for a trial, with all keys on one machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from hubbub.run_options import RunOptions, TaskName
from hubbub_cli.formatting import print_warning
from hubbub_cli.roster import KeyAgreement
from hubbub_cli.run_options import takes_run_options

MOST_CLIENTS, MOST_AGGREGATORS = 100, 10
TRIAL = (
    "This is a trial: whoever has this folder holds all keys, so no claim of privacy holds here. In earnest each"
    " party makes its own keys on its own machine."
)

federations = typer.Typer(help="A federation for a trial, with all keys in one hand.", no_args_is_help=True)


@federations.callback()
def _group() -> None:
    """Keep `new` a subcommand: Typer would merge an only command into the group."""


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
    from hubbub_trainer.learning.registry import choose_task  # noqa: PLC0415
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
