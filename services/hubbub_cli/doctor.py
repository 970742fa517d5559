"""`hubbub doctor`: checks everything that a party needs, and says how to fix what is wrong."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from hubbub.ids import Role
from hubbub_cli.services import ConfigFile

if TYPE_CHECKING:
    from hubbub_cli.doctor_target import DoctorTarget, Findings

EXIT_ILL = 1

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def doctor(
    role: Annotated[
        Role | None,
        typer.Option(
            metavar="ROLE", help="client, aggregator or coordinator; if not given, by its identity or settings."
        ),
    ] = None,
    identity: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The party's private identity file.")
    ] = None,
    roster: Annotated[Path | None, typer.Option(metavar="FILE", help="The roster that all parties hold.")] = None,
    policy: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A data owner's or an aggregator's policy.")
    ] = None,
    amqp_url: Annotated[
        str | None, typer.Option(metavar="URL", help="The broker: amqps://host:port/vhost.")
    ] = None,
    folder: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Where the party keeps its state.")] = None,
    data: Annotated[
        str | None, typer.Option(help="A client's data: mnist, digits, cifar10, auto or a folder.")
    ] = None,
    config: ConfigFile = None,
    url: Annotated[
        str | None, typer.Option(envvar="HUBBUB_URL", metavar="URL", help="The coordinator: https://host:port.")
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(envvar="HUBBUB_TOKEN_FILE", metavar="FILE", help="Holds the coordinator's token."),
    ] = None,
    ca_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Who vouches for the coordinator's certificate.")
    ] = None,
    as_json: AsJson = False,  # noqa: FBT002  (A flag.)
) -> None:
    """Check versions, keys, roster, policy, task, data, disk, broker, rights, clock and coordinator.

    Options that are not given come from the settings of the party's service, for example HUBBUB_TRAINER_*.

    Exit code 0 if nothing is wrong, 1 otherwise.
    """
    from hubbub_cli import doctor_checks  # noqa: PLC0415  (Help should not wait for it.)
    from hubbub_cli.doctor_target import (  # noqa: PLC0415
        admit,
        print_findings,
        write_findings,
    )
    from hubbub_cli.quiet import without_log_lines  # noqa: PLC0415

    options = {
        "identity": _text(identity),
        "roster": _text(roster),
        "policy": _text(policy),
        "amqp_url": amqp_url,
        "folder": _text(folder),
        "data": data,
    }
    target = admit(role, options, config, os.environ)
    with without_log_lines():
        found = _examine(target, options, config)
        doctor_checks.check_coordinator(target, url, token_file, ca_file, found)
    if as_json:
        typer.echo(json.dumps(write_findings(found), indent=2))
    else:
        print_findings(found, Console())
    if not found.is_well:
        raise typer.Exit(EXIT_ILL)


def _examine(target: DoctorTarget, options: Mapping[str, str | None], config: Path | None) -> Findings:
    """Run all checks but the coordinator's."""
    from hubbub_cli import doctor_checks  # noqa: PLC0415  (As above.)
    from hubbub_cli.doctor_target import Findings, check_settings  # noqa: PLC0415

    found = Findings()
    doctor_checks.check_versions(target, found)
    check_settings(target, options, config, found)
    who = doctor_checks.check_identity(target, found)
    everybody = doctor_checks.check_roster(target, who, found)
    if target.role in {Role.CLIENT, Role.AGGREGATOR}:
        doctor_checks.check_policy(target, everybody, found)
    doctor_checks.check_folder(target, found)
    if target.role is Role.CLIENT:
        doctor_checks.check_tasks(target, found)
        doctor_checks.check_data(target, found)
    doctor_checks.check_broker(target, who, everybody, found)
    if target.role is Role.COORDINATOR:
        doctor_checks.check_tokens(target, found)
    return found


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)
