"""`hubbub dead-letters`: shows the messages that a party rejected, and leaves them in its queue at the broker."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from hubbub.errors import ConfigurationError
from hubbub_cli.formatting import AsJson, print_json, without_log_lines

if TYPE_CHECKING:
    from hubbub.messages.wire_form import Directory
    from hubbub.transport.access import Tls
    from hubbub.transport.base import DeadLetter

T = TypeVar("T")

RUN_DIGITS = 12
UNNAMED = "party-"

AmqpUrl = Annotated[
    str,
    typer.Option(help="The broker, as in the party's settings: amqps://host:port/vhost; commas separate several."),
]
IdentityFile = Annotated[
    Path | None,
    typer.Option(help="The party's private identity file; not needed if the URL has its name and password."),
]
CaFile = Annotated[Path | None, typer.Option(help="Who vouches for the broker's certificate.")]
CertFile = Annotated[Path | None, typer.Option(help="The party's certificate, where the broker asks for one.")]
KeyFile = Annotated[Path | None, typer.Option(help="The key to that certificate.")]
RosterFile = Annotated[Path | None, typer.Option(help="The roster: messages name parties by their number in it.")]

dead_letters = typer.Typer(help="Dead letters: what a party rejected, and why.", no_args_is_help=True)


Entry = dict[str, Any]
"""A dead letter as `show --json` prints it; without header, body and payload if its bytes are no message."""


@dead_letters.command("list")
def list_letters(
    amqp_url: AmqpUrl,
    identity: IdentityFile = None,
    ca_file: CaFile = None,
    cert_file: CertFile = None,
    key_file: KeyFile = None,
    roster: RosterFile = None,
    as_json: AsJson = False,  # noqa: FBT002  (A flag.)
) -> None:
    """List a party's dead letters, the oldest first; all of them stay where they are."""
    from hubbub.transport.access import Tls  # noqa: PLC0415  (Help should not wait for numpy.)
    from hubbub.transport.topology import DEAD_MAX_LENGTH  # noqa: PLC0415

    numbers = count(1)
    tls, directory = Tls(ca_file=ca_file, cert_file=cert_file, key_file=key_file), _make_directory(roster)

    def describe(letter: DeadLetter) -> Entry:
        return _describe(next(numbers), letter, directory)

    found = _read(amqp_url, identity, tls, describe, DEAD_MAX_LENGTH)
    if as_json:
        print_json([_summarise(each) for each in found])
    elif found:
        Console().print(_draw(found))
    else:
        typer.echo("no dead letters")


@dead_letters.command("show")
def show_letter(
    number: Annotated[int, typer.Argument(min=1, help="The letter's number in the list.")],
    amqp_url: AmqpUrl,
    identity: IdentityFile = None,
    ca_file: CaFile = None,
    cert_file: CertFile = None,
    key_file: KeyFile = None,
    roster: RosterFile = None,
    as_json: AsJson = False,  # noqa: FBT002  (A flag.)
) -> None:
    """Show one dead letter, header and body; of its payload only size and digest."""
    from hubbub.transport.access import Tls  # noqa: PLC0415  (Help should not wait for numpy.)

    numbers = count(1)
    tls, directory = Tls(ca_file=ca_file, cert_file=cert_file, key_file=key_file), _make_directory(roster)

    def keep_the_one(letter: DeadLetter) -> Entry | None:
        return _describe(number, letter, directory) if next(numbers) == number else None

    found = _read(amqp_url, identity, tls, keep_the_one, number)
    if len(found) < number or (letter := found[-1]) is None:
        raise ConfigurationError(f"there is no dead letter {number}: there are {len(found)}")
    if as_json:
        print_json(letter)
    else:
        _print(letter)


def _read(amqp_url: str, identity: Path | None, tls: Tls, read: Callable[[DeadLetter], T], limit: int) -> list[T]:
    """Read the dead letters with the party's own login, and return the result of `read` for each."""
    import asyncio  # noqa: PLC0415  (Help should not wait for it.)

    from hubbub.ids import PartyId  # noqa: PLC0415  (Help should not wait for numpy.)
    from hubbub.transport.access import Access, Login  # noqa: PLC0415
    from hubbub.transport.rabbitmq import RabbitMqTransport  # noqa: PLC0415
    from hubbub.transport.topology import QueueSpec, Topology, dead_letter_queue  # noqa: PLC0415
    from hubbub.trust.identity import read_identity  # noqa: PLC0415

    user = Access(amqp_url, tls=tls).entrances[0].url.user
    if identity is not None:
        party = read_identity(identity)
        name, login = party.name, Login(party.name, party.broker_password)
    elif user is not None:
        name, login = PartyId(user), None
    else:
        raise ConfigurationError("whose dead letters? Name the party's --identity, or put its login into the URL")
    # Which other queues a party has depends on its role, which a login alone does not tell.
    dead = QueueSpec(name=dead_letter_queue(name))
    transport = RabbitMqTransport(
        amqp_url,
        Topology(exchanges=(), queues=(dead,), bindings=()),
        connection_name=f"hubbub dead-letters {name}",
        login=login,
        tls=tls,
    )

    async def ask() -> list[T]:
        async with transport:
            return await transport.summarise_dead_letters(dead_letter_queue(name), read, limit)

    with without_log_lines():
        return asyncio.run(ask())


def _make_directory(roster: Path | None) -> Directory:
    """Return names for the parties of a roster, if there is one; all others, and all runs, go by what is sent."""
    from hubbub.ids import PartyId, RunId  # noqa: PLC0415  (Help should not wait for numpy.)
    from hubbub.messages.wire_form import Directory  # noqa: PLC0415
    from hubbub.trust.roster import read_roster  # noqa: PLC0415

    class Lenient(Directory):
        def find_run(self, prefix: bytes) -> RunId:
            return RunId(prefix.hex())

        def number(self, party: PartyId) -> int:
            return super().number(party) if party in known else int(party.removeprefix(UNNAMED))

        def party(self, number: object) -> PartyId | None:
            unnamed = PartyId(f"{UNNAMED}{number}") if type(number) is int and number >= 0 else None
            return super().party(number) or unnamed

    known = [party.name for party in read_roster(roster).parties] if roster else []
    return Lenient(known)


def _describe(number: int, letter: DeadLetter, directory: Directory) -> Entry:
    from hubbub.errors import PeerError  # noqa: PLC0415
    from hubbub.messages.codec import decode  # noqa: PLC0415

    described: Entry = {
        "number": number,
        "queue": letter.queue,
        "reason": letter.reason,
        **_measure(letter.body),
        "malformed": None,
    }
    try:
        envelope = decode(letter.body, directory)
    except PeerError as error:
        return described | {"malformed": str(error)}
    fields = ("kind", "sender", "recipient", "run", "round", "phase")
    return described | {
        "header": {name: getattr(envelope, name) for name in fields},
        "body": envelope.body.model_dump(mode="json"),
        "payload": _measure(envelope.payload),
    }


def _measure(content: bytes) -> Entry:
    return {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def _summarise(letter: Entry) -> Entry:
    """Return what a list has of a letter."""
    header = letter.get("header", {})
    return {
        "number": letter["number"],
        "reason": letter["reason"],
        **{name: header.get(name) for name in ("kind", "sender", "run", "round", "phase")},
        "bytes": letter["bytes"],
        "malformed": letter["malformed"],
    }


def _draw(letters: Sequence[Entry]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 2, 0, 0))
    for column in ("number", "reason", "kind", "sender", "run", "round", "phase", "bytes"):
        table.add_column(
            column, justify="right" if column in {"number", "round", "bytes"} else "left", overflow="fold"
        )
    for letter in map(_summarise, letters):
        kind = "malformed" if letter.pop("malformed") else letter["kind"]
        shown = letter | {"kind": kind, "run": (letter["run"] or "")[:RUN_DIGITS], "bytes": f"{letter['bytes']:,}"}
        table.add_row(*(Text(str(cell if cell is not None else "") or "-") for cell in shown.values()))
    return table


def _print(letter: Entry) -> None:
    lines = {name: letter[name] for name in ("number", "queue", "reason")}
    lines |= {"size": f"{letter['bytes']:,} bytes", "sha256": letter["sha256"]}
    if letter["malformed"] is not None:
        lines["malformed"] = letter["malformed"]
    else:
        lines |= {name.replace("_", " "): value for name, value in letter["header"].items()}
        lines["payload"] = f"{letter['payload']['bytes']:,} bytes, sha256 {letter['payload']['sha256']}"
    for name, value in lines.items():
        typer.echo(f"{name:<11}{value}")
    if letter["malformed"] is None:
        typer.echo(f"\n{json.dumps(letter['body'], indent=2)}")
