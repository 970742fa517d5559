"""The picture of a running federation: what moves in it, what it says, and that it fits a terminal."""

import io
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from hubbub.ids import PartyId
from hubbub.machine.effects import Key
from hubbub.messages.manifest import Manifest
from hubbub.rest import CostView
from hubbub.runtime.runner import Transition
from hubbub_coordinator.accounts import Account
from hubbub_coordinator.events import PauseRequested, ReceiptArrived
from hubbub_coordinator.phases import round as rounds
from hubbub_coordinator.phases import run as runs
from hubbub_coordinator.phases.round import PhaseRecord
from hubbub_local.demo_board import FLIGHT_S, Board, Flight
from hubbub_local.demo_picture import SHARE, SUM, draw, draw_sparkline
from hubbub_trainer.task_runner import TRAINING
from support.builders import make_manifest, make_receipt
from support.coordinator_play import REGRESSED, make_round
from support.parties import sign_receipts

MANIFEST = make_manifest(clients=3, local_steps=10, rounds=9)
SCORED = make_manifest(clients=3, metrics=REGRESSED, rounds=9)
CLIENT, SERVER = MANIFEST.clients[0], MANIFEST.aggregators[0]
BEGAN_S = 100.0


def make_board(manifest: Manifest = MANIFEST, *, number: int = 2) -> Board:
    return Board(
        manifest, [], round=number, phase="signs", state="collecting", clock=lambda: BEGAN_S, round_began_s=BEGAN_S
    )


def picture(board: Board, width: int = 100, height: int = 30, *, after_s: float = 0.0) -> list[str]:
    console = Console(file=io.StringIO(), width=width, height=height, color_system=None)
    lines = console.render_lines(draw(board, width, height, BEGAN_S + after_s), pad=False)
    return ["".join(segment.text for segment in line) for line in lines]


def finished(number: int, **metrics: float) -> Account:
    return Account(
        round=number,
        metrics=metrics,
        members=MANIFEST.clients,
        union_size=100,
        costs={"signs": CostView(payload_bits=80, predicted_bits=80, wire_bytes=90)},
        fedavg_bits=8000,
        fedavg_wire_bytes=3000,
        secure_fedavg_wire_bytes=3000,
        round_s=4.0,
    )


def find(board: Board, *parts: str, after_s: float = 0.0) -> None:
    text = "\n".join(picture(board, after_s=after_s))
    for part in parts:
        assert part in text


# Fit ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("clients", [2, 5, 40, 100])
@pytest.mark.parametrize(("width", "height"), [(120, 40), (80, 24), (200, 60), (80, 12), (50, 18)])
def test_it_fills_a_terminal_and_never_more(clients: int, width: int, height: int) -> None:
    manifest = make_manifest(clients=clients, metrics=REGRESSED, rounds=20)
    board = make_board(manifest, number=13)
    board.accounts = [finished(number, r2=number / 20) for number in range(1, 13)]
    board.flights = [Flight(client, SERVER, BEGAN_S) for client in manifest.clients]

    lines = picture(board, width, height, after_s=0.1)

    assert max(map(len, lines)) <= width
    assert len(lines) <= height
    assert len(lines) == height or height < 18


# Parties ------------------------------------------------------------------------------------------------------


def test_clients_show_their_work_and_who_has_delivered() -> None:
    board = make_board()
    board.progress(PartyId("client-1"), 2, TRAINING, 10, 10)
    board.progress(PartyId("client-2"), 2, TRAINING, 4, 10)
    board.servers, board.held = 2, {CLIENT: frozenset(MANIFEST.aggregators)}

    find(board, "Round 2 of 9", "training 4/10", "delivered to 2 of 2", "waiting for a core", "signs: collecting")


def test_encrypting_is_shown_as_it_goes_on() -> None:
    board = make_board()
    board.progress(CLIENT, 2, "encrypting", 312, 965)

    find(board, "encrypting 312/965")


def test_steps_that_nobody_counts_are_not_shown() -> None:
    board = make_board()
    board.has_own_pace = True
    board.progress(CLIENT, 2, TRAINING, 4, 10)

    find(board, "training")
    assert "/10" not in "".join(picture(board))


def locate(board: Board, character: str, after_s: float) -> int:
    """The column of what is between clients and aggregators, left of these."""
    (line,) = (line for line in picture(board, after_s=after_s) if line.startswith("│ client-1"))
    return line.partition("aggregator-1")[0].find(character)


def test_a_share_moves_to_its_aggregator_and_is_marked_there_when_it_arrives() -> None:
    board = make_board()
    board.held = {CLIENT: frozenset([SERVER])}
    board.flights = [Flight(CLIENT, SERVER, BEGAN_S)]

    places = [locate(board, SHARE, part * FLIGHT_S) for part in (0.1, 0.5, 0.9)]

    assert places == sorted(set(places))
    assert places[0] > 0
    find(board, "aggregator-1 ○○○", after_s=0.9 * FLIGHT_S)
    find(board, "aggregator-1 ●○○", after_s=1.1 * FLIGHT_S)


def test_a_sum_moves_back() -> None:
    board = make_board()
    board.flights = [Flight(CLIENT, SERVER, BEGAN_S, is_sum=True)]

    places = [locate(board, SUM, part * FLIGHT_S) for part in (0.1, 0.5, 0.9)]

    assert places == sorted(set(places), reverse=True)


def test_a_receipt_sends_shares_off_and_a_released_phase_its_sums() -> None:
    board = Board(SCORED, [], clock=lambda: BEGAN_S)
    key = Key("round", SCORED.run_id, 1)
    data = make_round(SCORED, records=(PhaseRecord(opened_at_s=1.0, ended=frozenset(SCORED.aggregators)),))
    receipt = sign_receipts(SCORED, [make_receipt(SCORED)], phase=data.current.name)[0]
    collecting, releasing, applying, void = (rounds.State(name) for name in STATES)

    arrived = ReceiptArrived(at_s=2.0, phase=data.current.name, receipt=receipt)
    board.observe(Transition(1, key, collecting, arrived, collecting, data, 0.0, data))
    up = {(flight.client, flight.aggregator, flight.is_sum) for flight in board.flights}
    board.flights.clear()
    for after in (void, applying):
        board.observe(Transition(2, key, releasing, None, after, data, 0.0, data))
        down = {(flight.client, flight.is_sum) for flight in board.flights}
        assert down == (set() if after is void else {(client, True) for client in SCORED.clients})

    assert up == {(client, receipt.receipt.aggregator, False) for client in receipt.receipt.set_of}


STATES = ("collecting", "releasing", "applying", "voiding")


# Figures ------------------------------------------------------------------------------------------------------


def test_bytes_stand_beside_those_of_fedavg() -> None:
    board = make_board(SCORED, number=3)
    board.accounts, board.sent = [finished(1), finished(2)], {1: 1000, 2: 500}

    find(board, "1.46 KB", "5.86 KB", "4.0 times less")


def test_the_metric_shows_its_last_and_its_best_value_and_is_never_called_another() -> None:
    board = make_board(SCORED, number=4)
    board.accounts = [finished(1, r2=0.25), finished(2, r2=0.75), finished(3, r2=0.5)]

    find(board, "r2", "0.5   best 0.75 in round 2")
    assert not {"accuracy", "%"} & set("".join(picture(board)).split())
    find(make_board(), "nothing is scored")


@given(
    values=st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=50),
    width=st.integers(1, 60),
    lines=st.integers(1, 5),
    columns=st.integers(1, 50),
)
def test_a_sparkline_fits_and_its_highest_bar_is_that_of_the_largest_value(
    values: list[float], width: int, lines: int, columns: int
) -> None:
    drawn = draw_sparkline(values, width, lines, columns=columns)

    assert len(drawn) == lines
    assert {len(line) for line in drawn} <= {len(drawn[0])}
    assert 0 < len(drawn[0]) <= width
    thickness = max(1, min(4, width // columns))
    shown = values[-(width // thickness) :]
    if max(shown) - min(shown) > 1:
        assert drawn[0][thickness * shown.index(max(shown))] == "█"


# Time ---------------------------------------------------------------------------------------------------------


def test_the_time_left_follows_from_the_rounds_that_have_ended() -> None:
    board = make_board(number=3)
    board.accounts, board.sent = [finished(1), finished(2)], {1: 9, 2: 9}

    assert board.estimate_left_s(BEGAN_S + 1) == 7 * 4 - 1
    assert board.estimate_left_s(BEGAN_S + 99) == 7 * 4 - 4, "the round takes longer: nobody knows how long"
    find(board, "about 27 s left", after_s=1.0)
    board.manifest = replace_target(SCORED)
    find(board, "at most 27 s left", after_s=1.0)
    board.accounts.clear()
    assert "left" not in picture(board)[0]


def replace_target(manifest: Manifest) -> Manifest:
    return manifest.model_copy(update={"target": 0.9})


def test_a_pause_is_shown_from_its_request_on() -> None:
    board = make_board()
    board.accounts = [finished(1)]
    key, run = Key("run", MANIFEST.run_id, 0), runs.CoordinatorRun(manifest=MANIFEST)
    running, paused = runs.State.RUNNING, runs.State.PAUSED

    def step(before: runs.State, after: runs.State, *, pausing: bool = False) -> str:
        data = replace(run, pausing=pausing)
        board.observe(Transition(1, key, before, PauseRequested(at_s=0.0), after, data, 0.0, run))
        return picture(board)[0]

    assert "pauses after this round" in step(running, running, pausing=True)
    assert step(running, paused).rstrip().endswith("paused")
    assert "pause" not in step(paused, running)
    assert board.news == ["the run is paused"]
