"""`hubbub reproduce`: the paper's experiments again, and a report beside its numbers."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast, get_args

import typer
from rich.console import Console

from hubbub.errors import ConfigurationError
from hubbub.protocol.modes import WireMode
from hubbub_cli.suggestions import one_of

if TYPE_CHECKING:
    from hubbub_local.reproduce.plan import Method

DATASETS = ("mnist", "cifar10")


def reproduce(
    dataset: Annotated[
        str,
        typer.Argument(
            help="mnist (LeNet) or cifar10 (AlexNet).",
            callback=one_of("experiment", *DATASETS),
            metavar="mnist|cifar10",
        ),
    ],
    strategies: Annotated[
        str | None,
        typer.Option(
            help="Which to run, separated by commas; if not given all, and sec-union in five forms: sec-union,"
            " sec-union-letter (the paper's Alg. 2 to the letter), sec-union-q5-letter, sec-union-blocks,"
            " sec-union-blocks-q2."
        ),
    ] = None,
    target: Annotated[
        float | None, typer.Option(help="Accuracy to reach; the paper's 0.98 or 0.8 if not given.")
    ] = None,
    max_rounds: Annotated[
        int | None, typer.Option(min=1, help="Rounds after which a run stops; the paper's 22 or 114 if not given.")
    ] = None,
    seeds: Annotated[str, typer.Option(help="Seeds, separated by commas, such as 0,1,2.")] = "0",
    out: Annotated[
        Path | None, typer.Option(help="Folder for results and report; reproduce-mnist or -cifar10 if not given.")
    ] = None,
    resume: Annotated[  # noqa: FBT002  (A flag.)
        bool, typer.Option("--resume", help="Go on with what is in the folder.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,  # noqa: FBT002  (A flag.)
    partition: Annotated[
        str, typer.Option(help="How the data are dealt out: iid, or dirichlet:A such as dirichlet:0.5.")
    ] = "iid",
    clients: Annotated[int, typer.Option(help="Clients (the paper's C), at least 2.")] = 5,
    servers: Annotated[int, typer.Option(help="Aggregators (the paper's S), at least 2.")] = 2,
    rho: Annotated[float, typer.Option(help="Share of the parameters that a client sends (the paper's ρ).")] = 0.1,
    local_steps: Annotated[int, typer.Option(min=1, help="Local steps a round (the paper's E).")] = 100,
    wire: Annotated[
        str,
        typer.Option(
            help="Wire mode: paper, which the paper counts, or compact (seeded, masked, dense).",
            callback=one_of("wire mode", *get_args(WireMode)),
        ),
    ] = "paper",
    block: Annotated[
        int, typer.Option(min=2, help="Neighbouring indices in a block, of the methods that have blocks.")
    ] = 16,
    data: Annotated[
        str | None, typer.Option(help="Other data: digits, or a folder; the experiment's own if not given.")
    ] = None,
) -> None:
    """Run the paper's experiments through the services, and report on them beside its numbers."""
    from hubbub_local.reproduce import command, plan  # noqa: PLC0415  (Help should not wait for numpy.)

    usual = plan.papers_settings(dataset)
    settings = replace(
        usual,
        target=usual.target if target is None else target,
        max_rounds=max_rounds or usual.max_rounds,
        data=usual.data if data is None else data,
        partition=partition,
        clients=clients,
        servers=servers,
        rho=rho,
        local_steps=local_steps,
        wire=cast("WireMode", wire),
    )
    wanted = plan.Plan(settings=settings, methods=_read_strategies(strategies, block), seeds=_read_seeds(seeds))
    # JSON has standard output for itself.
    console = Console(stderr=as_json)
    with _without_log():
        records = command.reproduce(
            wanted, out=out or Path(f"reproduce-{dataset}"), resume=resume, console=console
        )
    if as_json:
        sys.stdout.write(json.dumps({"results": [record.summarise() for record in records]}, indent=2) + "\n")


def _read_strategies(names: str | None, block: int) -> list[Method]:
    from hubbub_local.reproduce.plan import list_methods  # noqa: PLC0415  (As above.)

    known = list_methods(block)
    if names is None:
        return list(known.values())
    check = one_of("strategy", *known)
    return [known[check(name)] for name in dict.fromkeys(each.strip() for each in names.split(","))]


def _read_seeds(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    wrong = [part for part in parts if not (part.isascii() and part.isdecimal())]
    if wrong:
        raise ConfigurationError(
            f"--seeds {text!r}: {wrong[0]!r} is no seed; give whole numbers from 0 on, separated by commas,"
            " such as 0,1,2"
        )
    return list(dict.fromkeys(map(int, parts)))


@contextmanager
def _without_log() -> Iterator[None]:
    """The services' log lines go nowhere: what matters is shown, kept, or raised."""
    from hubbub.runtime.telemetry import log_as_json  # noqa: PLC0415  (As above.)

    root = logging.getLogger()
    before = (list(root.handlers), root.level)
    with Path(os.devnull).open("w", encoding="utf-8") as stream:
        log_as_json("reproduce", "error", stream)
        try:
            yield
        finally:
            root.handlers[:], root.level = before
