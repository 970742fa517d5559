"""`hubbub coordinator`, `aggregator`, `trainer`: run a party's service in this process."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

ConfigFile = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="A TOML file with settings; the environment wins over it."),
]


NewState = Annotated[
    bool,
    typer.Option("--new-state", help="Start with an empty folder: the first start, or after all state was lost."),
]


def coordinator(config: ConfigFile = None, new_state: NewState = False) -> None:  # noqa: FBT002  (A flag.)
    """Run the coordinator in this process; its settings are HUBBUB_COORDINATOR_*."""
    _pass_on("HUBBUB_COORDINATOR_", config, new_state=new_state)
    from hubbub_coordinator.__main__ import run  # noqa: PLC0415  (Help should not wait for it.)

    raise typer.Exit(run())


def aggregator(config: ConfigFile = None, new_state: NewState = False) -> None:  # noqa: FBT002  (A flag.)
    """Run an aggregator in this process; its settings are HUBBUB_AGGREGATOR_*."""
    _pass_on("HUBBUB_AGGREGATOR_", config, new_state=new_state)
    from hubbub_aggregator.__main__ import run  # noqa: PLC0415  (Help should not wait for it.)

    raise typer.Exit(run())


def trainer(
    config: ConfigFile = None,
    task: Annotated[
        list[str] | None,
        typer.Option(help="A task of your own: package.module:Name, or a file such as hospital.py."),
    ] = None,
    new_state: NewState = False,  # noqa: FBT002  (A flag.)
) -> None:
    """Run a trainer in this process; its settings are HUBBUB_TRAINER_*."""
    _pass_on("HUBBUB_TRAINER_", config, new_state=new_state)
    if task:
        os.environ["HUBBUB_TRAINER_TASK"] = ",".join(task)
    from hubbub_trainer.__main__ import run  # noqa: PLC0415  (Help should not wait for it.)

    raise typer.Exit(run())


def _pass_on(prefix: str, config: Path | None, *, new_state: bool) -> None:
    """Pass options on to the service's settings, through the environment."""
    if config is not None:
        os.environ[f"{prefix}CONFIG_FILE"] = str(config)
    if new_state:
        os.environ[f"{prefix}NEW_STATE"] = "true"
