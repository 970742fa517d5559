"""`hubbub roster`: builds, shows and verifies the list of parties that every party pins."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from hubbub.disk import replacing
from hubbub.errors import ConfigurationError

if TYPE_CHECKING:
    from hubbub.trust.roster import Roster

KeyAgreement = Literal["x25519", "mlkem768-x25519"]
RosterFile = Annotated[Path, typer.Argument(help="A roster that `roster build` wrote.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
FINGERPRINT_COLUMNS = 39
"""Half of a key in groups: it takes two lines of a table."""

rosters = typer.Typer(help="Rosters: who takes part, with which key.", no_args_is_help=True)


@rosters.command("build")
def build(
    files: Annotated[list[Path], typer.Argument(help="The parties' public files.")],
    out: Annotated[Path, typer.Option(help="Write the roster to this file.")],
    kem: Annotated[
        KeyAgreement, typer.Option(help="How run keys are agreed on; ML-KEM also withstands quantum computers.")
    ] = "x25519",
    broker_organisation: Annotated[str | None, typer.Option(help="The organisation that runs the broker.")] = None,
    as_json: AsJson = False,  # noqa: FBT002  (A flag.)
) -> None:
    """Put public identities together into a roster."""
    from hubbub.crypto.sealing import Kem  # noqa: PLC0415  (Help should not wait for numpy.)
    from hubbub.trust.identity import read_public_identity  # noqa: PLC0415
    from hubbub.trust.roster import build_roster  # noqa: PLC0415

    identities = [read_public_identity(file) for file in files]
    roster = build_roster(identities, kem=Kem(kem), broker=broker_organisation)
    _write_new(out, roster.model_dump_json(indent=2) + "\n")
    if as_json:
        typer.echo(json.dumps({"file": str(out), **_write(roster)}, indent=2))
        return
    typer.echo(f"written to {out}")
    _print_digest(roster)
    _print_warnings(roster)
    typer.echo("\nSend it to every party. Each compares the digest over another channel, then pins it.")


def _write(roster: Roster) -> dict[str, object]:
    """Return the roster as JSON, with its digest and its weaknesses."""
    from hubbub.trust.roster import find_conflicts  # noqa: PLC0415

    return {
        "sha256": roster.digest,
        "kem": roster.kem.value,
        "broker": roster.broker,
        "parties": [
            party.model_dump(mode="json", include={"name", "role", "organisation", "public_key"})
            for party in roster.parties
        ],
        "warnings": find_conflicts(roster),
    }


def _write_new(path: Path, text: str) -> None:
    try:
        with path.open("x", encoding="utf-8") as stream:
            stream.write(text)
    except FileExistsError:
        raise ConfigurationError(
            f"{path} is there already: parties may have pinned it; choose another --out"
        ) from None
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be written: {error.strerror}") from None


@rosters.command("show")
def show(
    file: RosterFile,
    as_json: AsJson = False,  # noqa: FBT002  (A flag.)
) -> None:
    """Show who is in a roster, its digest, and what makes it weaker than it looks."""
    from hubbub.trust.roster import read_roster  # noqa: PLC0415  (Help should not wait for numpy.)

    roster = read_roster(file)
    if as_json:
        typer.echo(json.dumps(_write(roster), indent=2))
        return
    Console().print(_draw_parties(roster))
    typer.echo(f"seals      {roster.kem}")
    typer.echo(f"broker     {roster.broker or 'not said'}")
    _print_digest(roster)
    _print_warnings(roster)


@rosters.command("verify")
def verify(
    file: RosterFile,
    sha256: Annotated[
        str | None, typer.Option(help="The digest that it must have, with or without spaces.")
    ] = None,
    as_json: AsJson = False,  # noqa: FBT002  (A flag.)
) -> None:
    """Check every party's proof and, if it is given, the digest."""
    from hubbub.trust.roster import read_roster  # noqa: PLC0415  (Help should not wait for numpy.)

    pinned = None if sha256 is None else "".join(sha256.split()).lower()
    roster = read_roster(file, pinned=pinned)
    if as_json:
        typer.echo(json.dumps({"compared": pinned is not None, **_write(roster)}, indent=2))
        return
    typer.echo(f"all {len(roster.parties)} parties prove that they hold their keys")
    if pinned is None:
        typer.echo("not compared with any digest: give the one that was agreed on with --sha256")
    else:
        typer.echo("this is the roster that was agreed on")
    _print_digest(roster)


@rosters.command("broker-config")
def write_broker_config(
    file: RosterFile,
    out: Annotated[Path, typer.Option(help="Write the definitions to this file.")],
    vhost: Annotated[str, typer.Option(help="The virtual host that the federation uses.")] = "/",
) -> None:
    """Write all that a RabbitMQ must be told: users, their rights, exchanges, queues and bindings."""
    from hubbub.transport.definitions import DEFAULT_USER  # noqa: PLC0415  (Help should not wait for numpy.)
    from hubbub.trust.roster import read_roster  # noqa: PLC0415

    roster = read_roster(file)
    _write_private(out, define_broker(roster, vhost=vhost))
    typer.echo(f"written to {out}: {len(roster.parties)} users, each with the rights of its role")
    typer.echo("\nLoad it into the broker, again after every change of the roster:")
    # By standard input: Debian's rabbitmqctl runs in another folder, as a user who may not read the file.
    typer.echo(f"  rabbitmqctl import_definitions < {shlex.quote(str(out))}")
    typer.echo("Then delete the user that RabbitMQ brings along, who may do everything:")
    typer.echo(f"  rabbitmqctl delete_user {DEFAULT_USER}")
    typer.echo("Loading removes nothing: delete the user of a party that has left the roster in the same way.")


def define_broker(roster: Roster, *, vhost: str = "/") -> str:
    """Return the definitions that a broker must load for a roster, as JSON."""
    from hubbub.transport.definitions import BrokerUser, make_definitions  # noqa: PLC0415

    users = [BrokerUser(party.name, party.role, party.broker_password_hash) for party in roster.parties]
    return json.dumps(make_definitions(users, vhost=vhost), indent=2) + "\n"


def _write_private(path: Path, text: str) -> None:
    """Write a file that only its owner may read, atomically; an existing one is replaced."""
    try:
        with replacing(path) as file:
            file.write(text.encode("utf-8"))
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be written: {error.strerror}") from None


def _draw_parties(roster: Roster) -> Table:
    from hubbub.trust.roster import show_fingerprint  # noqa: PLC0415

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for column in ("name", "role", "organisation"):
        table.add_column(column, overflow="fold", min_width=len(column))
    table.add_column("key", width=FINGERPRINT_COLUMNS)
    for party in roster.parties:
        table.add_row(party.name, party.role, party.organisation, show_fingerprint(party.public_key))
    return table


def _print_digest(roster: Roster) -> None:
    from hubbub.trust.roster import show_fingerprint  # noqa: PLC0415

    typer.echo(f"sha256     {roster.digest}")
    typer.echo(f"read out   {show_fingerprint(roster.digest)}")


def _print_warnings(roster: Roster) -> None:
    from hubbub.trust.roster import find_conflicts  # noqa: PLC0415

    console = Console()
    for conflict in find_conflicts(roster):
        console.print(f"warning: {conflict}", style="yellow", highlight=False, markup=False, soft_wrap=True)
