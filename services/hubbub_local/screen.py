"""The show in a terminal: a live picture where there is one, plain lines where the output is piped."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from hubbub.ids import PartyId
from hubbub_local.board import Board, show_bytes, show_metric

FRAMES_PER_SECOND = 10


@contextmanager
def show(board: Board, console: Console) -> Iterator[None]:
    """Keep the terminal up to date while the block runs."""
    draw = _Picture(board, console) if console.is_terminal else _Lines(board, console)
    ticker = asyncio.get_running_loop().create_task(_tick(draw))
    try:
        with draw:
            yield
            ticker.cancel()
            draw.update()
    finally:
        ticker.cancel()


async def _tick(draw: _Picture | _Lines) -> None:
    while True:
        draw.update()
        await asyncio.sleep(1 / FRAMES_PER_SECOND)


class _Lines:
    """One line for each piece of news."""

    def __init__(self, board: Board, console: Console) -> None:
        self._board = board
        self._console = console

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        self.update()

    def update(self) -> None:
        """Print what is new."""
        _print_all(self._board.announcements, self._console)
        _print_all(self._board.news, self._console)


class _Picture:
    """The parties and what they are doing now, drawn over and over."""

    def __init__(self, board: Board, console: Console) -> None:
        self._board = board
        self._live = Live(console=console, auto_refresh=False, transient=True)

    def __enter__(self) -> None:
        self._live.__enter__()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._live.__exit__(None, None, None)

    def update(self) -> None:
        """Draw the board as it is, under what was announced."""
        _print_all(self._board.announcements, self._live.console)
        self._board.news.clear()
        self._live.update(_draw(self._board), refresh=True)


def _print_all(lines: list[str], console: Console) -> None:
    while lines:
        console.print(lines.pop(0), highlight=False, markup=False, soft_wrap=True)


def _draw(board: Board) -> RenderableType:
    return Group(_headline(board), Text(), _parties(board), Text(), _history(board))


def _headline(board: Board) -> Text:
    parties = len(board.manifest.clients) + len(board.manifest.aggregators)
    if board.round == 0:
        return Text(f"Enrolling: {board.joined} of {parties} parties have joined", style="bold")
    line = Text(f"Round {board.round} of {board.manifest.rounds}", style="bold")
    line.append(f"   phase {board.phase}: {board.state}", style="cyan")
    line.append(
        f"   {show_bytes(board.payload_bits / 8)} of payload, {show_bytes(board.wire_bytes)} on the wire so far",
        style="dim",
    )
    return line


def _parties(board: Board) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(width=max(len(name) for name in board.manifest.clients))
    table.add_column(width=28)
    table.add_column(width=9, justify="right")
    table.add_column()
    steps = board.manifest.local_steps
    for client in board.manifest.clients:
        done = board.steps.get(client, 0)
        bar = ProgressBar(total=steps, completed=done, width=28, complete_style="green", finished_style="green")
        table.add_row(client, bar, f"{done}/{steps}", _status(board, client))
    return table


def _status(board: Board, client: PartyId) -> Text:
    servers = len(board.manifest.aggregators)
    delivered = board.delivered.get(client, 0)
    if client in board.applied:
        return Text("applied the sum", style="green")
    if delivered == servers:
        return Text(f"delivered to {delivered} of {servers} aggregators", style="cyan")
    if delivered:
        return Text(f"delivered to {delivered} of {servers} aggregators", style="yellow")
    if board.round == 0:
        return Text("loading its task", style="dim")
    if board.steps.get(client, 0) == board.manifest.local_steps:
        return Text("sharing", style="yellow")
    return Text("training" if client in board.steps else "waiting for a core", style="dim")


def _history(board: Board) -> RenderableType:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    headline = board.manifest.headline
    names = [headline.name] if headline else []
    for column in ("round", *names, "payload"):
        table.add_column(column, justify="right")
    for finished in board.accounts[-8:]:
        payload = sum(cost.payload_bits for cost in finished.costs.values()) / 8
        scores = [show_metric(name, finished.metrics) for name in names]
        table.add_row(str(finished.round), *scores, show_bytes(payload))
    return table if board.accounts else Text()
