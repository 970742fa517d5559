"""`hubbub run`: starts, shows, steers and exports runs through the coordinator's REST API."""

from __future__ import annotations

import secrets
import sys
from collections.abc import AsyncIterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO, Literal

import typer

from hubbub.disk import replacing
from hubbub.errors import ConfigurationError
from hubbub_cli.formatting import AsJson, print_json, print_warning

if TYPE_CHECKING:
    from hubbub_cli.client import Client, Json

DEFAULT_URL = "http://127.0.0.1:8750"

Format = Literal["json", "csv"]
Sheet = Literal["rounds", "costs"]


class State(StrEnum):
    """States of a run."""

    ENROLLING = "enrolling"
    AGREEING = "agreeing"
    RUNNING = "running"
    PAUSED = "paused"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


runs = typer.Typer(help="Runs: begin, watch and steer them at a coordinator.", no_args_is_help=True)


def complete_run(context: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Return the runs for shell completion."""
    from hubbub_cli.run_lookup import LATEST, name_runs  # noqa: PLC0415  (Help should not wait for httpx.)

    given = context.params
    found = name_runs(given.get("url") or DEFAULT_URL, given.get("token_file"), given.get("ca_file"))
    return [(run, what) for run, what in [(LATEST, "the newest"), *found] if run.startswith(incomplete)]


RunName = Annotated[
    str,
    typer.Argument(
        metavar="RUN",
        help="The run's id, its first digits (4 or more), or latest.",
        autocompletion=complete_run,
    ),
]
Url = Annotated[str, typer.Option(envvar="HUBBUB_URL", help="The coordinator: https://host:port.")]
TokenFile = Annotated[
    Path | None,
    typer.Option(
        envvar="HUBBUB_TOKEN_FILE",
        metavar="FILE",
        help="Holds the coordinator's token; only its owner may read it.",
    ),
]
CaFile = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Who vouches for the coordinator's certificate, if not the system."),
]


@runs.command("submit")
def submit_run(
    manifest: Annotated[Path, typer.Argument(metavar="MANIFEST", help="The manifest; - is standard input.")],
    watch: Annotated[bool, typer.Option("--watch", help="Stay and show the run.")] = False,  # noqa: FBT002
    idempotency_key: Annotated[
        str | None,
        typer.Option(help="Submitting the same manifest again with the same key gives the same run."),
    ] = None,
    url: Url = DEFAULT_URL,
    token_file: TokenFile = None,
    ca_file: CaFile = None,
    as_json: AsJson = False,  # noqa: FBT002  (A flag.)
) -> None:
    """Begin a run from a manifest; takes the change token."""
    from hubbub.rest import RunView  # noqa: PLC0415  (Help should not wait for httpx.)
    from hubbub_cli.client import read  # noqa: PLC0415
    from hubbub_cli.run_lookup import RUNS, ask, find_endpoint  # noqa: PLC0415
    from hubbub_cli.watch import watch_run  # noqa: PLC0415

    endpoint = find_endpoint(url, token_file, ca_file)
    try:
        content = sys.stdin.buffer.read() if str(manifest) == "-" else manifest.read_bytes()
    except OSError as error:
        raise ConfigurationError(f"{manifest} cannot be read: {error.strerror}") from None
    # With a key, ours or the user's, a submission whose answer was lost can be retried.
    key = idempotency_key or f"cli-{secrets.token_hex(16)}"
    answer, replayed = ask(endpoint, lambda client: client.post(RUNS, content, idempotency_key=key))
    run = read(RunView, answer)
    print_warning(run.warning)
    if as_json and not watch:
        print_json(answer)
    elif not as_json:
        asked = f"{run.clients + run.aggregators} parties are asked to join"
        typer.echo(f"run {run.run}\n{'submitted before with this key' if replayed else asked}")
    if watch:
        raise typer.Exit(watch_run(endpoint, run.run, as_json=as_json))
    if not as_json:
        typer.echo(f"\nFollow it with: hubbub run watch {run.short}")


@runs.command("list")
def list_runs(
    state: Annotated[list[State] | None, typer.Option(help="Only runs in this state; may be repeated.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="The most to show, the newest first.")] = 20,
    url: Url = DEFAULT_URL,
    token_file: TokenFile = None,
    ca_file: CaFile = None,
    as_json: AsJson = False,  # noqa: FBT002  (A flag.)
) -> None:
    """List runs, the newest first."""
    from hubbub_cli import run_lookup  # noqa: PLC0415  (Help should not wait for httpx.)
    from hubbub_cli.run_report import print_runs  # noqa: PLC0415

    endpoint = run_lookup.find_endpoint(url, token_file, ca_file)
    found, total = run_lookup.ask(endpoint, lambda client: run_lookup.list_runs(client, state or (), limit))
    if as_json:
        print_json({"items": found, "total": total})
    else:
        print_runs(found, total)


@runs.command("show")
def show_run(
    run: RunName,
    url: Url = DEFAULT_URL,
    token_file: TokenFile = None,
    ca_file: CaFile = None,
    as_json: AsJson = False,  # noqa: FBT002  (A flag.)
) -> None:
    """Show a run: its parties, its last rounds, what it has cost."""
    from hubbub_cli.run_lookup import RUNS, ask, find_endpoint, find_run  # noqa: PLC0415  (Help should not wait for httpx.)
    from hubbub_cli.run_report import SHOWN_ROUNDS, print_run  # noqa: PLC0415

    async def look(client: Client) -> tuple[Json, list[Json]]:
        path = f"{RUNS}/{await find_run(client, run)}"
        detail = await client.get(path)
        if as_json:
            return detail, []
        after = max(0, int(detail["round"]) - SHOWN_ROUNDS)
        return detail, (await client.get(f"{path}/rounds", {"after": after}))["items"]

    detail, rounds = ask(find_endpoint(url, token_file, ca_file), look)
    if as_json:
        print_json(detail)
    else:
        print_run(detail, rounds)


@runs.command("watch")
def watch_run(
    run: RunName,
    url: Url = DEFAULT_URL,
    token_file: TokenFile = None,
    ca_file: CaFile = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object a line for each event.")] = False,  # noqa: FBT002
) -> None:
    """Show a run as it goes, until it ends; a line for each event where the output is no terminal.

    Exit code 0 if it completed, 1 if it failed or was cancelled. Ctrl-C leaves the run as it is.
    """
    from hubbub_cli import watch  # noqa: PLC0415  (Help should not wait for httpx.)
    from hubbub_cli.run_lookup import ask, find_endpoint, find_run  # noqa: PLC0415

    endpoint = find_endpoint(url, token_file, ca_file)
    wanted = ask(endpoint, lambda client: find_run(client, run))
    raise typer.Exit(watch.watch_run(endpoint, wanted, as_json=as_json))


def _add_steering(action: str, summary: str) -> None:
    """Add the command that asks the coordinator for an action on a run."""

    @runs.command(action, help=f"{summary} Takes the change token.")
    def steer(
        run: RunName,
        url: Url = DEFAULT_URL,
        token_file: TokenFile = None,
        ca_file: CaFile = None,
        as_json: AsJson = False,  # noqa: FBT002  (A flag.)
    ) -> None:
        _steer(action, run, url, token_file, ca_file, as_json=as_json)


_add_steering("pause", "Open no further round; the one that is open comes to its end.")
_add_steering("resume", "Go on with a run that was paused.")
_add_steering("cancel", "End a run for good.")


def _steer(
    action: str, run: str, url: str, token_file: Path | None, ca_file: Path | None, *, as_json: bool
) -> None:
    from hubbub.rest import RunView  # noqa: PLC0415  (Help should not wait for httpx.)
    from hubbub_cli.client import read  # noqa: PLC0415
    from hubbub_cli.run_lookup import RUNS, ask, find_endpoint, find_run  # noqa: PLC0415
    from hubbub_cli.run_report import describe_pause  # noqa: PLC0415

    async def act(client: Client) -> Json:
        answer, _ = await client.post(f"{RUNS}/{await find_run(client, run)}/{action}")
        return answer

    answer = ask(find_endpoint(url, token_file, ca_file), act)
    told = read(RunView, answer)
    if as_json:
        print_json(answer)
    else:
        outcome = f"pauses {describe_pause(told)}" if action == "pause" and told.pausing else f"is {told.state}"
        typer.echo(f"run {told.run} {outcome}")


@runs.command("forget")
def forget_run(
    run: Annotated[str, typer.Argument(metavar="RUN", help="The run's id, or its first digits (4 or more).")],
    folder: Annotated[
        Path, typer.Option(help="The folder of state of an aggregator or a trainer, which must not be running.")
    ],
) -> None:
    """Give a run up in one party's folder, when no coordinator will ever end it. Nobody is told.

    Secrets, events and what was received are removed. The run is never joined again, and a trainer's ledger stays.
    """
    from hubbub.runtime.state_folder import forget_run as forget  # noqa: PLC0415  (Help should not wait for it.)
    from hubbub_trainer.workspace import clean_up  # noqa: PLC0415  (It imports numpy.)

    forgotten = forget(folder, run)
    clean_up(folder / "runs" / forgotten)
    typer.echo(f"run {forgotten} is forgotten in {folder}; it is never joined again")


@runs.command("export")
def export_run(
    run: RunName,
    form: Annotated[Format, typer.Option("--format", help="One JSON document, or a table as CSV.")] = "json",
    table: Annotated[Sheet | None, typer.Option(help="Of CSV: rounds (if not given) or costs.")] = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Write to this file, not the terminal.")] = None,
    url: Url = DEFAULT_URL,
    token_file: TokenFile = None,
    ca_file: CaFile = None,
) -> None:
    """Write all that is known of a run, for other programs."""
    from hubbub_cli.run_lookup import ask, find_endpoint  # noqa: PLC0415  (Help should not wait for httpx.)

    if table is not None and form == "json":
        raise ConfigurationError("--table chooses among CSV tables, and JSON holds all of them: add --format csv")
    wanted = {"format": form} if form == "json" else {"format": form, "table": table or "rounds"}
    endpoint = find_endpoint(url, token_file, ca_file)
    size = ask(endpoint, lambda client: _export(client, run, wanted, out))
    if out is not None:
        typer.echo(f"{size:,} bytes written to {out}")


async def _export(client: Client, run: str, wanted: Mapping[str, object], out: Path | None) -> int:
    """Write an export to a file or to standard output, and return its size in bytes."""
    from hubbub_cli.run_lookup import RUNS, find_run  # noqa: PLC0415  (Help should not wait for httpx.)

    path = f"{RUNS}/{await find_run(client, run)}/export"
    async with client.download(path, wanted) as pieces:
        if out is not None:
            try:
                with replacing(out, mode=0o666) as stream:
                    return await _copy(pieces, stream)
            except OSError as error:
                raise ConfigurationError(f"{out} cannot be written: {error.strerror}") from None
        size = await _copy(pieces, sys.stdout.buffer)
        sys.stdout.buffer.flush()
        return size


async def _copy(pieces: AsyncIterator[bytes], stream: BinaryIO) -> int:
    size = 0
    async for piece in pieces:
        size += stream.write(piece)
    return size
