"""`hubbub coordinator`, `aggregator`, `trainer`: a party's service in this process."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

ConfigFile = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="A TOML file with settings; the environment wins over it."),
]


def coordinator(config: ConfigFile = None) -> None:
    """Run the coordinator in this process; its settings are HUBBUB_COORDINATOR_*."""
    _name_file("HUBBUB_COORDINATOR_", config)
    from hubbub_coordinator.__main__ import run  # noqa: PLC0415  (Help should not wait for it.)

    raise typer.Exit(run())


def aggregator(config: ConfigFile = None) -> None:
    """Run an aggregator in this process; its settings are HUBBUB_AGGREGATOR_*."""
    _name_file("HUBBUB_AGGREGATOR_", config)
    from hubbub_aggregator.__main__ import run  # noqa: PLC0415  (Help should not wait for it.)

    raise typer.Exit(run())


def trainer(
    config: ConfigFile = None,
    task: Annotated[
        list[str] | None,
        typer.Option(help="A task of your own: package.module:Name, or a file such as hospital.py."),
    ] = None,
) -> None:
    """Run a trainer in this process; its settings are HUBBUB_TRAINER_*."""
    _name_file("HUBBUB_TRAINER_", config)
    if task:
        os.environ["HUBBUB_TRAINER_TASK"] = ",".join(task)
    from hubbub_trainer.__main__ import run  # noqa: PLC0415  (Help should not wait for it.)

    raise typer.Exit(run())


def _name_file(prefix: str, config: Path | None) -> None:
    """Say where the settings are in the way in which services are told."""
    if config is not None:
        os.environ[f"{prefix}CONFIG_FILE"] = str(config)
