"""`hubbub plan`: what each strategy would cost and who would learn what, before anything runs."""

from __future__ import annotations

import json
from typing import Annotated, Literal

import typer
from rich.console import Console

Level = Literal["nothing", "indices"]
Wire = Literal["compact", "paper"]


def plan(
    params: Annotated[int, typer.Option(help="Parameters of the model (the paper's N).")],
    clients: Annotated[int, typer.Option(help="Clients (the paper's C), at least 2.")] = 5,
    servers: Annotated[int, typer.Option(help="Aggregators (the paper's S), at least 2.")] = 2,
    rho: Annotated[float, typer.Option(help="Share of the parameters that a client sends (the paper's ρ).")] = 0.1,
    union_size: Annotated[int | None, typer.Option(help="Size of V, if it is known; else estimated.")] = None,
    q: Annotated[int, typer.Option(help="Bits of a mark in sec-union, from 1 to 32.")] = 1,
    block: Annotated[
        int, typer.Option(help="Show sec-union over blocks of so many neighbouring indices, too.")
    ] = 1,
    rounds: Annotated[int, typer.Option(help="Rounds to plan for.")] = 1,
    wire: Annotated[Wire, typer.Option(help="Wire mode; what the paper's takes is shown beside it.")] = "compact",
    no_tags: Annotated[  # noqa: FBT002  (A flag.)
        bool, typer.Option("--no-tags", help="Leave out tags, which the paper has not.")
    ] = False,
    servers_learn: Annotated[Level, typer.Option(help="The most that a server may learn.")] = "nothing",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,  # noqa: FBT002  (A flag.)
) -> None:
    """Compare what the strategies would cost and tell, and recommend the cheapest."""
    from hubbub.strategies import planner  # noqa: PLC0415  (Help should not wait for numpy.)
    from hubbub_cli.plan_report import print_plan, write_plan  # noqa: PLC0415

    question = planner.Question(
        parameters=params,
        clients=clients,
        servers=servers,
        rho=rho,
        union_size=union_size,
        q=q,
        block=block,
        rounds=rounds,
        wire=wire,
        verified=not no_tags,
    )
    answer = planner.plan(question, servers_learn=servers_learn)
    if as_json:
        typer.echo(json.dumps(write_plan(answer), indent=2))
    else:
        print_plan(answer, Console())
