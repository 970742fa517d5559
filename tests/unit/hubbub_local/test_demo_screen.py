"""The demo's screen: a picture in a terminal, lines in a pipe, and the times of a round."""

import io
from dataclasses import replace
from typing import cast

import pytest
from rich.console import Console

from hubbub.ids import PartyId
from hubbub.machine.effects import Key
from hubbub.rest import CostView
from hubbub.runtime.runner import Transition
from hubbub_cli.formatting import show_bytes
from hubbub_coordinator.accounts import Account
from hubbub_coordinator.events import ReceiptArrived
from hubbub_coordinator.phases import round as rounds
from hubbub_coordinator.phases.round import HeldSet, PhaseRecord
from hubbub_local.demo_board import Board, Durations, Stopwatch
from hubbub_local.demo_screen import show
from hubbub_local.report import draw_report, write_report
from hubbub_trainer.events import Evaluated, Trained
from hubbub_trainer.phases.round import State
from hubbub_trainer.task_runner import TRAINING
from support.builders import SET_ID, make_manifest, make_receipt
from support.coordinator_play import REGRESSED, make_round
from support.parties import sign_receipts

MANIFEST = make_manifest(clients=3, local_steps=10)


async def test_a_pipe_gets_announcements_and_news_once_each_and_no_control_characters() -> None:
    stream = io.StringIO()
    board = Board(MANIFEST, ["using digits"])
    with show(board, Console(file=stream, force_terminal=False)):
        board.note("client-1 joined (1 of 5)")
    text = stream.getvalue()

    assert text.splitlines() == ["using digits", "client-1 joined (1 of 5)"]


async def test_a_terminal_shows_the_picture_and_leaves_nothing_of_it() -> None:
    console, stream = make_terminal()
    board = Board(MANIFEST, [], title="a run", footer="Ctrl-C stops it")
    with show(board, console):
        pass
    text = stream.getvalue()

    assert "a run" in text
    assert "Ctrl-C stops it" in text
    first = text.partition("\r\x1b[2K")[0]
    assert first.count("\n") + 1 == console.height - 1, "rich adds one at the end, and a first line would be left"
    assert text.endswith("\x1b[1A\x1b[2K")


def make_terminal() -> tuple[Console, io.StringIO]:
    stream = io.StringIO()
    return Console(file=stream, force_terminal=True, width=100, color_system=None), stream


def finished(number: int, **metrics: float) -> Account:
    return Account(
        round=number,
        metrics=metrics,
        members=MANIFEST.clients,
        union_size=100,
        costs={"signs": CostView(payload_bits=80, predicted_bits=80, wire_bytes=90)},
        fedavg_bits=800,
        fedavg_wire_bytes=1000,
        secure_fedavg_wire_bytes=1200,
        round_s=3.0,
    )


REGRESSION = make_manifest(clients=3, metrics=REGRESSED)
SERVERS = REGRESSION.aggregators
TIMES = {number: Durations(training_s=1.0, evaluation_s=0.5, protocol_s=1.5) for number in (1, 2)}


async def test_a_regression_is_shown_with_its_own_metric_and_never_as_a_percentage() -> None:
    console, stream = make_terminal()
    board = Board(REGRESSION, [], accounts=[finished(1, r2=0.123456, mse=4.0), finished(2)])

    with show(board, console):
        pass
    console.print(draw_report(REGRESSION, board.accounts, TIMES, "0" * 64, {}, {"share-chunk": 90}))
    text = stream.getvalue()

    assert "r2" in text
    assert "0.1235" in text
    assert "accuracy" not in text
    assert "%" not in text


def test_a_report_names_the_metric_that_counts_and_has_an_accuracy_only_where_there_is_one() -> None:
    accounts = [finished(1, r2=0.5, mse=4.0), finished(2)]

    report = write_report(REGRESSION, accounts, TIMES, "0" * 64, {}, {"share-chunk": 7, "close-phase": 5}, data="")
    plain = write_report(MANIFEST, [finished(1, accuracy=0.5, loss=2.0)], TIMES, "0" * 64, {}, {}, data="")

    first, second = cast("list[dict[str, object]]", report["rounds"])
    (classified,) = cast("list[dict[str, object]]", plain["rounds"])
    assert report["headline"] == {"name": "r2", "higher_is_better": True}
    assert (first["metrics"], second["metrics"]) == ({"r2": 0.5, "mse": 4.0}, {})
    assert "accuracy" not in {*first, *second}
    assert plain["headline"] is None
    assert (report["all_wire_bytes"], report["wire_by_kind"]) == (12, {"share-chunk": 7, "close-phase": 5})
    assert (classified["metrics"], classified["accuracy"]) == ({"accuracy": 0.5, "loss": 2.0}, 0.5)


@pytest.mark.parametrize(
    ("strategy", "sent", "says", "small"),
    [
        ("no-union", 500, "2.0 times less", False),
        ("no-union", 1000, "1.0 times less", True),
        ("no-union", 2500, "2.5 times more", True),
        ("secure-fedavg", 1200, "1.2 times more", True),
        ("fedavg", 2500, "2.5 times more", False),
    ],
)
def test_a_run_is_compared_with_fedavg_by_every_byte_on_the_wire(
    strategy: str, sent: int, says: str, *, small: bool
) -> None:
    """All messages of a round of uncompressed FedAvg take 1,000 bytes here, and 1,200 by a secure sum."""
    manifest, stream = make_manifest(strategy=strategy), io.StringIO()
    wire = {"share-chunk": sent - 1, "close-phase": 1}

    Console(file=stream, width=100).print(draw_report(manifest, [finished(1)], TIMES, "0" * 64, {}, wire))

    shown = " ".join(stream.getvalue().split())
    assert says in shown
    assert ("too small to gain from compression" in shown) is small
    by_a_secure_sum = "would take 1000 B in the clear and 1.17 KB by a secure sum (secure-fedavg)"
    assert (by_a_secure_sum in shown) is (small and strategy != "secure-fedavg")


def test_a_receipt_of_the_next_phase_is_not_told_as_one_of_this() -> None:
    """Clients go on to their scores before the last of them says that it has applied the round."""
    board = Board(REGRESSION, [])
    early = sign_receipts(REGRESSION, [make_receipt(REGRESSION)], phase="scores")[0]
    held = dict.fromkeys(SERVERS, HeldSet(SET_ID, early))
    record = PhaseRecord(opened_at_s=1.0, held={REGRESSION.clients[0]: held})
    data = make_round(REGRESSION, is_scored=True, records=(record,))
    key = Key("round", REGRESSION.run_id, 1)

    for phase in ("scores", "signs"):
        event = ReceiptArrived(at_s=2.0, phase=phase, receipt=early)
        applying = rounds.State.APPLYING
        board.observe(Transition(1, key, applying, event, applying, data, 0.0, data))

    assert board.news[1:] == ["round 1: client-1 delivered signs to all 2 aggregators (1 of 3)"]


def test_progress_of_a_round_that_is_over_is_not_shown() -> None:
    board = Board(MANIFEST, [])
    board.round = 3
    board.progress(PartyId("client-1"), 2, TRAINING, 10, 10)

    assert board.work == {}


def test_sizes_are_those_of_the_paper() -> None:
    sizes = {12: "12 B", 2048: "2.00 KB", 2**20: "1.00 MB", 1.5 * 2**30: "1.50 GB"}

    assert {count: show_bytes(count) for count in sizes} == sizes


# Times of a round ------------------------------------------------------------------------------------------


def step(event: object, number: int = 1) -> Transition:
    key = Key("round", MANIFEST.run_id, number)
    return Transition(1, key, State.TRAINING, event, State.SHARING, None, 0.0, None)


def test_the_slowest_client_counts_and_the_rest_is_the_protocols() -> None:
    stopwatch = Stopwatch()
    for training_s, evaluation_s in ((2.0, 1.5), (3.0, 0.5)):
        stopwatch.observe(step(Trained(training_s=training_s)))
        stopwatch.observe(step(Evaluated(evaluation_s=evaluation_s)))
    stopwatch.observe(step(Trained(training_s=9.0), number=2))

    account = replace(finished(1), round_s=10.0)
    expected = Durations(training_s=3.0, evaluation_s=1.5, protocol_s=5.5)
    assert stopwatch.split(MANIFEST.run_id, account) == expected


@pytest.mark.parametrize("round_s", [0.0, 2.0])
def test_the_protocol_never_takes_less_than_no_time(round_s: float) -> None:
    stopwatch = Stopwatch()
    stopwatch.observe(step(Trained(training_s=3.0)))

    assert stopwatch.split(MANIFEST.run_id, replace(finished(1), round_s=round_s)).protocol_s == 0
