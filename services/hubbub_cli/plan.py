"""`hubbub plan`: predicts each strategy's cost and what each party would learn; prints a table or JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table

from hubbub.ids import WireMode
from hubbub_cli.formatting import show_bytes

if TYPE_CHECKING:
    from hubbub.strategies.planner import Leakage, Plan, Question, Row

NOT_TRAINING = "+"
WIDE = 96
"""Terminal width from which cells are padded."""


def write_plan(answer: Plan) -> dict[str, object]:
    """Return the plan as JSON."""
    ask = answer.question
    return {
        "parameters": ask.parameters,
        "clients": ask.clients,
        "servers": ask.servers,
        "rho": ask.rho,
        "mask_rho": ask.rho if ask.mask_rho is None else ask.mask_rho,
        "kept": ask.kept,
        "q": ask.q,
        "block": ask.block,
        "bits": ask.bits,
        "rounds": ask.rounds,
        "wire": ask.wire,
        "union_size_is": "estimated" if answer.estimated else "given",
        "scores_bits": answer.scores_bits,
        "strategies": [_write_row(row, ask) for row in answer.rows],
        "leakage": _write_leakage(answer.leakage),
        "block_leakage": answer.block_leakage and _write_leakage(answer.block_leakage),
        "servers_learn": answer.servers_learn,
        "recommended": answer.recommended.strategy,
        "recommended_because": answer.reason,
        "recommended_block": answer.recommended.block,
        "recommended_without_loss": answer.lossless.strategy,
    }


def _write_leakage(told: Leakage) -> dict[str, object]:
    return {"assumes": "independent choices", **asdict(told)}


def _write_row(row: Row, question: Question) -> dict[str, object]:
    return {
        "strategy": row.strategy,
        "q": row.q,
        "block": row.block,
        "bits": row.bits,
        "trains": row.trains,
        "refused": row.refused,
        "warning": row.warning,
        "union_size": row.union_size,
        "bits_per_round": row.bits_per_round,
        "bits_in_all": row.bits_in_all,
        "bytes_sent_per_round": _predict_sent(question, row),
        "paper_bits_per_round": row.paper_bits_per_round,
        "phases": dict(row.phases),
        "server_learns": {name: getattr(row.exposure, name) for name in ("updates", "indices", "sums")},
        "clients_learn_besides_union": row.exposure.clients_learn,
    }


def print_plan(answer: Plan, console: Console) -> None:
    """Print the plan as a table, in 80 columns or more."""
    ask = answer.question
    given = f"N = {ask.parameters:,}, C = {ask.clients}, S = {ask.servers}, ρ = {ask.rho:g}, k = {ask.kept:,}"
    if ask.mask_rho not in {None, ask.rho}:
        given += f"; ρ = {ask.mask_rho:g} in shared-mask"
    console.print(f"{given}\nPayload of all parties, {_WIRES[ask.wire]} (MB = 2^20 bytes):", highlight=False)
    console.print(_draw_rows(answer, is_wide=console.width >= WIDE))
    for warning in _list_warnings(answer):
        console.print(f"warning: {warning}", highlight=False, style="yellow")
    for line in (*_notes(answer), "", "Expected with independent choices:"):
        console.print(line, highlight=False)
    for line in _leakage(answer):
        console.print(Padding(line, (0, 0, 0, 2)), highlight=False)
    console.print(f"\n{_recommend(answer)}", highlight=False)


_WIRES = {"compact": "on the compact wire", "paper": "on the paper's wire"}


def _draw_rows(answer: Plan, *, is_wide: bool) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, int(is_wide), 0, 0))
    table.add_column("strategy", no_wrap=True)
    rounds = answer.question.rounds
    totals = [f"{rounds:,} rounds"] if rounds > 1 else []
    papers = ["paper's\na round"] if answer.question.wire != "paper" else []
    for column in ("|V|", "a round", *papers, *totals):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("a server\nlearns")
    table.add_column("clients learn\nbesides V")
    for row in answer.rows:
        table.add_row(
            f"{row.label}{'' if row.trains else NOT_TRAINING}",
            f"{row.union_size:,}",
            show_bytes(row.bits_per_round / 8),
            *(show_bytes(row.paper_bits_per_round / 8) for _ in papers),
            *(show_bytes(row.bits_in_all / 8) for _ in totals),
            row.exposure.servers_learn,
            row.exposure.clients_learn,
            style="bold" if row is answer.recommended else None,
        )
    return table


def _list_warnings(answer: Plan) -> list[str]:
    """Return each warning once, with the names of all strategies that it is about."""
    strategies: dict[str, list[str]] = {}
    for row in answer.rows:
        if row.warning:
            refused = ". Such a run is refused" if row.refused else ""
            strategies.setdefault(f"{row.warning.removeprefix(row.strategy)}{refused}.", []).append(row.strategy)
    return [f"{', '.join(names)}{warning}" for warning, names in strategies.items()]


def _notes(answer: Plan) -> list[str]:
    size = "|V| is as given, in every row that has a union."
    if answer.estimated:
        size = (
            "|V| is estimated from independent choices; with similar data, clients choose alike and it is smaller."
        )
    return [
        f"{NOT_TRAINING} adds numbers as they are, for statistics: it does not train.",
        size,
        "shared-mask needs a higher learning rate and more rounds; data owners' policies must name it.",
        f"A round whose model is scored takes {show_bytes(answer.scores_bits / 8)} more, for two metrics.",
    ]


def _leakage(answer: Plan) -> list[str]:
    told, row = answer.leakage, answer.row("sec-union")
    lost = told.expected_lost / told.expected_union
    losing = (
        f"{row.label} loses {told.expected_lost:,.0f} of {told.expected_union:,.0f} indices ({lost:.2%}); "
        f"by the paper's formula {told.paper_expected_lost:,.0f}. "
        "That may cost rounds: in the paper 22 instead of 17, for MNIST with q = 1."
    )
    alone = (
        f"In sec-union, a client whose own mark comes back was alone with {told.alone_probability:.2%}; "
        f"by the paper's formula {told.paper_alone_probability:.2%}."
    )
    lonely = f"In the full union, {told.expected_alone_share:.2%} of the indices are chosen by one client alone."
    return [losing, alone, lonely, *_block_leakage(answer)]


def _block_leakage(answer: Plan) -> list[str]:
    told, block = answer.block_leakage, answer.question.block
    if told is None:
        return []
    losing = (
        f"Over blocks of {block}, it loses {told.expected_lost:,.0f} of {told.expected_union:,.0f} blocks "
        f"({told.expected_lost / told.expected_union:.2%}), which come back next round."
    )
    speaking = (
        "All speak about every index of an active block: where all signs agree, every client knows everybody's. "
        f"Data owners' policies must allow it: max_block = {block}."
    )
    return [losing, speaking]


def _recommend(answer: Plan) -> str:
    from hubbub.strategies.planner import explain_no_gain  # noqa: PLC0415  (Help should not wait for numpy.)

    row, dense = answer.recommended, answer.row("fedavg")
    exact, is_lossy = answer.lossless, row.q is not None or row.bits is not None
    other = f"; without losing indices {exact.label}, {show_bytes(exact.bits_per_round / 8)}" if is_lossy else ""
    sent, dense_sent = (_predict_sent(answer.question, each) for each in (row, dense))
    no_gain = f" {explain_no_gain(row.strategy, answer.question.parameters)}." if sent >= dense_sent else ""
    payload = f"{show_bytes(row.bits_per_round / 8)}, {_against(row.bits_per_round, dense.bits_per_round)}"
    return (
        f"Recommended if servers may learn {_AT_MOST[answer.servers_learn]}: {row.label}, because "
        f"{answer.reason}. A round is {payload}{other}.\n"
        f"With every message counted, about {show_bytes(sent)} a round, {_against(sent, dense_sent)} "
        f"({show_bytes(dense_sent)}).{no_gain}"
    )


def _predict_sent(question: Question, row: Row) -> int:
    from hubbub.frame_costs import count_sent  # noqa: PLC0415  (Help should not wait for pydantic.)

    return count_sent(row.strategy, row.phases, question.run)


_AT_MOST = {"nothing": "nothing", "indices": "indices but nothing else"}


def _against(bits: int, dense: int) -> str:
    if bits > dense:
        return f"{bits / dense:.1f} times as much as uncompressed FedAvg"
    return f"{dense / bits:.1f} times less than uncompressed FedAvg"


Level = Literal["nothing", "indices"]


def plan(
    params: Annotated[int, typer.Option(help="Parameters of the model (the paper's N).")],
    clients: Annotated[int, typer.Option(help="Clients (the paper's C), at least 2.")] = 5,
    servers: Annotated[int, typer.Option(help="Aggregators (the paper's S), at least 2.")] = 2,
    rho: Annotated[
        float | None,
        typer.Option(
            help="Share of the parameters that a client sends (the paper's ρ).",
            show_default="0.1; 0.03 in shared-mask; more for small models",
        ),
    ] = None,
    union_size: Annotated[int | None, typer.Option(help="Size of V, if it is known; else estimated.")] = None,
    q: Annotated[
        int | None,
        typer.Option(
            help="Bits of a mark in sec-union, from 1 to 32.",
            show_default="1, or more if many indices would be lost",
        ),
    ] = None,
    block: Annotated[
        int, typer.Option(help="Show sec-union over blocks of so many neighbouring indices, too.")
    ] = 1,
    bits: Annotated[int, typer.Option(help="Bits of a coordinate's change in shared-mask, from 1 to 4.")] = 2,
    number_bits: Annotated[int, typer.Option(help="Bits in which sum and sparse-sum add numbers, 32 or 64.")] = 32,
    rounds: Annotated[int, typer.Option(help="Rounds to plan for.")] = 1,
    wire: Annotated[
        WireMode, typer.Option(help="Wire mode; what the paper's takes is shown beside it.")
    ] = "compact",
    no_tags: Annotated[  # noqa: FBT002  (A flag.)
        bool, typer.Option("--no-tags", help="Leave out tags, which the paper has not.")
    ] = False,
    servers_learn: Annotated[Level, typer.Option(help="The most that a server may learn.")] = "nothing",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,  # noqa: FBT002  (A flag.)
) -> None:
    """Compare what the strategies would cost and tell, and recommend the cheapest."""
    from hubbub.strategies import planner  # noqa: PLC0415  (Help should not wait for numpy.)
    from hubbub.strategies.registry import find_strategy  # noqa: PLC0415  (As above.)

    question = planner.Question(
        parameters=params,
        clients=clients,
        servers=servers,
        rho=planner.choose_rho(find_strategy("sec-union"), params) if rho is None else rho,
        mask_rho=planner.choose_rho(find_strategy("shared-mask"), params) if rho is None else None,
        union_size=union_size,
        block=block,
        bits=bits,
        number_bits=number_bits,
        rounds=rounds,
        wire=wire,
        verified=not no_tags,
    )
    question = replace(question, q=planner.choose_q(find_strategy("sec-union"), question.run) if q is None else q)
    answer = planner.plan(question, servers_learn=servers_learn)
    if as_json:
        typer.echo(json.dumps(write_plan(answer), indent=2))
        return
    console = Console()
    print_plan(answer, console)
    if chosen := planner.explain_choices(find_strategy("sec-union"), question.run, rho=rho, q=q):
        console.print(f"{chosen}.", highlight=False)
