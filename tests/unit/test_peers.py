import asyncio
import io
import json
import os
import select
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType

import benchmarks.peers.__main__ as command
import numpy as np
import pytest
from benchmarks.machine import describe_machine
from benchmarks.peers import ckks, contest, flower_deployed, measuring, paillier
from benchmarks.peers.contest import PeerCost, PeerMissing, SumIsWrong, check_error, draw_up_contest
from benchmarks.peers.flower import measure_flower
from benchmarks.peers.hubbub_rounds import SLOW, STRATEGIES, WIRE, measure_hubbub
from benchmarks.peers.measuring import Plan
from benchmarks.peers.memory import MemoryWatch
from benchmarks.peers.report import PeersReport
from benchmarks.peers.sheet import lay_out_peers
from rich.console import Console

from hubbub.ids import WireMode
from hubbub.runtime.telemetry import context
from hubbub_local.attribution import AttributingLoop, Attribution

CLIENTS = 5
TINY = Plan(parameters=(1_000,), paillier=0, paillier_part=paillier.SLOTS, rounds=2)


def call_here(call: Callable[[], PeerCost]) -> PeerCost:
    return call()


def test_flower_sends_eight_bytes_per_element_up_and_down_and_adds_rightly() -> None:
    with draw_up_contest(2_000, CLIENTS) as drawn, draw_up_contest(1_000, CLIENTS) as smaller:
        cost, other = measure_flower(drawn), measure_flower(smaller)

    # int64 residues up; down the float64 values that SecAgg+ makes of the model. The rest does not depend on N.
    assert cost.up_bytes - other.up_bytes == pytest.approx(CLIENTS * 1_000 * 8, abs=CLIENTS * 10)
    assert cost.down_bytes - other.down_bytes == pytest.approx(CLIENTS * 1_000 * 8, abs=CLIENTS * 10)
    assert 0 < cost.largest_error <= cost.allowed_error
    assert min(cost.client_s, cost.server_s, cost.client_wire_s, cost.server_wire_s) > 0


def test_who_is_quick_takes_turns_and_the_medians_count(monkeypatch: pytest.MonkeyPatch) -> None:
    took: list[str] = []
    times_s = {"Hubbub": iter((3.0, 1.0, 2.0)), "Flower": iter((30.0, 10.0, 20.0)), "CKKS": iter((5.0,))}

    def measure(name: str) -> PeerCost:
        took.append(name)
        return make_cost(name, next(times_s[name]))

    def missing() -> PeerCost:
        took.append("Paillier")
        raise PeerMissing("phe is not installed")

    quick = {name: partial(measure, name) for name in ("Hubbub", "Flower")}
    slow = {"CKKS": partial(measure, "CKKS"), "Paillier": missing}
    monkeypatch.setattr(measuring, "_list_quick", lambda *_: quick)
    monkeypatch.setattr(measuring, "_list_slow", lambda *_: slow)
    report = PeersReport(date="", command="", machine=describe_machine())

    measuring.measure_peers(replace(TINY, turns=3), report, Console(file=io.StringIO()), call_here)

    assert took == [*(["Hubbub", "Flower"] * 3), "CKKS", "Paillier"]
    assert {each.system: each.client_s for each in report.costs} == {"Hubbub": 2.0, "Flower": 20.0, "CKKS": 5.0}
    assert report.remarks[0] == "Paillier was left out: phe is not installed"


def make_cost(system: str, client_s: float) -> PeerCost:
    return PeerCost(
        system=system,
        version="1",
        setting="",
        parameters=1_000,
        clients=CLIENTS,
        up_bytes=1,
        down_bytes=1,
        client_s=client_s,
        server_s=1.0,
        wall_s=1.0,
        memory_bytes=None,
        largest_error=0.0,
        allowed_error=0.0,
        measured=1_000,
    )


def test_ckks_sends_a_ciphertext_for_as_many_elements_as_there_are_slots() -> None:
    pytest.importorskip("tenseal", reason="the extra `peers` is not installed")

    with draw_up_contest(4_096, CLIENTS) as one, draw_up_contest(4_097, CLIENTS) as two:
        single, double = ckks.measure_ckks(one), ckks.measure_ckks(two)

    # Two polynomials in a modulus of 100 bits: the third prime is for keys alone. In memory it has 128 bits.
    assert 2 * ckks.DEGREE * 100 / 8 < single.up_bytes / CLIENTS < 2 * ckks.DEGREE * 128 / 8
    assert double.up_bytes == pytest.approx(2 * single.up_bytes, rel=0.02)
    assert 0 < single.largest_error < 1e-7


def test_paillier_is_scaled_up_from_a_part_and_says_so() -> None:
    pytest.importorskip("phe", reason="the extra `peers` is not installed")
    pytest.importorskip("gmpy2", reason="the extra `peers` is not installed")

    with draw_up_contest(10 * paillier.SLOTS, CLIENTS) as drawn:
        cost = paillier.measure_paillier(drawn, measured=paillier.SLOTS)

    assert cost.is_scaled
    assert cost.up_bytes == cost.down_bytes == 10 * CLIENTS * paillier.CIPHERTEXT_BYTES
    assert cost.largest_error <= cost.allowed_error < 1e-6


def test_packed_plaintexts_add_up_element_by_element_to_the_last_client() -> None:
    largest = np.full(100, paillier.LARGEST, dtype=np.float32)

    columns = zip(*(paillier.pack(largest) for _ in range(2**paillier.PADDING_BITS)), strict=True)
    opened = paillier.unpack([sum(column) for column in columns], 100, 2**paillier.PADDING_BITS)

    assert opened == pytest.approx(np.full(100, paillier.LARGEST * 2**paillier.PADDING_BITS))


@pytest.mark.parametrize(("wire", "full_shares"), [("paper", 2), ("compact", 1)])
def test_hubbub_adds_all_numbers_or_signs_alone_on_the_same_vectors(wire: WireMode, full_shares: int) -> None:
    with draw_up_contest(5_000, CLIENTS) as drawn:
        dense, sparse = (measure_hubbub(drawn, strategy, wire=wire, count=2) for strategy in ("sum", "sec-union"))

    assert dense.up_bytes > full_shares * CLIENTS * 5_000 * 4 > 3 * sparse.up_bytes
    assert dense.largest_error <= dense.allowed_error < 1e-7
    assert sparse.largest_error <= sparse.allowed_error < 1e-7
    assert min(sparse.client_s, sparse.server_s, sparse.others_s) > 0


@pytest.mark.parametrize("strategy", ["bonawitz", "eastly-tss", SLOW])
def test_prior_systems_are_measured_also_where_each_client_has_a_model_of_its_own(strategy: str) -> None:
    with draw_up_contest(128, CLIENTS) as drawn:
        cost = measure_hubbub(drawn, strategy, wire="paper", count=2)

    assert cost.largest_error <= cost.allowed_error < 1e-6
    assert min(cost.client_s, cost.server_s) > 0


def test_a_wrong_sum_is_not_measured() -> None:
    with pytest.raises(SumIsWrong, match=r"off by 0\.5"):
        check_error("a peer", 0.5, 0.1)
    with pytest.raises(SumIsWrong, match="off by nan"):
        check_error("a peer", float("nan"), 0.1)


def test_time_is_counted_for_the_party_in_whose_context_it_is_spent(monkeypatch: pytest.MonkeyPatch) -> None:
    attribution, clock = Attribution(), threading.local()

    def thread_time() -> float:
        return getattr(clock, "now_s", 0.0)

    def spend(seconds: float) -> None:
        clock.now_s = thread_time() + seconds

    def spend_aside(seconds: float) -> None:
        with attribution.put_aside():
            spend(seconds)

    async def work(party: str, seconds: float) -> None:
        with context(party=party):
            await asyncio.create_task(work_inside(seconds))

    async def work_inside(seconds: float) -> None:
        spend(seconds)
        await asyncio.to_thread(spend, 10 * seconds)
        await asyncio.to_thread(spend_aside, 100 * seconds)

    async def work_together() -> None:
        await asyncio.gather(work("one", 1.0), work("two", 2.0))

    monkeypatch.setattr("hubbub_local.attribution.time.thread_time", thread_time)
    with asyncio.Runner(loop_factory=lambda: AttributingLoop(attribution)) as runner:
        runner.run(work_together())

    spent_s = attribution.read()
    assert (spent_s["one"], spent_s["two"]) == pytest.approx((11.0, 22.0))
    assert (attribution.aside_s["one"], attribution.aside_s["two"]) == (100.0, 200.0)


def test_memory_is_what_a_process_took_on_top_even_if_it_is_free_again() -> None:
    watch = MemoryWatch()
    if watch.grown_bytes() is None:
        pytest.skip("the system does not tell a process's peak")

    np.ones(2**23).sum()

    assert 2**25 < (watch.grown_bytes() or 0) < 2**28


def test_the_command_shows_ratios_and_writes_json_and_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hide(monkeypatch, "tenseal")
    screen = io.StringIO()

    command.main(["--json", str(tmp_path / "peers.json")], TINY, Console(file=screen, width=200), call_here)

    shown, written = screen.getvalue(), json.loads((tmp_path / "peers.json").read_text("utf-8"))
    systems = [each["system"] for each in written["costs"]]
    assert systems[:7] == [*(f"Hubbub {name}" for name in STRATEGIES), "Flower SecAgg+"]
    assert "CKKS was left out: tenseal does not import" in shown
    assert "pip install 'hubbub[peers]'" in shown
    assert "A deployed round of Flower was left out." in shown
    assert written["costs"][0]["setting"].startswith(f"wire {WIRE}, 2 aggregators")


def hide(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    def without(name: str) -> ModuleType:
        if name == package:
            raise ImportError(f"No module named {name!r}")
        return import_module(name)

    monkeypatch.setattr("benchmarks.peers.contest.import_module", without)


def test_a_sheet_gives_every_number_over_that_of_sec_union_at_the_same_size() -> None:
    base = replace(
        make_cost("Hubbub sec-union", 0.1), up_bytes=100, down_bytes=100, server_s=0.2, servers=2, others_s=0.1
    )
    peer = replace(
        base,
        system="a peer",
        up_bytes=3_000,
        client_s=0.4,
        client_wire_s=0.2,
        servers=1,
        others_s=0.0,
        measured=10,
    )

    sizes, times = lay_out_peers(make_report(base, peer))

    assert sizes.rows[1][1] == "≈ a peer"
    assert sizes.rows[1][6] == "15.5"
    assert times.rows[0][6] == "500 ms"
    assert times.rows[1][2:7] == ("400 ms (200 ms)", "4.0 to 6.0", "200 ms", "1.0", "200 ms")


def make_report(*costs: PeerCost) -> PeersReport:
    return PeersReport(date="2026-01-01", command="", machine=describe_machine(), costs=list(costs))


def test_a_peer_that_is_missing_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    hide(monkeypatch, "phe.paillier")

    with draw_up_contest(10, CLIENTS) as drawn, pytest.raises(PeerMissing, match=r"hubbub\[peers\]"):
        paillier.measure_paillier(drawn)


def test_what_is_called_apart_runs_in_another_process_and_tells_what_is_missing() -> None:
    elsewhere = measuring.call_apart(os.getpid)
    with pytest.raises(PeerMissing, match="no_such_peer does not import"):
        measuring.call_apart(partial(contest.load_peer, "no_such_peer"))

    assert elsewhere != os.getpid()


def write_program(path: Path, *lines: str) -> None:
    path.write_text("\n".join(["#!/bin/sh", *lines, ""]), encoding="utf-8")
    path.chmod(0o700)


def test_a_deployment_ends_what_its_processes_have_started_even_if_they_do_not_listen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flower_deployed, "_GRACE_S", 0.0)
    os.mkfifo(tmp_path / "alive")
    holding = f"exec 3> '{tmp_path / 'alive'}'"
    write_program(tmp_path / "deaf", "trap '' TERM", holding, "sleep 600 &", "echo started >&3", "wait")
    deployment = flower_deployed._Deployment(tmp_path, tmp_path)

    deployment._start("deaf")
    with (tmp_path / "alive").open("rb", buffering=0) as alive:
        alive.read(len("started\n"))
        deployment.end()
        readable, _, _ = select.select([alive], [], [], 30)

    assert readable, "somebody still has the pipe open"


def test_a_deployment_that_does_not_start_tells_what_its_log_says(tmp_path: Path) -> None:
    write_program(tmp_path / "flower-superlink", "echo no such option", "exit 2")
    deployment = flower_deployed._Deployment(tmp_path, tmp_path)

    with pytest.raises(PeerMissing, match="no such option"):
        deployment.start_superlink()
