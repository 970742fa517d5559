"""`hubbub doctor`: checks everything that a party needs, and says how to fix what is wrong."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from hubbub.ids import Role
from hubbub_cli.formatting import AsJson, print_json
from hubbub_cli.services import ConfigFile

EXIT_ILL = 1


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
    from hubbub_cli.doctor_target import Findings, admit, print_findings  # noqa: PLC0415
    from hubbub_cli.formatting import without_log_lines  # noqa: PLC0415

    given = {"identity": identity, "roster": roster, "policy": policy, "folder": folder}
    options = {name: str(path) for name, path in given.items() if path is not None}
    options |= {name: text for name, text in (("amqp_url", amqp_url), ("data", data)) if text is not None}
    target, found = admit(role, options, config, os.environ), Findings()
    with without_log_lines():
        doctor_checks.check_party(target, options, config, found)
        doctor_checks.check_coordinator(target, url, token_file, ca_file, found)
    if as_json:
        print_json({"ok": found.is_well, "checks": [asdict(each) for each in found.all]})
    else:
        print_findings(found, Console())
    if not found.is_well:
        raise typer.Exit(EXIT_ILL)
