"""Terminal display of the demo: a live picture, or plain lines where the output is piped."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from rich.console import Console
from rich.live import Live

from hubbub_local.demo_board import Board
from hubbub_local.demo_picture import draw

FRAMES_PER_SECOND = 10


@contextmanager
def show(board: Board, console: Console) -> Iterator[None]:
    """Update the terminal while the block runs: a live picture, or one line for each piece of news in a pipe."""
    picture = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None

    def update() -> None:
        _print_all(board.announcements, console)
        if picture is None:
            _print_all(board.news, console)
        else:
            board.news.clear()
            width, height = console.size
            # One line less: at the end rich adds one, and whatever scrolls out of the window is left behind.
            picture.update(draw(board, width, height - 1, board.clock()), refresh=True)

    async def tick() -> None:
        while True:
            update()
            await asyncio.sleep(1 / FRAMES_PER_SECOND)

    ticker = asyncio.get_running_loop().create_task(tick())
    with picture or nullcontext():
        try:
            yield
        finally:
            ticker.cancel()
            update()


def _print_all(lines: list[str], console: Console) -> None:
    while lines:
        console.print(lines.pop(0), highlight=False, markup=False, soft_wrap=True)
