import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NoReturn, TypeVar

import benchmarks.__main__ as command
import numpy as np
import pytest
from benchmarks import parts, steps
from benchmarks import timing as timing_module
from benchmarks.compact import SHARE_AND_ADD, PhaseSteps, time_compact
from benchmarks.feeding import PhaseCost, measure_phase
from benchmarks.footprint import Footprint, Footprints
from benchmarks.growth import Growth
from benchmarks.interface import Audience
from benchmarks.learning import Contest, TrainingPlan, make_contests, prepare
from benchmarks.machine import describe_machine
from benchmarks.page import save
from benchmarks.plan import QUICK, Plan
from benchmarks.report import Report
from benchmarks.rounds import Series
from benchmarks.sizes import NEITHER, SCORES, TAGS, SizesPlan, measure_sizes
from benchmarks.targets import list_targets
from benchmarks.timing import Step
from rich.console import Console

from hubbub.messages.manifest import CHUNK_BYTES
from hubbub.protocol.layout import Vector, plan_chunks
from hubbub.strategies.base import Phase
from hubbub_trainer.round_jobs import recombine_chunks

T = TypeVar("T")

TINY = replace(
    QUICK,
    parameters=(640, 1_003),
    compact=(640,),
    threads=640,
    growth=None,
    chunk_sizes=(256, CHUNK_BYTES),
    repeats=2,
    series=Series(runs=1, rounds_per_run=2),
)

AUDIENCE = Audience(
    streams=3,
    requests_per_s=50,
    parameters=640,
    pairs=1,
    rounds_per_run=2,
    rounds_read=3,
    runs_listed=80,
    pages=2,
    restarted_after=(2, 4),
)

TRAINING = TrainingPlan(repeats=1, lenet_steps=2, alexnet_steps=1)


def call_here(call: Callable[[], T]) -> T:
    return call()


def run(*arguments: str, plan: Plan = TINY, docs: Path = Path("nowhere")) -> str:
    screen = io.StringIO()

    command.main(arguments, plan=plan, console=Console(file=screen, width=120), docs=docs, call=call_here)

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
    assert [each["what"] for each in written["refusals"]] == ["no frame", "false signature"]
    assert all(each["seconds"] > 0 for each in written["refusals"])
    assert [(each["network"], each["steps"]) for each in written["training"]] == [("lenet", 2), ("alexnet", 1)]
    assert all(each["ratio"] > 0 for each in written["training"])
    (seen,) = written["load"]["seen"]
    assert (seen["streams"], seen["missed"], seen["repeated"], seen["failed"]) == (3, 0, 0, 0)
    assert seen["events"] > 20
    assert seen["requests"] > 0
    assert written["load"]["alone_s"] > 0 < written["load"]["watched_s"]
    assert [(each["runs"], each["seconds"] > 0) for each in written["pages"]] == [(80, True)] * 5
    assert [each["rounds"] for each in written["restarts"]] == [2, 4]
    assert all(each["process_s"] > each["replay_s"] > 0 for each in written["restarts"])
    for title in (
        *("The compact wire: steps, N = 640", "An aggregator with two threads, N = 640", "signs, N = 640, m = 11"),
        *("factors", "Chunk sizes, N = 1,003", "A round's time", "What sealing", "Local training"),
        "with an audience",
    ):
        assert title in shown


def test_the_saved_page_names_the_command_and_the_machine_and_holds_every_table(tmp_path: Path) -> None:
    run("--save", "--quick", plan=replace(TINY, parameters=(640,)), docs=tmp_path)

    text = (tmp_path / "benchmarks.md").read_text("utf-8")
    assert 'Made by `make bench ARGS="--save --quick"`' in text
    assert f"- numpy: {np.__version__}" in text
    assert text.count("\n## ") == 8
    (numbers,) = tmp_path.glob("results/????-??-??-bench.json")
    assert list(json.loads(numbers.read_text("utf-8"))["signs"]) == ["640"]
    assert "RabbitMQ was left out." in text
    assert "Local training was left out." in text
    assert "The interface with an audience was left out." in text


def test_without_a_rabbitmq_server_the_rest_is_measured_and_the_report_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def find_none() -> NoReturn:
        raise FileNotFoundError("no rabbitmq-server is installed")

    monkeypatch.setattr(parts, "start_broker", find_none)

    shown = run("--only", "rounds", plan=replace(TINY, parameters=(640,), chunk_sizes=(), rabbitmq=True))

    assert "RabbitMQ was left out: no rabbitmq-server is installed. On Debian: apt-get install" in shown
    assert "A round's time" in shown


def test_some_parts_are_measured_alone_and_one_that_is_not_there_is_refused(tmp_path: Path) -> None:
    shown = run("--only", "compact,growth", plan=TINY)

    assert "The compact wire: steps, N = 640" in shown
    assert "Growth was left out." in shown
    assert "A round's time" not in shown
    with pytest.raises(SystemExit):
        run("--only", "compact,none")
    with pytest.raises(SystemExit):
        run("--only", "compact", "--save", docs=tmp_path)
    with pytest.raises(SystemExit):
        run("--json", str(tmp_path / "missing" / "bench.json"))
    assert not list(tmp_path.iterdir())


def test_a_part_that_fails_costs_no_other_and_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> NoReturn:
        raise OSError("the disk is full")

    monkeypatch.setattr(parts, "time_compact", fail)

    run("--save", plan=replace(TINY, parameters=(640,)), docs=tmp_path)

    text = (tmp_path / "benchmarks.md").read_text("utf-8")
    assert "The part compact failed: OSError: the disk is full" in text
    assert "## A round's time" in text


def test_the_steps_on_the_compact_wire_are_a_whole_secure_sum_and_draw_what_the_protocol_says() -> None:
    phase = PhaseSteps(1_003, chunk_bytes=256)

    for vector, values, sums in zip(phase.vectors, phase.values, phase.unmask(), strict=True):
        # All five clients of the benchmark hold the same values.
        assert np.array_equal(sums, values.astype(np.uint64) * 5 % vector.modulus)

    timings = {each.name: each for each in time_compact(1_000, 1)}
    whole = timings[SHARE_AND_ADD]
    # A client draws a mask and a seeded share, which an aggregator draws again: 8 bytes for 16 signs, 4 a factor.
    assert whole.stream_bytes == 5 * 3 * (63 * 8 + 4)
    # 63 words of 56 bits and 4 bytes make 445 bytes: dealt by five, read by two, two sums written and one read.
    assert whole.copied_bytes == 5 * (1_004 + 445) + 5 * 445 + 3 * 445
    assert timings["unmask"].stream_bytes == 5 * (63 * 8 + 4)
    assert all(each.ratio > 0 for each in timings.values())


def test_a_fed_phase_is_added_by_real_aggregators_and_its_bytes_are_the_formulas() -> None:
    two, four = (measure_phase(5_000, 3, servers) for servers in (2, 4))

    # 17 signs mod 7 take 48 bits; the factor takes 4 bytes: up and down.
    assert two.link_payload_bytes == 2 * (295 * 6 + 4)
    assert four.link_payload_bytes == two.link_payload_bytes
    assert (two.seed_bytes, four.seed_bytes) == (32, 96)
    assert two.link_payload_bytes + two.seed_bytes < two.link_wire_bytes < four.link_wire_bytes
    assert 3 * two.link_wire_bytes < two.all_bytes
    assert min(two.client_s, two.server_s, two.wall_s) > 0


def make_phase(parameters: int, clients: int = 5, servers: int = 2) -> PhaseCost:
    return PhaseCost(
        parameters=parameters,
        clients=clients,
        servers=servers,
        client_s=2e-9 * parameters * clients / 5 + 0.001,
        server_s=3e-9 * parameters * clients,
        link_payload_bytes=parameters,
        seed_bytes=32 * (servers - 1),
        link_wire_bytes=parameters + 1_000 * servers,
        all_bytes=2 * parameters * clients,
        wall_s=1.0,
    )


def make_growth() -> Growth:
    return Growth(
        by_length=[make_phase(10**power) for power in (5, 6, 7, 8)],
        by_cohort=[make_phase(10**6, clients) for clients in (5, 10, 100)],
        by_servers=[make_phase(10**6, servers=servers) for servers in (2, 5)],
    )


def make_footprint(parameters: int, clients: int = 5, *, peak_bytes: int = 0) -> Footprint:
    return Footprint(
        parameters=parameters, clients=clients, idle_bytes=2**26, peak_bytes=peak_bytes or 2**26 + parameters
    )


def make_footprints(*, crowd_bytes: int) -> Footprints:
    return Footprints(
        by_length=[make_footprint(10**power) for power in (5, 6, 7, 8)],
        by_cohort=[make_footprint(10**6, clients) for clients in (5, 100)],
        crowd=(make_footprint(10**7, peak_bytes=10**8), make_footprint(10**7, 100, peak_bytes=crowd_bytes)),
    )


def test_lines_through_what_grew_are_fitted_and_judged() -> None:
    growth = make_growth()

    fits = {(fit.what, fit.over): fit for fit in growth.fits}
    assert fits["a client's time", "N"].slope == pytest.approx(2e-9)
    assert fits["a client's time", "N"].constant == pytest.approx(0.001)
    assert fits["bytes of everybody", "C"].r_squared == pytest.approx(1)
    assert fits["bytes of everybody", "C"].largest_residual < 1e-9
    assert fits["elements of everybody", "C"].r_squared < 1
    assert all(target.met for target in list_targets(make_report(growth)) if "elements" not in target.what)


def test_memory_is_judged_by_the_element_and_by_the_crowd() -> None:
    footprints = make_footprints(crowd_bytes=11 * 10**7)

    by_element, by_crowd = list_targets(make_report(footprints=footprints))

    assert footprints.line is not None
    assert footprints.line.slope == pytest.approx(1)
    assert (by_element.met, by_element.measured) == (True, "1.00 B an element and 64.00 MB")
    assert (by_crowd.met, by_crowd.measured) == (True, "1.10 times (104.90 MB to 95.37 MB)")
    steep = [make_footprint(10**power, peak_bytes=5 * 10**power + 2**26) for power in (5, 6, 7, 8)]
    crowded = make_footprints(crowd_bytes=2 * 10**8)
    assert [target.met for target in list_targets(make_report(footprints=crowded))] == [True, False]
    long_vectors = make_report(footprints=replace(footprints, by_length=steep))
    assert [target.met for target in list_targets(long_vectors)] == [False, True]


def make_report(growth: Growth | None = None, footprints: Footprints | None = None) -> Report:
    return Report(
        date="2026-01-01", command="", machine=describe_machine(), repeats=1, growth=growth, footprints=footprints
    )


def test_what_grew_is_drawn_on_the_page(tmp_path: Path) -> None:
    written = save(make_report(make_growth(), make_footprints(crowd_bytes=10**8)), tmp_path)

    pictures = [path.name for path in written if path.suffix == ".svg"]
    assert pictures == ["2026-01-01-bench-growth.svg"]
    text = (tmp_path / "benchmarks.md").read_text("utf-8")
    assert f"](results/{pictures[0]})" in text
    assert text.index("## Asked and measured") < text.index("## Growth") < text.index("memory\n")


def test_a_round_by_size_tells_payload_from_wire_and_from_everything() -> None:
    found, scored, tagged, neither = measure_sizes(
        SizesPlan(rounds={5_000: 2}), {"memory": None}, lambda _: None, call_here
    )

    assert [each.transport for each in (found, scored, tagged, neither)] == ["memory", SCORES, TAGS, NEITHER]
    # 128 bits and 3 words, from five clients and to them, and between two aggregators.
    assert (tagged.cost.payload_bytes or 0) - (neither.cost.payload_bytes or 0) == 11 * 40
    # Two metrics of 4 bytes and 3 words of tags, and a seed of 32 bytes from each client.
    assert (scored.cost.payload_bytes or 0) - (tagged.cost.payload_bytes or 0) == 11 * (8 + 24) + 5 * 32
    assert found.cost.payload_bytes is not None
    assert found.cost.wire_bytes is not None
    assert 0 < found.cost.payload_bytes < found.cost.wire_bytes < found.cost.total_bytes
    assert min(found.cost.client_s, found.cost.server_s, found.cost.wall_s) > 0


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
    dealt = recombine_chunks(
        Phase("signs"), plan, vectors, range(2), lambda server, index: bytes(shares[index][server])
    )
    # All three clients of the benchmark hold the same values.
    for vector, values, sums in zip(vectors, dealt, total, strict=True):
        assert np.array_equal(sums, values.astype(np.uint64) * 3 % vector.modulus)
    assert [step.vectors for step in (deal, check, add, recombine)] == [2, 1, 3, 2]


@pytest.mark.parametrize("contest", make_contests(TRAINING), ids=lambda contest: contest.network)
def test_what_training_is_timed_against_computes_the_same(contest: Contest) -> None:
    ours, bare = prepare(contest)

    np.testing.assert_allclose(ours(), bare(), rtol=0, atol=2e-6)
