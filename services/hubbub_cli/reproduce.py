"""`hubbub reproduce`: repeats the paper's experiments, and compares the results with its numbers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from hubbub.errors import ConfigurationError
from hubbub_cli.formatting import without_log_lines
from hubbub_cli.run_options import takes_run_options
from hubbub_cli.suggestions import one_of
from hubbub_local.options import DemoOptions

FROM_DEMO = ("clients", "servers", "rho", "local_steps", "learning_rate", "server_momentum", "wire")
"""Options that every run of a reproduction shares, named and explained as in the demo."""


@takes_run_options(only=FROM_DEMO, wire="paper")
def reproduce(
    dataset: Annotated[
        str,
        typer.Argument(
            help="mnist (LeNet) or cifar10 (AlexNet).",
            callback=one_of("experiment", "mnist", "cifar10"),
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
    *,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with what is in the folder, where it was stopped or killed.")
    ] = False,
    partition: Annotated[
        str,
        typer.Option(
            help="How the data are dealt out: iid, dirichlet:A such as dirichlet:0.5, or classes:K: K classes to a"
            " client."
        ),
    ] = "iid",
    options: DemoOptions,
    data: Annotated[
        str | None, typer.Option(help="Other data: digits, or a folder; the experiment's own if not given.")
    ] = None,
) -> None:
    """Run the paper's experiments through the services, and report on them beside its numbers."""
    from hubbub_local.reproduce import plan, runner  # noqa: PLC0415  (Help should not wait for numpy.)

    usual = plan.PAPERS[dataset]
    settings = replace(
        usual,
        target=usual.target if target is None else target,
        max_rounds=max_rounds or usual.max_rounds,
        data=data or usual.data,
        partition=partition,
        **{name: getattr(options, name) for name in FROM_DEMO},
    )
    check = one_of("strategy", *plan.METHODS)
    names = list(plan.METHODS) if strategies is None else [check(name.strip()) for name in strategies.split(",")]
    methods = [plan.METHODS[name] for name in dict.fromkeys(names)]
    wanted = plan.Plan(settings=settings, methods=methods, seeds=_read_seeds(seeds))
    # What matters is printed, saved or raised.
    with without_log_lines():
        runner.reproduce(wanted, out=out or Path(f"reproduce-{dataset}"), resume=resume, console=Console())


def _read_seeds(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    wrong = [part for part in parts if not (part.isascii() and part.isdecimal())]
    if wrong:
        raise ConfigurationError(
            f"--seeds {text!r}: {wrong[0]!r} is no seed; give whole numbers from 0 on, separated by commas,"
            " such as 0,1,2"
        )
    return list(dict.fromkeys(map(int, parts)))
