"""Options of a run that several commands share."""

from __future__ import annotations

from typing import Annotated, get_args

import typer

from hubbub.ids import WireMode
from hubbub_cli.suggestions import check_strategy, complete_strategy, one_of

Strategy = Annotated[
    str,
    typer.Option(help="How updates are aggregated.", callback=check_strategy, autocompletion=complete_strategy),
]
Wire = Annotated[
    str,
    typer.Option(
        help="Wire mode: compact (seeded, masked, dense) or paper, the encoding that the paper counts.",
        callback=one_of("wire mode", *get_args(WireMode)),
    ),
]
TaskName = Annotated[
    str,
    typer.Option("--task", help="lenet, alexnet, synthetic, synthetic:N, or your own: a file, or module:Name."),
]
Data = Annotated[
    str,
    typer.Option(help="mnist, digits, cifar10, a folder, or auto: CIFAR-10 for alexnet; MNIST, else digits."),
]
Rounds = Annotated[int, typer.Option(min=1, help="Rounds to run.")]
LocalSteps = Annotated[int, typer.Option(min=1, help="Local steps a round (the paper's E).")]
Q = Annotated[int, typer.Option("--q", help="Bits of a mark in sec-union, 1 to 32.")]
Block = Annotated[
    int,
    typer.Option(
        help="Neighbouring indices that sec-union chooses together; more than 1 is cheaper and shows clients more."
    ),
]
Alpha = Annotated[
    str,
    typer.Option(
        help="Scaling factor: norm (the paper's) or mean (of the chosen entries).",
        callback=one_of("scaling factor", "norm", "mean"),
    ),
]
Feedback = Annotated[
    str,
    typer.Option(
        help="Indices that sec-union lost: lost (they come back) or paper (Alg. 2 to the letter).",
        callback=one_of("feedback", "lost", "paper"),
    ),
]
Rho = Annotated[float, typer.Option(help="Share of the parameters that a client sends (the paper's ρ).")]
Seed = Annotated[
    int | None,
    typer.Option(
        min=0,
        show_default="drawn anew",
        help="Public seed: initial model and partition of the data. Data owners let one run begin from a model.",
    ),
]
