"""`hubbub dead-letters`: shows the messages that a party rejected, and leaves them in its queue at the broker."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from hubbub.errors import ConfigurationError
from hubbub_cli.quiet import without_log_lines

if TYPE_CHECKING:
    from hubbub.transport.base import DeadLetter

T = TypeVar("T")

RUN_DIGITS = 12

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
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]

dead_letters = typer.Typer(help="Dead letters: what a party rejected, and why.", no_args_is_help=True)


@dataclass(frozen=True, slots=True)
class Source:
    """Address of the broker, and credentials of the party whose dead letters are read."""

    amqp_url: str
    identity: Path | None
    ca_file: Path | None
    cert_file: Path | None
    key_file: Path | None


@dataclass(frozen=True, slots=True)
class Summary:
    """Summary of a dead letter; `problem` says why its bytes are no message, if they are none."""

    number: int
    queue: str
    reason: str
    size: int
    sha256: str
    problem: str | None
    header: dict[str, object]
    body: object
    payload_size: int
    payload_sha256: str


@dead_letters.command("list")
def list_letters(
    amqp_url: AmqpUrl,
    identity: IdentityFile = None,
    ca_file: CaFile = None,
    cert_file: CertFile = None,
    key_file: KeyFile = None,
    as_json: AsJson = False,  # noqa: FBT002  (A flag.)
) -> None:
    """List a party's dead letters, the oldest first; all of them stay where they are."""
    from hubbub.transport.topology import DEAD_MAX_LENGTH  # noqa: PLC0415  (Help should not wait for numpy.)

    numbers = count(1)
    source = Source(amqp_url, identity, ca_file, cert_file, key_file)
    found = _read(source, lambda letter: _summarise(next(numbers), letter), DEAD_MAX_LENGTH)
    if as_json:
        typer.echo(json.dumps([_write_line(each) for each in found], indent=2))
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
    as_json: AsJson = False,  # noqa: FBT002  (A flag.)
) -> None:
    """Show one dead letter, header and body; of its payload only size and digest."""
    numbers = count(1)
    source = Source(amqp_url, identity, ca_file, cert_file, key_file)

    def keep_the_one(letter: DeadLetter) -> Summary | None:
        return _summarise(number, letter) if next(numbers) == number else None

    found = _read(source, keep_the_one, number)
    if len(found) < number or (letter := found[-1]) is None:
        raise ConfigurationError(f"there is no dead letter {number}: there are {len(found)}")
    if as_json:
        typer.echo(json.dumps(_write_all(letter), indent=2))
    else:
        _print_all(letter)


def _read(source: Source, read: Callable[[DeadLetter], T], limit: int) -> list[T]:
    """Read the dead letters with the party's own login, and return the result of `read` for each."""
    import asyncio  # noqa: PLC0415  (Help should not wait for it.)

    from hubbub.ids import PartyId  # noqa: PLC0415  (Help should not wait for numpy.)
    from hubbub.transport.access import Access, Login, Tls  # noqa: PLC0415
    from hubbub.transport.rabbitmq import RabbitMqTransport  # noqa: PLC0415
    from hubbub.transport.topology import QueueSpec, Topology, dead_letter_queue  # noqa: PLC0415
    from hubbub.trust.identity import read_identity  # noqa: PLC0415

    tls = Tls(ca_file=source.ca_file, cert_file=source.cert_file, key_file=source.key_file)
    user = Access(source.amqp_url, tls=tls).entrances[0].url.user
    if source.identity is not None:
        party = read_identity(source.identity)
        name, login = party.name, Login(party.name, party.broker_password)
    elif user is not None:
        name, login = PartyId(user), None
    else:
        raise ConfigurationError("whose dead letters? Name the party's --identity, or put its login into the URL")
    # Which other queues a party has depends on its role, which a login alone does not tell.
    dead = QueueSpec(name=dead_letter_queue(name))
    transport = RabbitMqTransport(
        source.amqp_url,
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


def _summarise(number: int, letter: DeadLetter) -> Summary:
    from hubbub.errors import MalformedMessage  # noqa: PLC0415
    from hubbub.messages.codec import decode  # noqa: PLC0415

    problem: str | None = None
    header: dict[str, object] = {}
    body: object = None
    payload = b""
    try:
        envelope = decode(letter.body)
    except MalformedMessage as error:
        problem = str(error)
    else:
        fields = ("kind", "sender", "recipient", "run", "round", "phase", "message_id")
        header = {name: getattr(envelope, name) for name in fields}
        body, payload = envelope.body.model_dump(mode="json"), envelope.payload
    return Summary(
        number=number,
        queue=letter.queue,
        reason=letter.reason,
        size=len(letter.body),
        sha256=hashlib.sha256(letter.body).hexdigest(),
        problem=problem,
        header=header,
        body=body,
        payload_size=len(payload),
        payload_sha256=hashlib.sha256(payload).hexdigest(),
    )


def _write_line(letter: Summary) -> dict[str, object]:
    columns = ("kind", "sender", "run", "round", "phase")
    return {
        "number": letter.number,
        "reason": letter.reason,
        **{name: letter.header.get(name) for name in columns},
        "bytes": letter.size,
        "malformed": letter.problem,
    }


def _write_all(letter: Summary) -> dict[str, object]:
    written: dict[str, object] = {
        "number": letter.number,
        "queue": letter.queue,
        "reason": letter.reason,
        "bytes": letter.size,
        "sha256": letter.sha256,
        "malformed": letter.problem,
    }
    if letter.problem is None:
        written |= {
            "header": letter.header,
            "body": letter.body,
            "payload": {"bytes": letter.payload_size, "sha256": letter.payload_sha256},
        }
    return written


def _draw(letters: Sequence[Summary]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 2, 0, 0))
    for column in ("number", "reason", "kind", "sender", "run", "round", "phase", "bytes"):
        table.add_column(
            column, justify="right" if column in {"number", "round", "bytes"} else "left", overflow="fold"
        )
    for letter in letters:
        run = str(letter.header.get("run", ""))[:RUN_DIGITS]
        header = {**letter.header, "run": run}
        shown = [str(header.get(name, "")) or "-" for name in ("kind", "sender", "run", "round", "phase")]
        if letter.problem is not None:
            shown[0] = "malformed"
        table.add_row(*(Text(cell) for cell in (str(letter.number), letter.reason, *shown, f"{letter.size:,}")))
    return table


def _print_all(letter: Summary) -> None:
    lines: dict[str, object] = {
        "number": letter.number,
        "queue": letter.queue,
        "reason": letter.reason,
        "size": f"{letter.size:,} bytes",
        "sha256": letter.sha256,
    }
    if letter.problem is not None:
        lines["malformed"] = letter.problem
    lines |= {name.replace("_", " "): value for name, value in letter.header.items()}
    if letter.problem is None:
        lines["payload"] = f"{letter.payload_size:,} bytes, sha256 {letter.payload_sha256}"
    for name, value in lines.items():
        typer.echo(f"{name:<11}{value}")
    if letter.problem is None:
        typer.echo(f"\n{json.dumps(letter.body, indent=2)}")
