"""`hubbub keys`: makes and shows a party's identity on its own machine."""

from __future__ import annotations

import json
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hubbub.disk import create_file, make_secret_folder
from hubbub.errors import ConfigurationError
from hubbub.ids import Role

if TYPE_CHECKING:
    from hubbub.trust.roster import PublicIdentity

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]

TOKEN_BYTES = 32

keys = typer.Typer(
    help="Identities: a party's key and its password at the broker; a coordinator's tokens.", no_args_is_help=True
)


@keys.command("new")
def new_key(
    role: Annotated[Role, typer.Option(help="What the party does.")],
    name: Annotated[str, typer.Option(help="The party's name, unique in its federation.")],
    organisation: Annotated[str, typer.Option(help="The organisation that runs the party.")],
    out: Annotated[Path, typer.Option(help="Folder for the two files.")],
    as_json: AsJson = False,  # noqa: FBT002  (A flag.)
) -> None:
    """Make an identity: a private file to keep and a public one to send."""
    from hubbub.trust.identity import new_identity, write_identity  # noqa: PLC0415  (Help should not wait for numpy.)
    from hubbub.trust.roster import show_fingerprint  # noqa: PLC0415

    identity = new_identity(name, role, organisation)
    private, public = write_identity(identity, out)
    if as_json:
        typer.echo(
            json.dumps({"private": str(private), "public": str(public), **_write(identity.public())}, indent=2)
        )
        return
    typer.echo(f"private  {private}")
    typer.echo(f"public   {public}")
    typer.echo(f"key      {show_fingerprint(identity.public().public_key)}")
    typer.echo(f"\nKeep the private file here and show it to nobody: whoever has it is {name}.")
    typer.echo("Send the public file to whoever builds the roster, and read out the key over another channel.")


@keys.command("show")
def show_key(
    file: Annotated[Path, typer.Argument(help="A private or a public file that `keys new` made.")],
    as_json: AsJson = False,  # noqa: FBT002  (A flag.)
) -> None:
    """Show the public side of an identity."""
    from hubbub.trust.identity import PRIVATE_SUFFIX, read_identity, read_public_identity  # noqa: PLC0415
    from hubbub.trust.roster import show_fingerprint  # noqa: PLC0415

    # The file's name decides, so that an error is about the right kind of file.
    is_private = file.name.endswith(PRIVATE_SUFFIX)
    identity = read_identity(file).public() if is_private else read_public_identity(file)
    if as_json:
        typer.echo(json.dumps(_write(identity), indent=2))
        return
    typer.echo(f"name          {identity.name}")
    typer.echo(f"role          {identity.role}")
    typer.echo(f"organisation  {identity.organisation}")
    typer.echo(f"key           {show_fingerprint(identity.public_key)}")


@keys.command("tokens")
def new_tokens(
    out: Annotated[Path, typer.Option(help="Folder for the files.")],
    as_json: AsJson = False,  # noqa: FBT002  (A flag.)
) -> None:
    """Make a coordinator's two tokens, one to read and one to change, each also as a header for `curl`."""
    written = []
    try:
        make_secret_folder(out)
        for right in ("read", "change"):
            token = secrets.token_urlsafe(TOKEN_BYTES)
            for kind, line in (("token", token), ("header", f"Authorization: Bearer {token}")):
                create_file(out / f"{right}.{kind}", f"{line}\n".encode(), 0o600)
                written.append(str(out / f"{right}.{kind}"))
    except FileExistsError as error:
        raise ConfigurationError(
            f"{error.filename} is there already and is never overwritten: choose another folder"
        ) from None
    except OSError as error:
        raise ConfigurationError(f"{error.filename or out} cannot be written: {error.strerror}") from None
    if as_json:
        typer.echo(json.dumps({"files": written}, indent=2))
        return
    typer.echo("\n".join(written))
    typer.echo("\nWho has a read token sees all runs; who has a change token also begins and ends them.")


def _write(identity: PublicIdentity) -> dict[str, str]:
    """Return the public side as JSON."""
    return {
        "name": identity.name,
        "role": identity.role.value,
        "organisation": identity.organisation,
        "public_key": identity.public_key,
    }
