"""`hubbub kit`: one archive per party of a real federation, and its check by whoever receives it."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from hubbub.disk import create_file
from hubbub.errors import ConfigurationError
from hubbub_cli.formatting import AsJson, print_json, print_warning

ARCHIVE_SUFFIX = ".kit.tar"
EXIT_ILL = 1
_MODE = 0o644

kits = typer.Typer(help="Kits: all that a party needs to start, but for its private key.", no_args_is_help=True)


@kits.command("new")
def new_kits(
    roster: Annotated[Path, typer.Argument(help="The roster, built from every party's public file.")],
    amqp_url: Annotated[
        str,
        typer.Option(metavar="URL", help="The broker: amqps://host:port/vhost; several separated by commas."),
    ],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for the archives.")],
    ca_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="CA of the broker's certificate, if it is none of the system's."),
    ] = None,
    as_json: AsJson = False,  # noqa: FBT002  (A flag.)
) -> None:
    """Write one archive per party: roster, settings, policy, broker and CA, and three ways to start.

    No kit holds a secret: parties make their keys first, and their public files make the roster.
    """
    from hubbub.trust.roster import (  # noqa: PLC0415  (Help should not wait for numpy.)
        find_conflicts,
        read_roster,
        show_fingerprint,
    )
    from hubbub_cli.kit_contents import gather_facts, pack  # noqa: PLC0415

    facts = gather_facts(read_roster(roster), amqp_url, ca_file)
    archives = {
        out / f"{party.name}{ARCHIVE_SUFFIX}": pack(party.name, facts.write_kit(party))
        for party in facts.roster.parties
    }
    _write_all(out, archives)
    for conflict in find_conflicts(facts.roster):
        print_warning(conflict)
    if as_json:
        print_json({"sha256": facts.digest, "kits": [str(path) for path in archives]})
        return
    typer.echo(f"{', '.join(path.name for path in archives)} written to {out}")
    typer.echo(f"sha256     {facts.digest}\nread out   {show_fingerprint(facts.digest)}")
    typer.echo(
        "\nSend each party its kit, by mail if you like: it holds no secret. Each runs `hubbub kit check` on it.\n"
        "Then call each other, at numbers that did not come with the kits, and compare this one digest, once."
    )


def _write_all(folder: Path, archives: dict[Path, bytes]) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path in archives:
            if path.exists():
                raise ConfigurationError(
                    f"{path} is there already: parties may have compared its digest; choose another --out"
                )
        for path, content in archives.items():
            create_file(path, content, _MODE)
    except OSError as error:
        raise ConfigurationError(f"{error.filename or folder} cannot be written: {error.strerror}") from None


@kits.command("check")
def check_kit(
    archive: Annotated[Path, typer.Argument(help="The archive as it was received.")],
    identity: Annotated[Path, typer.Option(metavar="FILE", help="Your party's private file, which stays here.")],
    sha256: Annotated[
        str | None, typer.Option(help="The digest that you heard from the others, with or without spaces.")
    ] = None,
    as_json: AsJson = False,  # noqa: FBT002  (A flag.)
) -> None:
    """Check a kit that you received: whole, with your key in its roster, and the same as everybody's.

    Exit code 0 if nothing is wrong, 1 otherwise.
    """
    from hubbub_cli.doctor_target import Findings, print_findings  # noqa: PLC0415  (Help should not wait for numpy.)
    from hubbub_cli.kit_checks import check_archive  # noqa: PLC0415

    found = Findings()
    digest = check_archive(archive, identity, sha256, found)
    if as_json:
        print_json({"ok": found.is_well, "sha256": digest, "checks": [asdict(each) for each in found.all]})
    else:
        print_findings(found, Console())
    if not found.is_well:
        raise typer.Exit(EXIT_ILL)
