import io
import json
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import benchmarks.__main__ as command
import numpy as np
import pytest
from benchmarks import steps
from benchmarks import timing as timing_module
from benchmarks.interface import Audience
from benchmarks.learning import Contest, TrainingPlan, make_contests, prepare
from benchmarks.rounds import Series
from benchmarks.sheets import show_seconds
from benchmarks.timing import Step
from rich.console import Console

from hubbub.messages.manifest import CHUNK_BYTES
from hubbub.protocol.layout import Vector, plan_chunks
from hubbub.strategies.base import Phase
from hubbub_trainer.dealing import recombine_chunks

TINY = replace(
    command.QUICK,
    parameters=(640, 1_003),
    chunk_sizes=(256, CHUNK_BYTES),
    repeats=2,
    series=Series(runs=1, rounds_per_run=2),
)

AUDIENCE = Audience(
    streams=3, requests_per_s=50, parameters=640, pairs=1, rounds_per_run=2, runs_listed=80, pages=2
)

TRAINING = TrainingPlan(repeats=1, lenet_steps=2, alexnet_steps=1)


def run(*arguments: str, plan: command.Plan = TINY) -> str:
    screen = io.StringIO()

    command.main(arguments, plan=plan, console=Console(file=screen, width=120))

    return screen.getvalue()


def test_the_command_shows_steps_chunk_sizes_and_rounds_and_writes_them_as_json(tmp_path: Path) -> None:
    shown = run("--json", str(tmp_path / "bench.json"), plan=replace(TINY, training=TRAINING, audience=AUDIENCE))

    written = json.loads((tmp_path / "bench.json").read_text("utf-8"))
    assert list(written["signs"]) == ["640", "1003"]
    assert {"sample", "share", "pack", "unpack", "add", "recombine", "TopBinary", "T", "T⁻¹"} <= {
        each["name"] for each in written["signs"]["640"]
    }
    assert all(each["stream_ratio"] > 0 and each["addition_ratio"] > 0 for each in written["factors"])
    assert list(written["chunk_sizes"]["1003"]) == ["256", str(CHUNK_BYTES)]
    assert [each["transport"] for each in written["rounds"]] == ["memory", "memory"]
    assert all(each["wire_bytes"] > each["payload_bytes"] for each in written["rounds"])
    assert "RabbitMQ was left out." in shown
    assert [(each["parameters"], each["strategy"]) for each in written["trust"]] == [
        *((640, "no-union"), (640, "sec-union")),
        *((1_003, "no-union"), (1_003, "sec-union")),
    ]
    assert all(each["trust_s"] > 0 and 0 < each["trust_bytes"] < each["rest_bytes"] for each in written["trust"])
    assert [(each["network"], each["steps"]) for each in written["training"]] == [("lenet", 2), ("alexnet", 1)]
    assert all(each["ratio"] > 0 for each in written["training"])
    (seen,) = written["load"]["seen"]
    assert (seen["streams"], seen["missed"], seen["repeated"], seen["failed"]) == (3, 0, 0, 0)
    assert seen["events"] > 20
    assert seen["requests"] > 0
    assert written["load"]["alone_s"] > 0 < written["load"]["watched_s"]
    assert [(each["runs"], each["seconds"] > 0) for each in written["pages"]] == [(80, True)] * 5
    titles = (
        "Signs, N = 640, m = 11",
        "Factors",
        "Chunk sizes, N = 1,003",
        "A round's time",
        "What sealing",
        "Local training",
        "with an audience",
    )
    for title in titles:
        assert title in shown


def test_the_saved_page_names_the_command_and_the_machine_and_holds_every_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "RESULTS", tmp_path)

    run("--save", "--quick", plan=replace(TINY, parameters=(640,)))

    (page,) = tmp_path.glob("????-??-??-bench.md")
    text = page.read_text("utf-8")
    assert 'Made by `make bench ARGS="--save --quick"`' in text
    assert f"- numpy: {np.__version__}" in text
    assert text.count("\n## ") == 5
    assert "RabbitMQ was left out." in text
    assert "Local training was left out." in text
    assert "The interface with an audience was left out." in text


def test_without_a_rabbitmq_server_the_rest_is_measured_and_the_report_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def find_none() -> NoReturn:
        raise FileNotFoundError("no rabbitmq-server is installed")

    monkeypatch.setattr(command, "start_broker", find_none)

    shown = run(plan=replace(TINY, parameters=(640,), chunk_sizes=(), rabbitmq=True))

    assert "RabbitMQ was left out: no rabbitmq-server is installed. On Debian: apt-get install" in shown
    assert "A round's time" in shown


def test_a_folder_that_is_not_there_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        run("--json", str(tmp_path / "missing" / "bench.json"))


def test_a_ratio_is_the_median_over_neighbours_and_counts_every_vector() -> None:
    step = Step("share", "function", 100, 2, list)

    timing = timing_module._summarise(step, [(8.0, 1.0, 2.0), (80.0, 10.0, 20.0), (90.0, 1.0, 1.0)])

    assert timing.seconds == 80.0
    assert timing.stream_ratio == 4.0
    assert timing.addition_ratio == 2.0


def test_what_is_timed_by_chunk_is_a_whole_secure_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "CLIENTS", 3)
    vectors = (Vector("signs", 1_003, 7), Vector("factors", 1, 2**32))
    plan = plan_chunks(vectors, 256)

    deal, check, add, recombine = steps._chunk_steps(1_003, 256)

    shares, total = deal.run(), recombine.run()
    assert isinstance(shares, list)
    assert isinstance(total, list)
    dealt = recombine_chunks(Phase("signs"), plan, vectors, 2, lambda server, index: bytes(shares[index][server]))
    # All three clients of the benchmark hold the same values.
    for vector, values, sums in zip(vectors, dealt, total, strict=True):
        assert np.array_equal(sums, values.astype(np.uint64) * 3 % vector.modulus)
    assert [step.vectors for step in (deal, check, add, recombine)] == [2, 1, 3, 2]


@pytest.mark.parametrize("contest", make_contests(TRAINING), ids=lambda contest: contest.network)
def test_what_training_is_timed_against_computes_the_same(contest: Contest) -> None:
    ours, bare = prepare(contest)

    np.testing.assert_allclose(ours(), bare(), rtol=0, atol=2e-6)


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(1.234, "1.23 s"), (0.5, "500 ms"), (0.0123, "12.3 ms"), (4.2e-5, "42.0 µs"), (3e-9, "3 ns")],
)
def test_durations_are_shown_with_three_digits(seconds: float, shown: str) -> None:
    assert show_seconds(seconds) == shown
