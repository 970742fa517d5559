"""What a spectator is shown: a picture in a terminal, lines in a pipe."""

import io

from rich.console import Console

from hubbub.ids import PartyId
from hubbub_local.board import Board, show_bytes
from hubbub_local.screen import show
from support.aio import aio
from support.builders import make_manifest

MANIFEST = make_manifest(clients=3, local_steps=10)


@aio
async def test_a_pipe_gets_announcements_and_news_once_each_and_no_control_characters() -> None:
    stream = io.StringIO()
    board = Board(MANIFEST, ["using digits"])
    with show(board, Console(file=stream, force_terminal=False)):
        board.note("client-1 joined (1 of 5)")
    text = stream.getvalue()

    assert text.splitlines() == ["using digits", "client-1 joined (1 of 5)"]


@aio
async def test_a_terminal_shows_progress_and_who_has_delivered() -> None:
    stream = io.StringIO()
    board = Board(MANIFEST, [])
    board.round, board.phase, board.state = 2, "signs", "collecting"
    board.progress(PartyId("client-1"), 2, 10, 10)
    board.progress(PartyId("client-2"), 2, 4, 10)
    board.delivered = {PartyId("client-1"): 2}
    with show(board, Console(file=stream, force_terminal=True, width=100, color_system=None)):
        pass
    text = stream.getvalue()

    assert "Round 2" in text
    assert "10/10" in text
    assert "4/10" in text
    assert "delivered to 2 of 2 aggregators" in text
    assert "waiting for a core" in text


def test_progress_of_a_round_that_is_over_is_not_shown() -> None:
    board = Board(MANIFEST, [])
    board.round = 3
    board.progress(PartyId("client-1"), 2, 10, 10)

    assert board.steps == {}


def test_sizes_are_those_of_the_paper() -> None:
    assert [show_bytes(count) for count in (12, 2048, 2**20, 1.5 * 2**30)] == [
        "12 B",
        "2.00 KB",
        "1.00 MB",
        "1.50 GB",
    ]
