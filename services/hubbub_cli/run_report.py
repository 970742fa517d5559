"""Prints runs as tables, in 80 columns or more."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from hubbub.rest import ParticipantView, RoundView, RunView, RunWithParties
from hubbub_cli.client import Json, read
from hubbub_cli.formatting import count, show_bytes, show_date, show_duration, show_metric

SHOWN_ROUNDS = 10
SHOWN_METRICS = 2
"""Metrics of a round that have room."""
WIDE = 96
"""Terminal width from which a list of runs has room for all columns."""

STYLES: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(("completed", "released", "applied"), "green"),
        **dict.fromkeys(("failed", "missing", "contradicted"), "red"),
        **dict.fromkeys(("paused", "cancelled", "void", "left-out", "voiding"), "yellow"),
        **dict.fromkeys(("running", "delivered", "sending", "adding", "training"), "cyan"),
    }
)
"""Text style by the state of a run, a round or a party."""


def style_of(state: str) -> str:
    """Return the text style of a state."""
    return STYLES.get(state, "")


def print_runs(answers: Sequence[Json], total: int) -> None:
    """Print runs, one in a line."""
    console = Console()
    if not answers:
        console.print("no runs", highlight=False)
        return
    views = [read(RunView, answer) for answer in answers]
    is_wide, is_named = console.width >= WIDE, any(run.name for run in views)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, int(is_wide), 0, 0))
    for column in ("run", "state"):
        table.add_column(column, no_wrap=True)
    for column in ("name", "strategy", "task") if is_named else ("strategy", "task"):
        table.add_column(column, overflow="fold")
    numbers = ("rounds", "score", "payload") if is_wide else ("rounds", "score")
    for column in numbers:
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("began", no_wrap=True)
    for run in views:
        table.add_row(
            run.short,
            Text(run.state, style_of(run.state)).append(", stalled" if run.stalled else "", "yellow"),
            *([Text(run.name)] if is_named else []),
            Text(run.strategy),
            Text(run.task),
            f"{run.rounds_released}/{run.rounds_wanted}",
            *(_show_headline(run), show_bytes(run.payload_bits / 8))[: len(numbers) - 1],
            show_date(run.began_at_s)[5:16],
        )
    console.print(table)
    if total > len(answers):
        console.print(f"{len(answers):,} of {total:,}; --limit shows more", highlight=False, style="dim")


def _show_headline(run: RunView) -> str:
    """Describe how good a run's model is; a percentage is read as an accuracy, so other metrics are named."""
    if run.headline is None or run.headline.name not in run.metrics:
        return "-"
    name = run.headline.name
    value = show_metric(name, run.metrics[name])
    return value if value.endswith("%") else f"{name} {value}"


def print_run(answer: Json, round_answers: Sequence[Json]) -> None:
    """One run: what it is, who takes part, its last rounds."""
    run = read(RunWithParties, answer)
    rounds = [read(RoundView, each) for each in round_answers]
    console = Console()
    grid = Table.grid(padding=(0, 2))
    for label, value in _describe(run):
        grid.add_row(label, value)
    console.print(grid)
    console.print(_draw_parties(run.participants))
    if rounds:
        console.print(_draw_rounds(rounds))


def _describe(run: RunWithParties) -> Iterable[tuple[str, Text]]:
    state = Text(run.state, style_of(run.state))
    if run.pausing:
        state.append(f", pauses {describe_pause(run)}", "yellow")
    if run.reason:
        state.append(f": {run.reason}", "default")
    yield "run", Text(run.run)
    if run.name:
        yield "name", Text(run.name)
    if run.note:
        yield "note", Text(run.note)
    yield "state", state
    blocks = f" in blocks of {run.block}" if run.block > 1 else ""
    parts = (f"{run.strategy}{blocks}", f"{run.wire} wire", f"task {run.task}", f"{run.parameters:,} parameters")
    yield "strategy", Text(", ".join(parts))
    if run.warning:
        yield "warning", Text(run.warning, "yellow")
    if run.stalled:
        yield "stalled", Text(run.stalled, "yellow")
    void = f", {run.rounds_void} void" if run.rounds_void else ""
    yield "rounds", Text(f"{run.rounds_released} of {run.rounds_wanted} released{void}")
    yield "scores", Text(describe_metrics(run))
    yield "sent", Text(f"{show_bytes(run.payload_bits / 8)} of payload, {show_bytes(run.wire_bytes)} on the wire")
    yield "began", Text(show_date(run.began_at_s))
    if run.ended_at_s is not None:
        yield "ended", Text(f"{show_date(run.ended_at_s)}, after {show_duration(run.ended_at_s - run.began_at_s)}")
    elif run.remaining_s is not None:
        yield "remaining", Text(f"about {show_duration(run.remaining_s)}")
    if run.waiting_for:
        yield "waiting", Text(describe_waiting(run, time.time()), "yellow")


def describe_pause(run: RunView) -> str:
    """Say when a run pauses that is to."""
    return "when its open round has ended" if run.round else "before its first round"


def describe_metrics(run: RunView) -> str:
    """Describe the last scores of all clients, and the target that ends the run."""
    if run.headline is None:
        return "none: this run sums no scores"
    name = run.headline.name
    told = [f"{each} {show_metric(each, value)}" for each, value in run.metrics.items()]
    target = [] if run.target is None else [f"target {name} {show_metric(name, run.target)}"]
    return ", ".join([*(told or ["none yet"]), *target])


def describe_waiting(run: RunView, now_s: float) -> str:
    """Describe who keeps a run waiting, and for how long."""
    first, rest = run.waiting_for[:4], len(run.waiting_for[4:])
    names = ", ".join(first) + (f" and {rest} more" if rest else "")
    since = "" if run.waiting_since_s is None else f", for {show_duration(now_s - run.waiting_since_s)} now"
    return f"for {names} {run.waiting_to}{since}"


def _draw_parties(parties: Sequence[ParticipantView]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for column in ("party", "role", "organisation", "state", "status"):
        table.add_column(column, overflow="fold")
    for party in parties:
        table.add_row(
            *(Text(cell) for cell in (party.name, party.role, party.organisation)),
            Text(party.state, style_of(party.state)),
            Text(party.status),
        )
    return table


def _draw_rounds(rounds: Sequence[RoundView]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("round", justify="right")
    table.add_column("state")
    names = list(dict.fromkeys(name for each in rounds for name in each.metrics))[:SHOWN_METRICS]
    for column in ("members", "|V|", *names, "payload", "time"):
        table.add_column(column, justify="right", no_wrap=True)
    for each in rounds[-SHOWN_ROUNDS:]:
        table.add_row(
            str(each.round),
            Text(each.state, style_of(each.state)),
            count(len(each.members), "client") if each.members else "-",
            "-" if each.union_size is None else f"{each.union_size:,}",
            *(show_metric(name, each.metrics.get(name)) for name in names),
            show_bytes(sum(cost.payload_bits for cost in each.cost.values()) / 8),
            "-" if each.ended_at_s is None else show_duration(each.ended_at_s - each.began_at_s),
        )
    return table
